"""Parse the values of records as JSON into columns, many values in one call of Arrow's parser."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kafkagroup.errors import KafkaGroupError
from kafkagroup.spark.option_values import OnError
from kafkagroup.types import TopicPartition

__all__ = ["JsonParser", "JsonValues", "MalformedValueError"]

logger = logging.getLogger(__name__)

_BLANKS = " \t\r\n"
"""The white space of JSON."""

_NO_OBJECT = "it is not a JSON object"
_NO_UTF8 = "its bytes are not UTF-8"


class MalformedValueError(KafkaGroupError):
    """A value cannot be parsed into the query's schema; see the option `on_error`."""


class JsonValues:
    """The columns of the values of one partition, with the option `on_error`."""

    def __init__(self, fields: pa.Schema, on_error: OnError, tp: TopicPartition) -> None:
        self._parser = JsonParser(fields)
        self._on_error = on_error
        self._tp = tp

    def parse(
        self, values: pa.Array, offsets: pa.Array
    ) -> tuple[dict[str, pa.Array], pa.Array | None]:
        """Return the columns by name, and a mask of the rows that remain; None if all do.
        `offsets`: those of the records, for messages.

        Raises: MalformedValueError with `on_error=fail`.
        """
        malformed: list[int] = []

        def note(row: int, reason: str) -> None:
            if self._on_error == "fail":
                raise MalformedValueError(
                    f"the value of {self._tp} at offset {offsets[row]} does not match the schema:"
                    f" {reason}; on_error=null would set its columns to null, on_error=skip would"
                    " leave the record out"
                )
            malformed.append(row)

        columns = self._parser.parse(values, note)
        if self._on_error != "skip" or not malformed:
            return columns, None
        logger.warning(
            "%s: left out %d records whose values do not match the schema, the first at offset %s",
            self._tp,
            len(malformed),
            offsets[malformed[0]],
        )
        remains = bytearray(b"\1") * len(values)
        for row in malformed:
            remains[row] = 0
        flags = pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(remains)])
        return columns, flags.cast(pa.bool_())


class JsonParser:
    """Parses JSON objects into columns."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([(field.name, _as_read(field.type)) for field in fields]),
            unexpected_field_behavior="ignore",
        )

    def parse(
        self, values: pa.Array, on_malformed: Callable[[int, str], None]
    ) -> dict[str, pa.Array]:
        """Return the columns by name. They are null in a row whose value is missing, blank or
        malformed.

        Calls `on_malformed` for each malformed value, in order, with the number of its row and the
        reason.
        """
        parts = list(self._parse(values, 0, on_malformed))
        columns = map(pa.concat_arrays, zip(*parts, strict=True))
        return dict(zip(self._fields.names, columns, strict=True))

    def _parse(
        self, values: pa.Array, first: int, on_malformed: Callable[[int, str], None]
    ) -> Iterator[list[pa.Array]]:
        """Yield the columns in parts. Arrow's parser does not say which value is malformed, so the
        halves of `values` are parsed again until it is found. `first`: the row of `values[0]`."""
        try:
            columns = self._parse_all(values)
        except pa.ArrowInvalid as error:
            half = len(values) // 2
            if half:
                yield from self._parse(values[:half], first, on_malformed)
                yield from self._parse(values[half:], first + half, on_malformed)
                return
            # The row in Arrow's message is counted from `values`, which is one value here.
            on_malformed(first, str(error).removesuffix(" in row 0"))
            columns = [pa.nulls(1, field.type) for field in self._fields]
        yield columns

    def _parse_all(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns. Raises: ArrowInvalid if any value is malformed."""
        try:
            texts = pc.fill_null(values.cast(pa.string()), "{}")
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(_NO_UTF8) from None
        if not _are_braced(texts):
            texts = pc.ascii_trim(texts, _BLANKS)
            texts = pc.if_else(pc.equal(texts, ""), "{}", texts)
            if not _are_braced(texts):
                raise pa.ArrowInvalid(_NO_OBJECT)
        lines = _joined(texts)
        if lines.count(b"\n") > len(texts):
            # A tab is allowed where a line break is: between tokens, and not within a string.
            lines = _joined(pc.replace_substring(texts, "\n", "\t"))
        table = pj.read_json(
            pa.BufferReader(lines),
            # One block: a value may not reach over the end of a block.
            read_options=pj.ReadOptions(use_threads=False, block_size=len(lines)),
            parse_options=self._options,
        )
        # No object contains `}`, a line break and `{` in this order. So each line has one object
        # or more, and with as many objects as lines each line has one.
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid(_NO_OBJECT)
        return [
            _converted(pa.concat_arrays(table.column(field.name).chunks), field.type)
            for field in self._fields
        ]


def _are_braced(texts: pa.StringArray) -> bool:
    """Whether each text begins and ends as an object does. Arrow's parser kills the process if the
    first text is `null`."""
    braced = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return bool(pc.all(braced).as_py())


def _joined(texts: pa.StringArray) -> bytes:
    """Return the texts, each with a line break after it."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined: bytes = pc.binary_join(whole, "\n")[0].as_buffer().to_pybytes()
    return joined + b"\n"


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type to give Arrow's parser, from which `_converted` makes `kind`: strings for
    dates and times, and the widest decimals for all decimals. For `kind` itself, the parser would
    accept a date only as a number, read a time without zone as one in UTC, and accept 12345 for
    decimal(5, 2), whose maximum is 999.99."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal256(76, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_read(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_read(kind.value_type))
    return kind


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array of the type `_as_read(kind)` to `kind`. Raises: ArrowInvalid."""
    if pa.types.is_struct(kind):
        children = [_converted(array.field(n), kind.field(n).type) for n in range(len(kind))]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        values = _converted(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_timestamp(kind):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            # Some programs write nanoseconds: cut the digits after Spark's microseconds.
            return pc.replace_substring_regex(array, r"(\.\d{6})\d{1,3}", r"\1").cast(kind)
    return array.cast(kind)

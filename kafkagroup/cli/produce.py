"""`kafkagroup produce`: write the lines of stdin as records of a topic."""

from __future__ import annotations

import logging
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import click

from kafkagroup import Codec, Producer, RecordFuture
from kafkagroup._signals import open_signal_receiver
from kafkagroup._text import printable
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._first import first
from kafkagroup.cli._live import ticks
from kafkagroup.cli._pipes import read_stdin
from kafkagroup.cli._record_json import PlacedRecord, record_from_json
from kafkagroup.cli._view import count, print_message
from kafkagroup.errors import (
    BrokerError,
    BufferFullError,
    ConfigurationError,
    KafkaGroupError,
    NotWrittenError,
)
from kafkagroup.types import NO_TIMESTAMP, Headers
from kafkagroup.wire.batch_writing import NewRecord

__all__ = ["command"]

_READ_BYTES = 1 << 18
"""Most bytes of one read of stdin."""

_MAX_LINE = 16 << 20
"""Most bytes of one line; brokers accept a megabyte by default."""

_MAX_REQUEST = _MAX_LINE + (1 << 20)
"""Most bytes of a request: enough for any line, so that the broker decides whether a line is too
large."""

_PROGRESS_INTERVAL = 0.5
"""Seconds between two updates of the progress on a terminal."""

_GRACE = 3.0
"""Seconds after a signal, or an error, in which brokers may still acknowledge the records in
flight, without a `close.timeout`."""

_SIGNAL_EXIT_BASE = 128
"""The exit code after a signal is this plus the signal's number, as in shells."""

_CLEAR_LINE = "\r\x1b[K"
"""Text that clears the terminal's current line."""


class _Header(click.ParamType[tuple[str, bytes]]):
    name = "header"

    def convert(
        self,
        value: str | tuple[str, bytes],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, bytes]:
        if isinstance(value, tuple):  # click may convert a value again
            return value
        name, equals, content = value.partition("=")
        if not (name and equals):
            self.fail("expected NAME=VALUE", param, ctx)
        return name, content.encode(errors="surrogateescape")


@click.command("produce", short_help="Write lines of stdin to a topic.")
@click.argument("topic", required=False)
@click.option("-t", "--topic", "topic_option", hidden=True)
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    help="The part of a line before it is the key. Default: no keys.",
)
@click.option(
    "-H",
    "--headers",
    "--header",
    "headers",
    type=_Header(),
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of every record; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(0),
    metavar="N",
    help="The partition of all records. Default: by their keys.",
)
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="With --json: use the partitions in the lines, not the keys.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    help="The compression of batches.  [default: none]",
)
@click.option(
    "-J", "--json", "as_json", is_flag=True, help="Read lines as `consume --json` prints them."
)
@connected
def command(
    topic: str | None,
    topic_option: str | None,
    key_separator: str | None,
    headers: tuple[tuple[str, bytes], ...],
    partition: int | None,
    keep_partitions: bool,
    compression: str | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Write each line of stdin, any bytes without the line end, as a record of TOPIC.

    The command ends when all in-sync replicas have every record. An error names the line that was
    rejected, or not acknowledged in time; earlier lines are written, and later ones may be. Each
    line is written once, also if a response is lost. Keys are partitioned as by Kafka's own
    producers; lines without a key go to one partition for some kilobytes, then to another. The
    topic must exist. -X also takes the options of a producer, such as delivery.timeout.ms. After
    SIGINT or SIGTERM, the command waits for acknowledgements, up to 3 s or -X close.timeout.

    With --json a line is an object with a "value", and optionally "key", "headers" and "timestamp".
    Keys and values are strings, null, or {"base64": "..."}. "topic" and "offset" are ignored, and
    "partition" without --keep-partitions.
    """
    if (topic is None) == (topic_option is None):
        raise click.UsageError(
            "Missing argument 'TOPIC'." if topic_option is None else "one TOPIC only"
        )
    topic = topic or topic_option or ""
    if key_separator == "":
        raise click.UsageError("--key-separator is empty")
    if as_json and key_separator is not None:
        raise click.UsageError("--key-separator does not work with --json, which has a key field")
    if keep_partitions and (partition is not None or not as_json):
        raise click.UsageError("--keep-partitions needs --json, and excludes --partition")
    if as_json:
        parse: Callable[[bytes], PlacedRecord] = partial(_from_json, headers, keep_partitions)
    else:
        separator = None if key_separator is None else key_separator.encode()
        parse = partial(_from_text, separator, headers)
    options: dict[str, Any] = {
        "close_timeout": _GRACE,
        "max_request_size": _MAX_REQUEST,
        **connection.options(Producer),
    }
    if compression is not None:
        options["compression_type"] = compression
    if "transactional_id" in options:
        raise ConfigurationError("transactional_id: this command writes without transactions")
    producer = Producer(**options)
    # The producer's log is silenced: this command reports the lines that were not written, by their
    # numbers.
    logging.getLogger("kafkagroup.producer").setLevel(logging.CRITICAL)
    writer = _Writer(producer, topic, partition, parse)
    code = anyio.run(writer.run)
    unknown = f"; the outcome of {n} more is unknown" if (n := writer.unknown_count) else ""
    print_message(f"{count(writer.written_count, 'record')} written to {topic}{unknown}")
    raise click.exceptions.Exit(code)


def _from_text(separator: bytes | None, headers: Headers, line: bytes) -> PlacedRecord:
    if separator is None:
        return PlacedRecord(NewRecord(None, line, headers=headers), None)
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError("it has no --key-separator")
    return PlacedRecord(NewRecord(key, value, headers=headers), None)


def _from_json(headers: Headers, keep_partitions: bool, line: bytes) -> PlacedRecord:
    record, partition = record_from_json(line)
    if keep_partitions and partition is None:
        raise ValueError("it has no partition")
    record = record._replace(headers=record.headers + headers)
    return PlacedRecord(record, partition if keep_partitions else None)


class _Writer:
    """Writes the lines of stdin to the topic."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partition: int | None,
        parse: Callable[[bytes], PlacedRecord],
    ) -> None:
        """`partition`: the partition of records for which `parse` returns none; None chooses it by
        the key."""
        self.written_count = 0
        """The number of records, one for each line, that were written."""
        self.unknown_count = 0
        """The number of sent records that were not acknowledged in time after a signal."""
        self._has_shown_progress = False
        self._failure: KafkaGroupError | None = None
        """The error to raise: it names the line that was not written."""
        self._invalid: KafkaGroupError | None = None
        """Why the line after the last accepted one cannot be written."""
        self._sent: deque[RecordFuture] = deque()
        """The lines after the written ones, which the producer has accepted, in order."""
        self._has_read_all = False
        """Whether no line is read any more."""
        self._lines_arrived = anyio.Event()
        """Set when `_sent` may have more lines, or `_has_read_all` has become true."""
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._parse = parse

    async def run(self) -> int:
        """Write the lines; return the exit code. Raises: KafkaGroupError that names the first line
        that was not written."""
        with open_signal_receiver() as signals:
            try:
                code = await self._run(signals)
            finally:
                if self._has_shown_progress:
                    click.echo(_CLEAR_LINE, nl=False, err=True)
        if self._failure is not None:
            raise self._failure
        return code

    async def _run(self, signals: AsyncIterator[signal.Signals]) -> int:
        code = 0
        try:
            async with self._producer:
                # An unknown topic is reported at once, not after the first line of input.
                await self._producer.partition_count(self._topic)
                functions: list[Callable[[], Awaitable[int]]] = [
                    partial(_wait_for_signal, signals),
                    self._copy_stdin,
                ]
                if _shows_progress():
                    functions.append(self._show_progress)
                code = await first(*functions)
        except NotWrittenError:
            pass  # `_settle` finds the line, and the error to raise names it
        # The close has waited for the lines in flight.
        await self._settle()
        return code

    async def _show_progress(self) -> int:
        """Write the count to stderr, over the last one, until cancelled."""
        async for _ in ticks(_PROGRESS_INTERVAL):
            if self.written_count:
                self._has_shown_progress = True
                text = f"{count(self.written_count, 'record')} written to {self._topic}"
                click.echo(_CLEAR_LINE + printable(text), nl=False, err=True)
        raise AssertionError("ticks never end")

    async def _copy_stdin(self) -> int:
        """Write all lines, up to the first one that fails, whose error is then in `_failure`.
        Return the exit code without a failure, 0."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            await self._confirm()
            tasks.cancel_scope.cancel()
        return 0

    # ------------------------------------------------------------ from stdin to the producer

    async def _read(self) -> None:
        """Send the lines, up to the first one that is invalid."""
        try:
            await self._read_lines()
        except (KafkaGroupError, ValueError) as error:
            self._invalid = self._line_error(len(self._sent), str(error))
        self._has_read_all = True
        self._lines_arrived.set()

    async def _read_lines(self) -> None:
        """Send all lines. Raises: ValueError or KafkaGroupError for an invalid line."""
        rest = b""
        while chunk := await read_stdin(_READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                await self._send(line)
            self._lines_arrived.set()
            if len(rest) > _MAX_LINE:
                raise ValueError(f"it has more than {_MAX_LINE} bytes")
        if rest:
            await self._send(rest)

    async def _send(self, line: bytes) -> None:
        record, partition = self._parse(line)
        timestamp = None if record.timestamp == NO_TIMESTAMP else record.timestamp
        while True:
            try:
                future = self._producer.send_nowait(
                    self._topic,
                    record.value,
                    key=record.key,
                    partition=self._partition if partition is None else partition,
                    headers=record.headers,
                    timestamp=timestamp,
                )
            except BufferFullError:
                # Acknowledgements of the lines so far make room.
                self._lines_arrived.set()
                await self._producer.ready()
            else:
                self._sent.append(future)
                return

    # ------------------------------------------------------------ acknowledgements

    async def _confirm(self) -> None:
        """Count the lines that are written, in their order, until all are, or one has failed."""
        while True:
            while self._sent:
                try:
                    await self._sent[0]
                except NotWrittenError as error:
                    self._failure = await self._not_written(0, error)
                    return
                self._sent.popleft()
                self.written_count += 1
            if self._has_read_all:
                self._failure = self._invalid
                return
            self._lines_arrived = anyio.Event()
            await self._lines_arrived.wait()

    async def _settle(self) -> None:
        """Count the written and the unknown lines among those that were in flight when the command
        ended; lines that were never sent count as neither. If a line has failed, count nothing: no
        counts are printed then. The producer is closed, so that this does not wait."""
        if self._failure is not None:
            return
        written = 0
        for index, future in enumerate(self._sent):
            try:
                await future
            except NotWrittenError as error:
                # A broker has refused the line. With any other error it was never sent, or its
                # outcome is unknown.
                if isinstance(error.why, BrokerError):
                    self._failure = await self._not_written(index, error)
                    return
                self.unknown_count += error.is_maybe_written
            else:
                written += 1
        # Added at the end: `_line_error` counts lines from `written_count` on.
        self.written_count += written

    async def _not_written(self, index: int, error: NotWrittenError) -> KafkaGroupError:
        """Return the error for a line that was not written; `index` is its place in `_sent`."""
        if error.is_of_another_record:
            index = await self._refused_index(index, error)
        if error.is_maybe_written:
            return self._line_error(index, f"it may have been written: {error.why}")
        return self._line_error(index, str(error.why))

    async def _refused_index(self, index: int, error: NotWrittenError) -> int:
        """Return the place in `_sent` of the line because of which the broker refused the batch
        that also has the line at `index`; `index` if it is not found."""
        for later, future in enumerate(self._sent):
            if later > index and future.done():
                try:
                    await future
                except NotWrittenError as other:
                    if other.why is error.why and not other.is_of_another_record:
                        return later
        return index

    def _line_error(self, index: int, why: str) -> KafkaGroupError:
        return KafkaGroupError(f"line {self.written_count + index + 1}: {why}")


def _shows_progress() -> bool:
    # None: the program was started with a closed stderr or stdin.
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    # Not if the lines are typed on the terminal: the progress would overwrite them.
    return sys.stdin is None or not sys.stdin.isatty()


async def _wait_for_signal(signals: AsyncIterator[signal.Signals]) -> int:
    """Return the exit code after a signal."""
    return _SIGNAL_EXIT_BASE + await anext(signals)

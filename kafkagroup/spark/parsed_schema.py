"""Check the schema that a query gives: which columns are fields of a parsed value, and which are
the record's own. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.option_values import COLUMNS, CONNECTOR_HEADERS, record_types
from kafkagroup.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["check_parsed_schema", "check_record_schema"]

_TYPES = frozenset(
    (
        *("boolean", "byte", "short", "integer", "long", "float", "double", "decimal"),
        *("string", "date", "timestamp", "timestamp_ntz"),
    )
)
"""The types, besides structs and arrays, into which values are parsed, by Spark's names."""

_NEVER_NULL = ("topic", "partition", "offset")
"""The record's columns that a schema may declare as NOT NULL."""


def check_record_schema(schema: StructType) -> None:
    """Check a schema of the record's own columns. Raises: ConfigurationError that names the wrong
    column."""
    _check_names(schema)
    if unknown := [name for name in schema.names if name not in COLUMNS]:
        raise ConfigurationError(
            f"a record has no columns {', '.join(unknown)}; to read them from its value as"
            " JSON, give the option parse=json"
        )
    for field in schema.fields:
        kinds = [COLUMNS[field.name], *([CONNECTOR_HEADERS] if field.name == "headers" else [])]
        _check_column(field, kinds)


def _check_names(schema: StructType) -> None:
    names = schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"the schema has columns twice: {', '.join(twice)}")


def _check_column(field: StructField, kinds: list[str]) -> None:
    """Check that a column of the record has one of the types `kinds`, and that it is nullable if it
    is not in `_NEVER_NULL`. Raises: ConfigurationError."""
    name, found = field.name, field.dataType.simpleString()
    # `simpleString` has no spaces; `kinds` have one after each colon.
    if found not in [kind.replace(" ", "") for kind in kinds]:
        advice = f"; convert it after load(): CAST({name} AS {found})" if "<" not in found else ""
        raise ConfigurationError(
            f"the record's {name} is {' or '.join(kinds)}, not {found}{advice}"
        )
    if not field.nullable and name not in _NEVER_NULL:
        raise ConfigurationError(f"the record's {name} must not be NOT NULL: it may be null")


def check_parsed_schema(schema: StructType, options: SourceOptions) -> None:
    """Check a schema for `parse=json`. Raises: ConfigurationError that names the wrong column."""
    _check_names(schema)
    names = schema.names
    if missing := [name for name in options.columns if name not in names]:
        raise ConfigurationError(
            f"option columns: the schema has no {', '.join(missing)}; add them to the schema with"
            " their types"
        )
    unclear = [name for name in names if name in COLUMNS and not options.has_columns_option]
    if unclear:
        raise ConfigurationError(
            f"the schema's {', '.join(unclear)} may be the record's own or fields of its value:"
            " name the record's own in the option columns, such as"
            f' columns={",".join(unclear)}; columns="" if all are fields of the value'
        )
    types = record_types(options.has_connector_rows)
    for field in schema.fields:
        kind = field.dataType
        if field.name not in options.columns:
            problems = _problems(field.name, kind, field.nullable)
            if problem := next(problems, None):
                raise ConfigurationError(f"parse=json: {problem}")
        else:
            _check_column(field, [types[field.name]])
    if len(options.columns) == len(names):
        raise ConfigurationError("parse=json: the schema has no field of the value")


def _problems(name: str, kind: DataType, nullable: bool) -> Iterator[str]:
    """Yield for a field, and each field in it, why it cannot be parsed."""
    from pyspark.sql.types import ArrayType, StructType

    if not nullable:
        yield f"{name} must not be NOT NULL: a value may lack it"
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _problems(f"{name}.{field.name}", field.dataType, field.nullable)
    elif isinstance(kind, ArrayType):
        yield from _problems(f"{name}[]", kind.elementType, kind.containsNull)
    elif kind.typeName() not in _TYPES:
        yield (
            f"{name} is {kind.simpleString()}, which is not parsed; declare it as a string, a"
            " struct or an array, or parse the value with from_json"
        )

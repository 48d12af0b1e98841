"""Check the schema that a query gives for parsed values: which columns are fields of the value, and
which are the record's own. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.option_values import COLUMNS, record_types
from kafkagroup.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["check_parsed_schema"]

_TYPES = frozenset(
    (
        *("boolean", "byte", "short", "integer", "long", "float", "double", "decimal"),
        *("string", "date", "timestamp", "timestamp_ntz"),
    )
)
"""The types of single values, as Spark names them."""


def check_parsed_schema(schema: StructType, options: SourceOptions) -> None:
    """Check a schema for `parse=json`. Raises: ConfigurationError that names the wrong column."""
    names = schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"the schema has columns twice: {', '.join(twice)}")
    if missing := [name for name in options.columns if name not in names]:
        raise ConfigurationError(
            f"option columns: the schema has no {', '.join(missing)}; add them to the schema with"
            " their types"
        )
    unclear = [name for name in names if name in COLUMNS and not options.columns_given]
    if unclear:
        raise ConfigurationError(
            f"the schema's {', '.join(unclear)} may be the record's own or fields of its value:"
            " name the record's own in the option columns, such as"
            f' columns={",".join(unclear)}; columns="" if all are fields of the value'
        )
    types = record_types(options.connector_rows)
    for field in schema.fields:
        kind = field.dataType
        if field.name not in options.columns:
            problems = _problems(field.name, kind, field.nullable)
            if problem := next(problems, None):
                raise ConfigurationError(f"parse=json: {problem}")
        elif kind.simpleString() != types[field.name].replace(" ", ""):
            raise ConfigurationError(
                f"the record's {field.name} is {types[field.name]}, not {kind.simpleString()}"
            )
    if len(options.columns) == len(names):
        raise ConfigurationError("parse=json: the schema has no field of the value")


def _problems(name: str, kind: DataType, nullable: bool) -> Iterator[str]:
    """Yield what cannot be parsed of a field."""
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

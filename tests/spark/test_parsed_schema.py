"""Which schemas a query may give for parsed values; no Spark runs here."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThan
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kafkagroup import ConfigurationError
from kafkagroup.spark import KafkaGroupSource
from kafkagroup.spark.filters import Selection, select
from kafkagroup.spark.stream import StreamReader
from kafkagroup.spark.table import FilteringTableReader

LEAST = {"bootstrap.servers": "k:9092", "subscribe": "a"}


def reader(kinds: dict[str, DataType], **options: str) -> DataSourceReader:
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    return of(schema, **options)


def of(schema: StructType, **options: str) -> DataSourceReader:
    return KafkaGroupSource({**LEAST, "parse": "json", **options}).reader(schema)


LINES = ArrayType(StructType([StructField("day", DateType()), StructField("n", LongType())]))


def test_fields_and_columns_of_the_record() -> None:
    kinds: dict[str, DataType] = {
        "id": LongType(),
        "price": DecimalType(10, 2),
        "lines": LINES,
        "local": TimestampNTZType(),
    }
    reader(kinds)
    assert reader({**kinds, "offset": LongType()}, columns="offset") is not None
    reader({**kinds, "offset": StringType()}, columns="")
    schema = StructType([StructField("id", LongType())])
    source = KafkaGroupSource({**LEAST, "parse": "json"})
    assert isinstance(source.streamReader(schema), StreamReader)


HEADER = StructType([StructField("name", StringType()), StructField("value", BinaryType())])
CONNECTOR_HEADER = StructType(
    [StructField("key", StringType()), StructField("value", BinaryType())]
)


def test_headers_have_the_type_that_the_options_give_them() -> None:
    fields: dict[str, DataType] = {"id": LongType(), "headers": ArrayType(HEADER)}
    reader(fields, columns="headers")
    fields["headers"] = ArrayType(CONNECTOR_HEADER)
    reader(fields, columns="headers", includeHeaders="true")
    with pytest.raises(ConfigurationError, match="the record's headers is array<struct<name: "):
        reader(fields, columns="headers")


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        (
            {"id": LongType(), "offset": LongType(), "key": StringType()},
            {},
            "the schema's offset, key may be the record's own or fields of its value",
        ),
        ({"id": LongType()}, {"columns": "offset"}, "option columns: the schema has no offset"),
        (
            {"id": LongType(), "timestamp": StringType()},
            {"columns": "timestamp"},
            "the record's timestamp is timestamp, not string",
        ),
        ({"offset": LongType()}, {"columns": "offset"}, "the schema has no field of the value"),
        ({"id": BinaryType()}, {}, "parse=json: id is binary, which is not parsed"),
        (
            {"s": StructType([StructField("m", MapType(StringType(), LongType()))])},
            {},
            "parse=json: s.m is map<string,bigint>, which is not parsed; declare it as a string, a",
        ),
        ({"ids": ArrayType(LongType(), False)}, {}, r"ids\[\] must not be NOT NULL"),
    ],
)
def test_wrong_schemas_are_named(
    kinds: dict[str, DataType], options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        reader(kinds, **options)


def test_a_field_that_a_value_may_lack_is_nullable() -> None:
    with pytest.raises(ConfigurationError, match="id must not be NOT NULL: a value may lack it"):
        of(StructType([StructField("id", LongType(), nullable=False)]))


def test_a_column_of_the_record_twice() -> None:
    with pytest.raises(ConfigurationError, match="the schema has columns twice: id"):
        of(StructType([StructField("id", LongType()), StructField("id", StringType())]))


def test_parsing_needs_a_schema() -> None:
    with pytest.raises(ConfigurationError, match=r'parse=json needs .* \.schema\("id bigint'):
        KafkaGroupSource({**LEAST, "parse": "json"}).schema()


def test_fields_of_the_value_need_parsing() -> None:
    schema = StructType([StructField("id", LongType()), StructField("value", BinaryType())])
    with pytest.raises(ConfigurationError, match=r"a record has no columns id; .* parse=json"):
        KafkaGroupSource(LEAST).reader(schema)


def test_filters_on_fields_of_the_value_select_nothing_of_the_logs() -> None:
    """A field may be called "offset"."""
    filters = [EqualTo(("offset",), 5), GreaterThan(("partition",), 0), EqualTo(("topic",), "a")]
    kept, left = select(filters, {"offset"})
    assert (kept, left) == (Selection(topics=frozenset("a")), filters[:2])
    kinds: dict[str, DataType] = {"offset": LongType(), "topic": StringType()}
    filtering = reader(kinds, columns="topic", pushFilters="true")
    assert isinstance(filtering, FilteringTableReader)
    assert list(filtering.pushFilters(filters)) == filters[:2]


def test_times_of_the_record_have_a_zone() -> None:
    kinds: dict[str, DataType] = {"id": LongType(), "timestamp": TimestampType()}
    reader(kinds, columns="timestamp")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            StructField("value", StringType()),
            r"the record's value is binary, not string; .* CAST\(value AS string\)",
        ),
        (StructField("partition", LongType()), "the record's partition is int, not bigint"),
        (StructField("timestamp", LongType()), "the record's timestamp is timestamp, not bigint"),
        (
            StructField("headers", MapType(StringType(), BinaryType())),
            "headers is array<struct<name: string, value: binary>> or array<struct<key: string, ",
        ),
        (
            StructField("key", BinaryType(), nullable=False),
            "the record's key must not be NOT NULL: it may be null",
        ),
    ],
)
def test_a_schema_that_does_not_fit_a_record_is_refused_when_the_query_is_planned(
    field: StructField, message: str
) -> None:
    """The tasks failed, with an error of Arrow's that named neither column nor record."""
    source = KafkaGroupSource(LEAST)
    for create in (source.reader, source.streamReader):
        with pytest.raises(ConfigurationError, match=message):
            create(StructType([StructField("offset", LongType()), field]))


def test_columns_of_a_record_with_their_types() -> None:
    fields = [
        StructField("topic", StringType(), nullable=False),
        StructField("headers", ArrayType(CONNECTOR_HEADER)),
        StructField("value", BinaryType()),
    ]
    KafkaGroupSource(LEAST).reader(StructType(fields))
    fields[1] = StructField("headers", ArrayType(HEADER))
    KafkaGroupSource(LEAST).reader(StructType(fields))
    with pytest.raises(ConfigurationError, match="the schema has columns twice: value"):
        KafkaGroupSource(LEAST).reader(StructType([*fields, fields[2]]))

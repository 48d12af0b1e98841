"""Rows of a topic into Spark: our source, Spark's own, and ready-made Arrow batches.

python -m tests.bench.spark [--bootstrap HOST:PORT] [--bytes SIZE ...] [--rows N] [--rounds N]

Values of 100 and of 1,000 bytes, two partitions, local[2], without a sink; one after another, round
by round. Ready-made batches show the maximum of a Python source: those of a source that reads
nothing, and those of ours, which fetches as usual but converts nothing. All have the columns of
Spark's own connector, then only the values, and then fields of the values, parsed by the source or
by `from_json`; ours and the ready-made ones are also measured with all of our columns. The CPU time
is that of the JVM and its Python workers. PySpark's Ivy downloads Spark's own connector; if that
fails, it is skipped with a message. The first round, in which the JVM warms up, does not count.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import pyarrow
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import kafkagroup.spark
from kafkagroup import TopicPartition
from kafkagroup.spark.option_values import COLUMNS
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Range
from kafkagroup.spark.source import KafkaGroupSource
from kafkagroup.spark.table import TableReader
from kafkagroup.testing._jars import find_java
from kafkagroup.wire.batch_format import HEADER_SIZE, INT32, LEADER_EPOCH_OFFSET, PREFIX
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.fetch import PartitionData
from kafkagroup.wire.records import read_batches

from . import broker
from .command import TABLE
from .figures import Figure, show, write_table
from .processes import cpu_time

PARTITIONS = 2
ROWS = {100: 6_000_000, 1000: 1_500_000}
"""The bytes of a value -> how many are read: enough that the start of a job does not count."""

BATCH_BYTES = 16_000
"""The values of one produced batch: producers send about 16 KB by default."""

READY_BYTES = 7_000_000
"""The values of a ready-made batch: those of one of our fetches."""

FIELDS = "id bigint, name string, price double, paid boolean"
"""The fields that are parsed."""

SAME = ("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers")
"""The columns that Spark's own connector has."""

JARS = Path(__file__).parents[2] / "build" / "bench" / "spark-jars"
CONNECTOR = (
    # The newest published version; it runs in Spark 4.3 without its dependencies.
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)


def value_of(size: int) -> bytes:
    """Return a value of this many bytes."""
    text = b'{"id": 123456789, "name": "a customer", "price": 12.5, "paid": true, "comment": "%s"}'
    return text % (b"x" * (size + len(b"%s") - len(text)))


class Ready(DataSource):
    """Returns as many rows as the option `rows` says, by repeating one batch; `bytes` are those of
    a value."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        names = self.options["columns"].split(",")
        return ", ".join(f"{name} {COLUMNS[name]}" for name in names)

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(schema, int(self.options["rows"]), int(self.options["bytes"]))


class ReadyReader(DataSourceReader):
    def __init__(self, schema: Any, rows: int, size: int) -> None:
        self._schema = schema
        self._rows = rows
        self._size = size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        count = READY_BYTES // self._size
        batch = ready_rows(schema, count, value_of(self._size))
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, count))
            left -= count


class Fetched(KafkaGroupSource):
    """Our source, with ready-made rows in place of the fetched records."""

    @classmethod
    def name(cls) -> str:
        return "fetched"

    def reader(self, schema: Any) -> DataSourceReader:
        return FetchedReader(self._source(schema), schema)


class FetchedReader(TableReader):
    def read(self, partition: InputPartition | None) -> Iterator[pyarrow.RecordBatch]:
        # `read` imports the class when it is called.
        with mock.patch("kafkagroup.spark.rows.Rows", ReadyRows):
            yield from super().read(partition)


class ReadyRows:
    """Takes the place of `Rows`: looks only at the lengths of the fetched batches."""

    def __init__(self, options: SourceOptions, planned: Range, schema: pyarrow.Schema) -> None:
        self._end = planned.end
        self._schema = schema
        self._ready: pyarrow.RecordBatch | None = None

    def convert(
        self, data: PartitionData, position: int
    ) -> tuple[int, Iterable[pyarrow.RecordBatch]]:
        fetched = memoryview(data.records or b"")
        after, at = position, 0
        while len(fetched) - at >= HEADER_SIZE:
            base_offset, length, _magic = PREFIX.unpack_from(fetched, at)
            next_at = at + LEADER_EPOCH_OFFSET + length
            if next_at > len(fetched):
                break
            (count,) = INT32.unpack_from(fetched, at + HEADER_SIZE - INT32.size)
            after, at = base_offset + count, next_at
        count = min(after, self._end) - position
        if self._ready is None or self._ready.num_rows < count:
            batch = next(read_batches(fetched, topic="", partition=0))
            value = next(batch.records()).value
            assert isinstance(value, bytes)
            self._ready = ready_rows(self._schema, count, value)
        return after, [self._ready.slice(0, count)]


def ready_rows(schema: pyarrow.Schema, count: int, value: bytes) -> pyarrow.RecordBatch:
    """Return `count` equal rows."""
    row = {
        "topic": "bench-12345678",
        "topic_id": "x" * 36,
        "partition": 0,
        "offset": 5,
        "timestamp": datetime.datetime.now(datetime.UTC),
        "timestamp_type": 0,
        "value": value,
        "headers": [],
        "leader_epoch": 0,
        "transactional": False,
    }
    columns = [pyarrow.array([row.get(f.name)] * count, f.type) for f in schema]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def connector() -> list[str]:
    """Return the jars of Spark's own connector. Raises: OSError, SubprocessError if the download
    fails."""
    if not JARS.exists():
        JARS.mkdir(parents=True)
        (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
        dependencies = "".join(
            f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false"'
            ' conf="default"/>'
            for group, name, version in CONNECTOR
        )
        (JARS / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="kafkagroup" module="bench"/>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>"
        )
        arguments = ["-ivy", "ivy.xml", "-confs", "default", "-cache", "ivy"]
        command = [find_java(), "-jar", str(ivy), *arguments, "-retrieve", "[artifact].[ext]"]
        subprocess.run(command, cwd=JARS, capture_output=True, timeout=120, check=True)
    return [str(jar) for jar in sorted(JARS.glob("*.jar"))]


async def fill(bootstrap: str, topic: str, size: int, rows: int) -> None:
    count = BATCH_BYTES // size
    batch = encode_batch([NewRecord(None, value_of(size), 1000 + n) for n in range(count)])
    async with broker.connected(bootstrap) as node:
        for n in range(0, rows // count, PARTITIONS):
            places = range(min(PARTITIONS, rows // count - n))
            await broker.produce(node, {TopicPartition(topic, p): batch for p in places})


def frames(
    spark: Any, bootstrap: str, topic: str, size: int, rows: int
) -> Mapping[tuple[str, str], Callable[[], Any]]:
    """Return what is read, client -> a function that creates its table."""

    def own() -> Any:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("includeHeaders", "true").load()

    def ours(columns: Iterable[str]) -> Any:
        reader = spark.read.format("kafkagroup").option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("columns", ",".join(columns)).load()

    def ready(columns: Iterable[str]) -> Any:
        reader = spark.read.format("ready").option("rows", str(rows)).option("bytes", str(size))
        return reader.option("columns", ",".join(columns)).load()

    def fetched(columns: Iterable[str]) -> Any:
        reader = spark.read.format("fetched").option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("columns", ",".join(columns)).load()

    def parsed() -> Any:
        reader = spark.read.format("kafkagroup").option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("parse", "json").schema(FIELDS).load()

    def by_spark(frame: Any) -> Any:
        return frame.selectExpr(f"from_json(string(value), '{FIELDS}') AS j").select("j.*")

    return {
        ("its columns", "kafkagroup"): partial(ours, SAME),
        ("its columns", "Spark's own"): own,
        ("its columns", "kafkagroup, ready-made rows"): partial(fetched, SAME),
        ("its columns", "ready-made Arrow"): partial(ready, SAME),
        ("all columns", "kafkagroup"): partial(ours, COLUMNS),
        ("all columns", "kafkagroup, ready-made rows"): partial(fetched, COLUMNS),
        ("all columns", "ready-made Arrow"): partial(ready, COLUMNS),
        ("values", "kafkagroup"): partial(ours, ["value"]),
        ("values", "Spark's own"): lambda: own().select("value"),
        ("values", "kafkagroup, ready-made rows"): partial(fetched, ["value"]),
        ("values", "ready-made Arrow"): partial(ready, ["value"]),
        ("JSON fields", "kafkagroup, parse=json"): parsed,
        ("JSON fields", "Spark's own, from_json"): lambda: by_spark(own()),
        ("JSON fields", "from_json of our values"): lambda: by_spark(ours(["value"])),
    }


def measure(spark: Any, bootstrap: str, size: int, rows: int, rounds: int) -> list[Figure]:
    """Return the time and the CPU time of a row of each client."""
    jvm = spark.sparkContext._gateway.proc.pid
    times: dict[tuple[str, str], list[float]] = {}
    cpu: dict[tuple[str, str], list[float]] = {}
    with broker.topic(bootstrap, PARTITIONS) as topic:
        anyio.run(fill, bootstrap, topic, size, rows)
        made = dict(frames(spark, bootstrap, topic, size, rows))
        if not spark.conf.get("spark.jars"):
            made = {which: of for which, of in made.items() if "Spark's own" not in which[1]}
        for n in range(rounds + 1):
            for which, frame in made.items():
                started, used = time.perf_counter(), cpu_time(jvm)
                frame().write.format("noop").mode("overwrite").save()
                took, used = time.perf_counter() - started, cpu_time(jvm) - used
                speed = f"{rows / took:,.0f} rows/s, {used / rows * 1e6:.2f} us of CPU a row"
                print(f"{size} B: {', '.join(which)}: {speed}", file=sys.stderr, flush=True)
                if n:
                    times.setdefault(which, []).append(took / rows * 1e6)
                    cpu.setdefault(which, []).append(used / rows * 1e6)
    return [
        Figure(what=f"{size} B, {read}: us {unit} row", client=client, values=tuple(values))
        for unit, found in (("a", times), ("of CPU a", cpu))
        for (read, client), values in found.items()
    ]


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", help="host:port of a broker; else Apache Kafka on loopback")
    parser.add_argument("--bytes", type=int, nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rows", type=int, help="of each size; else 6 and 1.5 million")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        jars = connector()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"WITHOUT Spark's own connector, which cannot be fetched: {error}", file=sys.stderr)
        jars = []
    figures: list[Figure] = []
    with broker.kafka(given.bootstrap) as bootstrap:
        spark = (
            SparkSession.builder.master(f"local[{PARTITIONS}]")
            .config("spark.ui.enabled", "false")
            .config("spark.jars", ",".join(jars))
            .config("spark.log.level", "ERROR")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        kafkagroup.spark.register(spark)
        spark.dataSource.register(Fetched)
        spark.dataSource.register(Ready)
        for size in given.bytes:
            rows = given.rows or ROWS[size]
            measured = measure(spark, bootstrap, size, rows, given.rounds)
            show(measured)
            figures += measured
        spark.stop()
    write_table(TABLE, figures)


if __name__ == "__main__":
    main()

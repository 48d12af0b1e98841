"""Rows of a topic into Spark: our source, Spark's own, and prepared Arrow batches.

python -m tests.bench.spark [--bootstrap HOST:PORT] [--rows N] [--rounds N]

Values of 100 bytes, two partitions, local[2], without a sink; one after another, round by round.
Prepared batches, from a Python source that reads nothing, are the maximum of any Python source. All
have the columns of Spark's own connector, then only the values, and then fields of the values,
parsed by the source or by `from_json`; ours and the prepared ones are also measured with all of our
columns. PySpark's Ivy downloads Spark's own connector; if that fails,
it is skipped with a message. The first round, in which the JVM warms up, does not count.
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

import anyio
import pyarrow
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import kafkagroup.spark
from kafkagroup import TopicPartition
from kafkagroup.spark.option_values import COLUMNS
from kafkagroup.testing._jars import find_java
from kafkagroup.wire.batch_writing import NewRecord, encode_batch

from . import broker
from .command import TABLE
from .figures import Figure, show

PARTITIONS = 2
BATCH = 150
"""Records of one produced batch: about 16 KB, as producers send by default."""

VALUE = b'{"id": 123456789, "name": "a customer", "price": 12.5, "paid": true, "comment": "%s"}'
VALUE %= b"x" * (102 - len(VALUE))
"""100 bytes."""

FIELDS = "id bigint, name string, price double, paid boolean"
"""The fields that are parsed."""

READY_ROWS = 70_000
"""Rows of a ready-made batch: those of one of our fetches."""

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


class Ready(DataSource):
    """Returns as many rows as the option `rows` says, by repeating one batch."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        names = self.options["columns"].split(",")
        return ", ".join(f"{name} {COLUMNS[name]}" for name in names)

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(schema, int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    def __init__(self, schema: Any, rows: int) -> None:
        self._schema = schema
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        row = {
            "topic": "bench-12345678",
            "topic_id": "x" * 36,
            "partition": 0,
            "offset": 5,
            "timestamp": datetime.datetime.now(datetime.UTC),
            "timestamp_type": 0,
            "value": VALUE,
            "headers": [],
            "leader_epoch": 0,
            "transactional": False,
        }
        schema = to_arrow_schema(self._schema, timezone="UTC")
        columns = [pyarrow.array([row.get(f.name)] * READY_ROWS, f.type) for f in schema]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=schema)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, READY_ROWS))
            left -= READY_ROWS


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


async def fill(bootstrap: str, name: str, rows: int) -> None:
    batch = encode_batch([NewRecord(None, VALUE, 1000 + n) for n in range(BATCH)])
    async with broker.connected(bootstrap) as node:
        for n in range(0, rows // BATCH, PARTITIONS):
            places = range(min(PARTITIONS, rows // BATCH - n))
            await broker.produce(node, {TopicPartition(name, p): batch for p in places})


def frames(spark: Any, bootstrap: str, topic: str, rows: int) -> Mapping[str, Callable[[], Any]]:
    """Return client -> a function that creates its table."""

    def own() -> Any:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("includeHeaders", "true").load()

    def ours(columns: Iterable[str]) -> Any:
        reader = spark.read.format("kafkagroup").option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("columns", ",".join(columns)).load()

    def ready(columns: Iterable[str]) -> Any:
        reader = spark.read.format("ready").option("rows", str(rows))
        return reader.option("columns", ",".join(columns)).load()

    def parsed() -> Any:
        reader = spark.read.format("kafkagroup").option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("parse", "json").schema(FIELDS).load()

    def by_spark(frame: Any) -> Any:
        return frame.selectExpr(f"from_json(string(value), '{FIELDS}') AS j").select("j.*")

    return {
        "kafkagroup": partial(ours, SAME),
        "Spark's own": own,
        "ready-made Arrow": partial(ready, SAME),
        "kafkagroup, all columns": partial(ours, COLUMNS),
        "ready-made Arrow, all columns": partial(ready, COLUMNS),
        "kafkagroup, values": partial(ours, ["value"]),
        "Spark's own, values": lambda: own().select("value"),
        "ready-made Arrow, values": partial(ready, ["value"]),
        "kafkagroup, parse=json": parsed,
        "kafkagroup, from_json": lambda: by_spark(ours(["value"])),
        "Spark's own, from_json": lambda: by_spark(own()),
    }


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", help="host:port of a broker; else Apache Kafka on loopback")
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        jars = connector()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"WITHOUT Spark's own connector, which cannot be fetched: {error}", file=sys.stderr)
        jars = []
    with broker.kafka(given.bootstrap) as bootstrap, broker.topic(bootstrap, PARTITIONS) as topic:
        anyio.run(fill, bootstrap, topic, given.rows)
        spark = (
            SparkSession.builder.master(f"local[{PARTITIONS}]")
            .config("spark.ui.enabled", "false")
            .config("spark.jars", ",".join(jars))
            .config("spark.log.level", "ERROR")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        kafkagroup.spark.register(spark)
        spark.dataSource.register(Ready)
        made = dict(frames(spark, bootstrap, topic, given.rows))
        if not jars:
            made = {client: of for client, of in made.items() if "Spark's own" not in client}
        times: dict[str, list[float]] = {client: [] for client in made}
        for n in range(given.rounds + 1):
            for client, frame in made.items():
                start = time.perf_counter()
                frame().write.format("noop").mode("overwrite").save()
                took = time.perf_counter() - start
                print(f"{client}: {given.rows / took:,.0f} rows/s", file=sys.stderr, flush=True)
                if n:
                    times[client].append(took / given.rows * 1e6)
        spark.stop()
    what = f"{given.rows:,} rows into Spark, us a row"
    figures = [Figure(what=what, client=client, values=tuple(of)) for client, of in times.items()]
    show(figures, TABLE)


if __name__ == "__main__":
    main()

"""Rows of a topic into Spark, and of Spark into a topic: our source and sink, Spark's own, and
ready-made Arrow batches.

python -m tests.bench.spark [--bootstrap HOST:PORT] [--bytes SIZE ...] [--rows N] [--rounds N]
    [--only source|sink]

Values of 100 and of 1,000 bytes, each with a key of 20 bytes and a header, two partitions,
local[2]; one after another, round by round. The sources are read without a sink. Ready-made batches
show the maximum of a Python source: those of a source that reads nothing, and those of ours, which
fetches as usual but converts nothing. All have the columns of Spark's own connector, then only the
values, and then fields of the values, parsed by the source or by `from_json`; ours and the
ready-made ones are also measured with all of our columns. The sinks write rows that Spark
generates; how long that takes alone is measured, too. The CPU time is that of the JVM and its
Python workers. PySpark's Ivy downloads Spark's own connector; if that fails, it is skipped with a
message. The first round, in which the JVM warms up, does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import anyio
from pyspark.sql import SparkSession

import kafkagroup.spark
from kafkagroup import TopicPartition
from kafkagroup.spark.option_values import COLUMNS
from kafkagroup.wire.batch_writing import NewRecord, encode_batch

from . import broker
from .command import TABLE
from .connector import connector
from .figures import Figure, show, write_table
from .processes import cpu_time
from .ready_made import HEADERS, PARTITIONS, Fetched, Ready, key_of, value_of
from .spark_sinks import sinks

ROWS = {100: 6_000_000, 1000: 1_500_000}
"""The bytes of a value -> how many are read: enough that the start of a job does not count."""

WRITTEN = {100: 4_000_000, 1000: 800_000}
"""The same -> how many are written."""

Work = Mapping[tuple[str, str], Callable[[], object]]
"""What is measured, client -> a function that does it once."""

BATCH_BYTES = 16_000
"""The values of one produced batch: producers send about 16 KB by default."""

FIELDS = "id bigint, name string, price double, paid boolean"
"""The fields that are parsed."""

SAME = ("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers")
"""The columns that Spark's own connector has."""


async def fill(bootstrap: str, topic: str, size: int, rows: int) -> None:
    count = BATCH_BYTES // size
    batch = encode_batch(
        [NewRecord(key_of(n), value_of(size), 1000 + n, HEADERS) for n in range(count)]
    )
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

    def ours(columns: Iterable[str], source: str = "kafkagroup") -> Any:
        reader = spark.read.format(source).option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("columns", ",".join(columns)).load()

    def ready(columns: Iterable[str]) -> Any:
        reader = spark.read.format("ready").option("rows", str(rows)).option("bytes", str(size))
        return reader.option("columns", ",".join(columns)).load()

    def parsed() -> Any:
        reader = spark.read.format("kafkagroup").option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).option("parse", "json").schema(FIELDS).load()

    def by_spark(frame: Any) -> Any:
        return frame.selectExpr(f"from_json(string(value), '{FIELDS}') AS j").select("j.*")

    return {
        ("its columns", "kafkagroup"): partial(ours, SAME),
        ("its columns", "Spark's own"): own,
        ("its columns", "ready-made Arrow, fetching"): partial(ours, SAME, "fetched"),
        ("its columns", "ready-made Arrow"): partial(ready, SAME),
        ("all columns", "kafkagroup"): partial(ours, COLUMNS),
        ("all columns", "ready-made Arrow, fetching"): partial(ours, COLUMNS, "fetched"),
        ("all columns", "ready-made Arrow"): partial(ready, COLUMNS),
        ("values", "kafkagroup"): partial(ours, ["value"]),
        ("values", "Spark's own"): lambda: own().select("value"),
        ("values", "ready-made Arrow, fetching"): partial(ours, ["value"], "fetched"),
        ("values", "ready-made Arrow"): partial(ready, ["value"]),
        ("JSON fields", "kafkagroup, parse=json"): parsed,
        ("JSON fields", "Spark's own, from_json"): lambda: by_spark(own()),
        ("JSON fields", "from_json of our values"): lambda: by_spark(ours(["value"])),
    }


def measure_sources(spark: Any, bootstrap: str, size: int, rows: int, rounds: int) -> list[Figure]:
    """Return the time and the CPU time of a row that each client reads."""

    def reading(frame: Callable[[], Any]) -> None:
        frame().write.format("noop").mode("overwrite").save()

    with broker.topic(bootstrap, PARTITIONS) as topic:
        anyio.run(fill, bootstrap, topic, size, rows)
        made = frames(spark, bootstrap, topic, size, rows)
        work = {which: partial(reading, frame) for which, frame in made.items()}
        return measure(spark, work, size, rows, rounds)


def measure(spark: Any, work: Work, size: int, rows: int, rounds: int) -> list[Figure]:
    """Return the time and the CPU time of a row of each client."""
    jvm = spark.sparkContext._gateway.proc.pid
    times: dict[tuple[str, str], list[float]] = {}
    cpu: dict[tuple[str, str], list[float]] = {}
    if not spark.conf.get("spark.jars"):
        work = {which: of for which, of in work.items() if "Spark's own" not in which[1]}
    for n in range(rounds + 1):
        for which, once in work.items():
            started, used = time.perf_counter(), cpu_time(jvm)
            once()
            took, used = time.perf_counter() - started, cpu_time(jvm) - used
            speed = f"{rows / took:,.0f} rows/s, {used / rows * 1e6:.2f} us of CPU a row"
            print(f"{size} B: {', '.join(which)}: {speed}", file=sys.stderr, flush=True)
            if n:
                times.setdefault(which, []).append(took / rows * 1e6)
                cpu.setdefault(which, []).append(used / rows * 1e6)
    return [
        Figure(what=f"{size} B, {what}: us {unit} row", client=client, values=tuple(values))
        for unit, found in (("a", times), ("of CPU a", cpu))
        for (what, client), values in found.items()
    ]


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", help="host:port of a broker; else Apache Kafka on loopback")
    parser.add_argument("--bytes", type=int, nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rows", type=int, help="of each size; else 0.8 to 6 million")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("source", "sink"), help="else both")
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
            measured = []
            if given.only != "sink":
                rows = given.rows or ROWS[size]
                measured += measure_sources(spark, bootstrap, size, rows, given.rounds)
            if given.only != "source":
                rows = given.rows or WRITTEN[size]
                work = sinks(spark, bootstrap, size, rows)
                measured += measure(spark, work, size, rows, given.rounds)
            show(measured)
            figures += measured
        spark.stop()
    write_table(TABLE, figures)


if __name__ == "__main__":
    main()

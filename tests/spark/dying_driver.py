"""A driver that is killed at one point of its second batch, for test_crashes.

python dying_driver.py POINT ADDRESS TOPIC FOLDER

The points, in the order of a batch: "before the offset log", "before the sink", "after the sink",
"before the group", "after the group". Between the sink and the group, the batch's commit is logged.
The JVM and its Python are killed with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kafkagroup.spark.options import parse_options
from kafkagroup.spark.source import KafkaGroupSource
from kafkagroup.spark.stream import StreamReader

ROWS, PER_BATCH = 10, 4
"""Three batches, of 4, 4 and 2 records. The driver is killed in the second."""


class DyingReader(StreamReader):
    """A stream reader that kills the driver and its JVM in the second batch."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        if _rows_before(start) == PER_BATCH:
            die_at("before the offset log")
        if _rows_before(start) == 2 * PER_BATCH:
            die_at("before the group")
        end = super().latestOffset(start, limit)
        if _rows_before(start) == 2 * PER_BATCH:
            die_at("after the group")
        return end


class DyingSource(KafkaGroupSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: Any) -> DyingReader:
        return DyingReader(parse_options(dict(self.options)), schema)


def _rows_before(offsets: dict[str, Any]) -> int:
    """Return how many rows precede these offsets."""
    return sum(at for topic in offsets["topics"].values() for at in topic["offsets"].values())


def die_at(point: str) -> None:
    if os.environ.get("DIE_AT") == point:
        # This process is the driver, or the Python process of the source, which is in no file.
        for pid in map(int, Path(os.environ["PIDS_TO_KILL"]).read_text("ascii").split()):
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def options(address: str, topic: str) -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "subscribe": topic,
        "group.id": topic,  # the group has the topic's name
        "maxRowsPerBatch": str(PER_BATCH),
    }


def start(spark: Any, source: str, address: str, topic: str, folder: Path) -> Any:
    """Return the query, which ends when all available records are read."""

    def write(rows: Any, batch: int) -> None:
        if batch == 1:
            die_at("before the sink")
        # A repeated batch overwrites its earlier output: exactly-once depends on the sink.
        rows.write.mode("overwrite").parquet(str(folder / "out" / f"batch={batch}"))
        if batch == 1:
            die_at("after the sink")

    return (
        spark.readStream.format(source)
        .options(**options(address, topic))
        .load()
        .select("offset")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    point, address, topic, folder = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    pid_file = Path(folder) / "pids"
    # The source runs in a child of the JVM, which inherits this environment.
    os.environ |= {"DIE_AT": point, "PIDS_TO_KILL": str(pid_file)}
    spark: Any = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "500m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    pid_file.write_text(f"{java} {os.getpid()}", "ascii")
    spark.dataSource.register(DyingSource)
    start(spark, "dying", address, topic, Path(folder)).awaitTermination()


if __name__ == "__main__":
    main()

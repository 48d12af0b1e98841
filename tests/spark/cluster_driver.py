"""A driver for test_cluster: a stream on a cluster whose processes are killed while they read.

spark-submit --py-files kafkagroup.zip cluster_driver.py ADDRESS TOPIC FOLDER

A row has the record's partition and offset, the file of the package in the Python worker that read
it, the process of its executor, and how often the task had been tried before.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
from pyspark import TaskContext
from pyspark.sql import SparkSession

import kafkagroup.spark

BATCHES, PER_BATCH = 4, 100
WORKER_DIES, EXECUTOR_DIES = 1, 2
"""In which batch."""

ROW = "partition int, offset bigint, file string, executor int, attempt int"


def options(address: str, topic: str) -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "subscribe": topic,
        "group.id": topic,
        "maxRowsPerBatch": str(PER_BATCH),
        "columns": "partition,offset",
    }


def executor() -> int:
    """Return the process of the executor: the parent of the daemon that forked this worker."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text("ascii").rpartition(")")[2].split()[1])


def with_place(
    batches: Iterable[pyarrow.RecordBatch], victim: Callable[[], int] | None
) -> Iterator[pyarrow.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        if victim and context.attemptNumber() == 0 and context.partitionId() == 0:
            os.kill(victim(), signal.SIGKILL)
        place = (kafkagroup.__file__, pyarrow.scalar(executor(), pyarrow.int32()))
        attempt = pyarrow.scalar(context.attemptNumber(), pyarrow.int32())
        columns = [pyarrow.repeat(value, batch.num_rows) for value in (*place, attempt)]
        names = ["partition", "offset", "file", "executor", "attempt"]
        yield pyarrow.RecordBatch.from_arrays([*batch.columns, *columns], names)


def write(folder: str, rows: Any, batch: int) -> None:
    victim = {WORKER_DIES: os.getpid, EXECUTOR_DIES: executor}.get(batch)
    placed = rows.mapInArrow(partial(with_place, victim=victim), ROW)
    placed.write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")


def main() -> None:
    address, topic, folder = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    kafkagroup.spark.register(spark)
    query = (
        spark.readStream.format("kafkagroup")
        .options(**options(address, topic))
        .load()
        .writeStream.foreachBatch(partial(write, folder))
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    kafkagroup.spark.reconcile(spark, f"{folder}/checkpoint", options(address, topic))
    spark.stop()


if __name__ == "__main__":
    main()

"""A driver for test_cluster: a stream on a cluster whose processes are killed while they read.

spark-submit --py-files kafkagroup.zip cluster_driver.py ADDRESS TOPIC FOLDER VICTIM...

There is a victim for each batch, which is killed with SIGKILL: "python", the Python worker that
reads; "executor", its JVM; "worker", the process of a standalone cluster that has started this
executor; "driver", once the batch is in the sink, but not in the commit log; or "none". A row has
the record's partition and offset, the file of the package in the Python worker that read it, the
process of its executor, and how often the task had been tried before.
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

PER_BATCH = 100

ROW = "partition int, offset bigint, file string, executor int, attempt int"


def options(address: str, topic: str) -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "subscribe": topic,
        "group.id": topic,
        "maxRowsPerBatch": str(PER_BATCH),
        "columns": "partition,offset",
    }


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[1])


def executor() -> int:
    """Return the process of the executor: the parent of the daemon that forked this worker."""
    return parent(os.getppid())


def worker() -> int:
    """Return the process of the worker, which has started the executor."""
    return parent(executor())


def with_place(
    batches: Iterable[pyarrow.RecordBatch], victim: Callable[[], int] | None
) -> Iterator[pyarrow.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        if victim and context.attemptNumber() == 0 and context.partitionId() == 0:
            os.kill(victim(), signal.SIGKILL)
            # The task must not end before the executor does. Its daemon then ends this process.
            signal.pause()
        place = (kafkagroup.__file__, pyarrow.scalar(executor(), pyarrow.int32()))
        attempt = pyarrow.scalar(context.attemptNumber(), pyarrow.int32())
        columns = [pyarrow.repeat(value, batch.num_rows) for value in (*place, attempt)]
        names = ["partition", "offset", "file", "executor", "attempt"]
        yield pyarrow.RecordBatch.from_arrays([*batch.columns, *columns], names)


VICTIMS = {"python": os.getpid, "executor": executor, "worker": worker}


def write(folder: str, victims: list[str], rows: Any, batch: int) -> None:
    placed = rows.mapInArrow(partial(with_place, victim=VICTIMS.get(victims[batch])), ROW)
    placed.write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")
    if victims[batch] == "driver":
        java = rows.sparkSession.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        os.kill(java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    address, topic, folder, *victims = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    kafkagroup.spark.register(spark)
    checkpoint = f"{folder}/checkpoint"
    kafkagroup.spark.reconcile(spark, checkpoint, options(address, topic))
    query = (
        spark.readStream.format("kafkagroup")
        .options(**options(address, topic))
        .load()
        .writeStream.foreachBatch(partial(write, folder, victims))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    kafkagroup.spark.reconcile(spark, checkpoint, options(address, topic))
    spark.stop()


if __name__ == "__main__":
    main()

"""A client of Spark Connect, for test_connect: uses the package in several ways, one by one.

connect_client.py [--send PACKAGE] REMOTE ADDRESS TOPIC FOLDER USE...

PACKAGE is an archive to send to the server. A use is the name of a method of `Uses`. TOPIC has two
partitions of 10 records; TOPIC-json has some, TOPIC-copy and TOPIC-new have none. Writes
FOLDER/outcomes.json: what each use has returned, or the type and text of its error. The name of a
group is TOPIC and a use. Prints each use as it begins, and what all threads do if one use takes
`SLOW_USE` seconds.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.sql import SparkSession

import kafkagroup.spark
from kafkagroup import TopicPartition
from kafkagroup.spark import CommitListener, history, pipeline, reconcile
from kafkagroup.spark.lag import lag
from kafkagroup.spark.latest_commits import latest_commits
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import parse_options

PER_BATCH, COUNT = 8, 10
SLOW_USE = 240


class LastingListener(CommitListener):
    """Notes that it has got the last event of its query."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.query_ended = Event()

    def onQueryTerminated(self, event: Any) -> None:
        super().onQueryTerminated(event)
        self.query_ended.set()


class Uses:
    def __init__(self, spark: Any, address: str, topic: str, folder: Path) -> None:
        self.spark, self.topic, self.folder = spark, topic, folder
        self.connection = {"bootstrap.servers": address}

    def read(self, **options: str) -> Any:
        return self.spark.read.format("kafkagroup").options(**self.connection, **options)

    def options(self, use: str) -> dict[str, str]:
        return {
            **self.connection,
            "subscribe": self.topic,
            "group.id": f"{self.topic}-{use}",
            "maxRowsPerBatch": str(PER_BATCH),
        }

    def stream(self, use: str, **more: str) -> Any:
        return self.spark.readStream.format("kafkagroup").options(**self.options(use) | more)

    def checkpoint(self, use: str) -> str:
        return str(self.folder / f"{use}-checkpoint")

    def run(self, use: str, writer: Any) -> list[int]:
        """Run a query with all available records; return the number of rows in each batch."""
        checkpoint = self.checkpoint(use)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]

    def to_files(self, use: str, **more: str) -> list[int]:
        rows = self.stream(use, **more).load().select("partition", "offset")
        sink = rows.writeStream.format("parquet").option("path", str(self.folder / use))
        return self.run(use, sink)

    def append_to(self, topic: str) -> None:
        rows = self.spark.createDataFrame([(b"k", b"v")], "key binary, value binary")
        sink = rows.write.format("kafkagroup").options(**self.connection, topic=topic)
        sink.mode("append").save()

    def wait_for_commits(self, group: str) -> None:
        """Wait until the group has committed the whole topic."""
        partitions = [TopicPartition(self.topic, p) for p in range(2)]
        deadline = time.monotonic() + 120
        with Logs(parse_options(self.options("any"))) as session:
            while True:
                found = session.committed(group, partitions)
                if [committed.offset for committed in found.values()] == [COUNT] * 2:
                    return
                assert time.monotonic() < deadline, found
                time.sleep(0.1)

    # ------------------------------------------------------------ the uses

    def table(self) -> Any:
        rows = self.read(subscribe=self.topic).load().collect()
        return sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows)

    def values_as_json(self) -> Any:
        reader = self.read(subscribe=f"{self.topic}-json", parse="json", columns="offset")
        rows = reader.schema("offset bigint, id bigint, name string").load()
        return [list(row) for row in rows.collect()]

    def unknown_option(self) -> Any:
        return self.read(subscribe=self.topic, column="value").load().count()

    def to_topic(self) -> Any:
        rows = self.stream("to_topic").load().select("key", "value")
        sink = rows.writeStream.format("kafkagroup").options(**self.connection)
        batches = self.run("to_topic", sink.option("topic", f"{self.topic}-copy"))
        return batches, self.read(subscribe=f"{self.topic}-copy").load().count()

    def for_each_batch(self) -> Any:
        folder = str(self.folder / "for_each_batch")

        def write(rows: Any, batch: int) -> None:
            rows.write.mode("overwrite").parquet(f"{folder}/batch={batch}")

        rows = self.stream("for_each_batch").load().select("partition", "offset")
        batches = self.run("for_each_batch", rows.writeStream.foreachBatch(write))
        return batches, self.spark.read.parquet(folder).count()

    def reconciled(self) -> Any:
        """What `reconcile` commits before a query, after it, after a second run, and again."""
        topic, checkpoint = f"{self.topic}-new", self.checkpoint("reconciled")
        options = self.options("reconciled") | {"subscribe": topic}

        def new() -> list[int]:
            return list(reconcile(self.spark, checkpoint, options).values())

        found = [new()]
        for _ in range(2):
            self.append_to(topic)
            self.to_files("reconciled", subscribe=topic, commit="off")
            found.append(new())
        return [*found, new()]

    def listener(self) -> Any:
        """The batches, once the listener has committed the last one."""
        listener = LastingListener(self.options("listener"))
        self.spark.streams.addListener(listener)
        try:
            batches = self.to_files("listener", commit="listener")
            self.wait_for_commits(f"{self.topic}-listener")
        finally:
            # If an event came meanwhile, Spark would wait for its own thread for ever.
            assert listener.query_ended.wait(120), "no event has reported the end of the query"
            self.spark.streams.removeListener(listener)
        return batches

    def commits(self) -> Any:
        rows = history.commits(history.events(self.spark, self.connection)).where(
            f"group_id = '{self.topic}-reconciled'"
        )
        return sorted(row.offset for row in rows.collect())

    def lags(self) -> Any:
        rows = history.commits(history.events(self.spark, self.connection)).where(
            f"group_id = '{self.topic}-to_topic'"
        )
        found = lag(self.spark, self.connection, latest_commits(rows)).collect()
        return sorted([row.partition, row.lag] for row in found)

    def pipeline(self) -> Any:
        return pipeline.run(self.spark, self.connection, str(self.folder / "pipeline"))

    def table_exists(self) -> Any:
        return pipeline.Tables(self.spark, str(self.folder)).exists("lag")


def outcome(use: Callable[[], Any]) -> dict[str, Any]:
    print(f"{time.strftime('%H:%M:%S')} {use.__name__}", flush=True)
    faulthandler.dump_traceback_later(SLOW_USE)
    try:
        return {"returned": use()}
    except Exception as error:
        return {"raised": type(error).__name__, "text": str(error)}
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    arguments = sys.argv[1:]
    package = arguments.pop(1) if arguments[0] == "--send" else None
    if package is not None:
        del arguments[0]
    remote, address, topic, folder, *names = arguments
    spark: Any = SparkSession.builder.remote(remote).getOrCreate()
    if package is not None:
        spark.addArtifacts(package, pyfile=True)
    kafkagroup.spark.register(spark)
    uses = Uses(spark, address, topic, Path(folder))
    outcomes = {name: outcome(getattr(uses, name)) for name in names}
    (Path(folder) / "outcomes.json").write_text(json.dumps(outcomes, default=repr), "utf-8")
    spark.stop()


if __name__ == "__main__":
    main()

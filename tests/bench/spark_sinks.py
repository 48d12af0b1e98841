"""Rows that Spark generates, written to a topic by our sink and by Spark's own.

Each write has a topic of its own, which is deleted after it: the disk has room for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from . import broker
from .ready_made import HEADERS, PARTITIONS, value_of

__all__ = ["sinks"]


def sinks(
    spark: Any, bootstrap: str, size: int, rows: int
) -> Mapping[tuple[str, str], Callable[[], None]]:
    """Return what is written, client -> a function that writes the rows once."""
    frame = generated(spark, size, rows)

    def write(form: str, servers: str) -> None:
        with broker.topic(bootstrap, PARTITIONS) as topic:
            writer = frame.write.format(form).mode("append").option(servers, bootstrap)
            writer.option("topic", topic).save()

    def generate() -> None:
        frame.write.format("noop").mode("overwrite").save()

    return {
        ("written", "kafkagroup"): partial(write, "kafkagroup", "bootstrap.servers"),
        ("written", "Spark's own"): partial(write, "kafka", "kafka.bootstrap.servers"),
        ("written", "no sink: generated only"): generate,
    }


def generated(spark: Any, size: int, rows: int) -> Any:
    """Return rows with keys of 20 bytes, values of `size` bytes, and a header."""
    ((name, value),) = HEADERS
    header = f"struct('{name}' AS key, X'{value.hex()}' AS value)"
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "CAST(lpad(CAST(id AS STRING), 20, '0') AS BINARY) AS key",
        f"X'{value_of(size).hex()}' AS value",
        f"array({header}) AS headers",
    )

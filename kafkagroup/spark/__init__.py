"""PySpark: read and write Kafka topics as tables and streams, and commit offsets to the group.

```python
kafkagroup.spark.register(spark)
orders = spark.read.format("kafkagroup").option("bootstrap.servers", "localhost:9092").option(
    "subscribe", "orders").load()
```

No connector in the JVM is needed: this library decodes the records into Arrow. The driver and every
executor need the extra `spark`. The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkagroup._extras import load_or_stand_in

if TYPE_CHECKING:
    from kafkagroup.spark.commits import CommitListener, reconcile
    from kafkagroup.spark.source import KafkaGroupSource, register
    from kafkagroup.spark.stream_metrics import MetricsListener, Spread, StreamMetrics

__all__ = [
    "CommitListener",
    "KafkaGroupSource",
    "MetricsListener",
    "Spread",
    "StreamMetrics",
    "reconcile",
    "register",
]

_HOMES = {
    "CommitListener": "commits",
    "KafkaGroupSource": "source",
    "MetricsListener": "stream_metrics",
    "Spread": "stream_metrics",
    "StreamMetrics": "stream_metrics",
    "reconcile": "commits",
    "register": "source",
}
"""Public name -> the module of this package that defines it."""


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'kafkagroup.spark' has no attribute {name!r}")
        return load_or_stand_in("kafkagroup.spark", _HOMES[name], name, extra="spark")


def __dir__() -> list[str]:
    return sorted(__all__)

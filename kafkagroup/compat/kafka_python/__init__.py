"""Classes with the names and methods of kafka-python: coordinators, heartbeats, tasks and metrics.

```python
from kafkagroup.compat.kafka_python import (
    ConsumerCoordinator, KafkaClient, Metrics, SubscriptionState
)

subscription = SubscriptionState()
subscription.subscribe(topics=["orders"])
async with ConsumerCoordinator(KafkaClient(), subscription, Metrics(), group_id="billing") as c:
    await c.ensure_active_group()
    async for record in c.consumer:
        ...
```
"""

from kafkagroup._public import late_names
from kafkagroup.compat.kafka_python.base import BaseCoordinator, HeartbeatTask
from kafkagroup.compat.kafka_python.client import KafkaClient, SubscriptionState
from kafkagroup.compat.kafka_python.consumer import AutoCommitTask, ConsumerCoordinator
from kafkagroup.compat.kafka_python.future import Future
from kafkagroup.compat.kafka_python.heartbeat import Heartbeat
from kafkagroup.compat.kafka_python.metrics import (
    ConsumerCoordinatorMetrics,
    GroupCoordinatorMetrics,
    KafkaMetric,
    MetricName,
    Metrics,
)

__all__ = [
    "AutoCommitTask",
    "BaseCoordinator",
    "ConsumerCoordinator",
    "ConsumerCoordinatorMetrics",
    "Future",
    "GroupCoordinatorMetrics",
    "Heartbeat",
    "HeartbeatTask",
    "KafkaClient",
    "KafkaMetric",
    "MetricName",
    "Metrics",
    "SubscriptionState",
]

__getattr__ = late_names(__name__, {})

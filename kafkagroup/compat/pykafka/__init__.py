"""pykafka's names: membership protocols, the broker and the balanced consumers.

```python
from kafkagroup.compat.pykafka import ManagedBalancedConsumer

async with ManagedBalancedConsumer("orders", "localhost:9092", b"billing") as consumer:
    async for message in consumer:
        await bill(message.value)
```
"""

from kafkagroup._public import late_names
from kafkagroup.compat.pykafka.broker import Broker
from kafkagroup.compat.pykafka.consumer import BalancedConsumer, ManagedBalancedConsumer
from kafkagroup.compat.pykafka.membership import (
    GroupMembershipProtocol,
    RangeProtocol,
    RoundRobinProtocol,
    decide_partitions_range,
    decide_partitions_roundrobin,
)
from kafkagroup.compat.pykafka.protocol import (
    BrokerMetadata,
    Cluster,
    MemberAssignment,
    Message,
    OffsetType,
    PartitionFetchRequest,
    PartitionOffsetCommitRequest,
    PartitionOffsetFetchRequest,
    PartitionOffsetRequest,
    ProduceRequest,
)

__all__ = [
    "BalancedConsumer",
    "Broker",
    "BrokerMetadata",
    "Cluster",
    "GroupMembershipProtocol",
    "ManagedBalancedConsumer",
    "MemberAssignment",
    "Message",
    "OffsetType",
    "PartitionFetchRequest",
    "PartitionOffsetCommitRequest",
    "PartitionOffsetFetchRequest",
    "PartitionOffsetRequest",
    "ProduceRequest",
    "RangeProtocol",
    "RoundRobinProtocol",
    "decide_partitions_range",
    "decide_partitions_roundrobin",
]

__getattr__ = late_names(__name__, {})

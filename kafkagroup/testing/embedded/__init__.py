"""A Kafka broker in this process, on loopback: for tests, demonstrations and simulation.

It responds as Apache Kafka 4.3.1 does: `tests/verification/model` sends the same requests to both
and compares the responses. These differences are intentional:

- There are no share groups, and no streams groups.
- The markers of a transaction are written to all its partitions together: at once, or after
  `transaction_marker_delay`. Two-phase commits do not exist.
- All members of a group use the same protocol, classic or KIP-848. Kafka lets a group migrate
  member by member.
- There are no quotas and no ACLs: DescribeAcls returns none, and everything is allowed. Neither
  records nor a group's committed offsets expire (see `EmbeddedKafka.expire_offsets`).
- `__consumer_offsets` and `__transaction_state` are created by the first FindCoordinator of a group
  or a transactional id, and stay empty.
- All options of topics can be set and described, without their documentation. The options of
  brokers are those of `BrokerSettings`, and do not change while the cluster runs. These options of
  topics have an effect: `max.message.bytes`, `min.insync.replicas`, `message.timestamp.type`,
  `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms` (there is no limit unless
  the topic sets one), and `cleanup.policy` (with `compact`, records need a key; without `delete`,
  DeleteRecords is refused).
- Every node has an up-to-date replica of every partition: the high watermark is the log's end.
  A node that takes over partitions or groups does so at once, and never returns
  COORDINATOR_LOAD_IN_PROGRESS.
- Member metadata that is not a valid subscription is accepted. Kafka, too, accepts it, unless a
  length in it is too large: then Kafka returns UNKNOWN_SERVER_ERROR, and drops the waiting members.
- Members are listed in the order in which they joined, and the oldest eligible member becomes the
  leader. In Kafka both depend on the order of a hash table, and so does the order of topics in some
  responses.
- At the limit of fetch sessions, only a session that was not used for two minutes is evicted. Kafka
  also lets larger sessions and those of followers evict others.
- Patterns of transactional ids in ListTransactions are read by Python's `re`, not by RE2J.
- The texts of error messages are not Kafka's.
"""

from kafkagroup.testing.embedded.faults import (
    Change,
    Close,
    Delay,
    Fault,
    Late,
    Swallow,
    Throttle,
)
from kafkagroup.testing.embedded.kafka import EmbeddedKafka
from kafkagroup.testing.embedded.producer_states import ProducerState
from kafkagroup.testing.embedded.server import Seen
from kafkagroup.testing.embedded.settings import BrokerSettings

__all__ = [
    "BrokerSettings",
    "Change",
    "Close",
    "Delay",
    "EmbeddedKafka",
    "Fault",
    "Late",
    "ProducerState",
    "Seen",
    "Swallow",
    "Throttle",
]

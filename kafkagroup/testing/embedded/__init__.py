"""A Kafka broker in this process, on loopback: for tests, demonstrations and simulation.

It answers as Apache Kafka 4.3.1 does: `tests/model` plays the same requests on both and compares
the answers. Where it does not, it is on purpose, and stands here:

- It has no share or streams groups, no transactions and no producer ids: what is committed is
  stable, what is appended is committed, and a producer that wants idempotence finds no API.
- The members of a group are all classic, or all of KIP-848. Kafka lets a group move from one to the
  other member by member.
- It has no ACLs, quotas or settings of topics, and neither OffsetDelete nor DeleteRecords by
  request. Nothing expires: not records, nor offsets of groups (`EmbeddedKafka.expire_offsets`).
- Every node has a copy of every partition, and no copy lags: the high watermark is the log's end.
  A node that takes over partitions or groups does so at once, and is never "loading".
- What members bring is never read. Kafka reads the subscriptions of groups of type "consumer", and
  one whose lengths are beyond its end makes it answer UNKNOWN_SERVER_ERROR and forget who waits.
- Members are told in the order in which they came, and of several that may lead next the oldest
  does. Kafka leaves both to a hash table, as it does with the order of topics in some answers.
- Of fetch sessions beyond the limit, none makes room that was used in the last two minutes; Kafka
  also lets large ones of followers take the place of others.
- What errors say to people is not Kafka's wording.
"""

from kafkagroup.testing.embedded.faults import Close, Delay, Fault, Swallow, Throttle
from kafkagroup.testing.embedded.kafka import EmbeddedKafka
from kafkagroup.testing.embedded.server import Seen
from kafkagroup.testing.embedded.settings import BrokerSettings

__all__ = [
    "BrokerSettings",
    "Close",
    "Delay",
    "EmbeddedKafka",
    "Fault",
    "Seen",
    "Swallow",
    "Throttle",
]

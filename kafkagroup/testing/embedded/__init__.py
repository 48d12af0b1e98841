"""A Kafka broker in this process, on loopback: for tests, demonstrations and simulation."""

from kafkagroup.testing.embedded.faults import Close, Delay, Fault, Swallow
from kafkagroup.testing.embedded.kafka import EmbeddedKafka
from kafkagroup.testing.embedded.server import Seen
from kafkagroup.testing.embedded.settings import BrokerSettings

__all__ = ["BrokerSettings", "Close", "Delay", "EmbeddedKafka", "Fault", "Seen", "Swallow"]

# Written by docs/site/made.py from the table in __init__.py.

from kafkagroup._signals import open_signal_receiver
from kafkagroup.admin import Admin
from kafkagroup.consume.delivery import Batch
from kafkagroup.consumer import Consumer
from kafkagroup.consuming_transactions import ConsumingTransaction
from kafkagroup.coordination import Election, Leadership, ShardAssignment, Shards
from kafkagroup.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    BufferFullError,
    ChangesRefusedError,
    ClosedError,
    CommitFailedError,
    ConfigurationError,
    DeserializationError,
    ErrorCode,
    FencedError,
    KafkaGroupError,
    NoOffsetError,
    NotAssignedError,
    NotWrittenError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransportError,
)
from kafkagroup.group import GroupMember, GroupProtocol
from kafkagroup.producer import Producer
from kafkagroup.runtime.consume.busy import ConsumerBusyError
from kafkagroup.runtime.consume.health import Health, HealthFinding, HealthProblem
from kafkagroup.runtime.consume.loads_file import LoadsFile
from kafkagroup.runtime.member.event_feed import GroupEvents
from kafkagroup.runtime.member.generations import Generation
from kafkagroup.runtime.member.metrics import GroupMetrics, RequestMetrics
from kafkagroup.runtime.produce.metrics import ProducerMetrics
from kafkagroup.runtime.produce.record_future import RecordFuture
from kafkagroup.transaction import Transaction
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.sasl.oauthbearer import Token
from kafkagroup.transport.security import Security
from kafkagroup.types import OffsetAndMetadata, Record, RecordMetadata, TopicPartition
from kafkagroup.wire.compression import Codec
from kafkagroup.zookeeper.membership import ZooKeeperMembership

__all__ = [
    "Admin",
    "AuthenticationError",
    "AuthorizationError",
    "Batch",
    "BrokerError",
    "BufferFullError",
    "ChangesRefusedError",
    "ClosedError",
    "Codec",
    "CommitFailedError",
    "ConfigurationError",
    "Consumer",
    "ConsumerBusyError",
    "ConsumingTransaction",
    "DeserializationError",
    "Election",
    "ErrorCode",
    "FencedError",
    "Generation",
    "GroupEvents",
    "GroupMember",
    "GroupMetrics",
    "GroupProtocol",
    "Health",
    "HealthFinding",
    "HealthProblem",
    "KafkaGroupError",
    "Leadership",
    "LoadsFile",
    "NoOffsetError",
    "Node",
    "NotAssignedError",
    "NotWrittenError",
    "OffsetAndMetadata",
    "OffsetOutOfRangeError",
    "Producer",
    "ProducerFencedError",
    "ProducerMetrics",
    "Record",
    "RecordFuture",
    "RecordMetadata",
    "RequestMetrics",
    "Security",
    "ShardAssignment",
    "Shards",
    "Token",
    "TopicPartition",
    "Transaction",
    "TransactionAbortedError",
    "TransactionOutcomeUnknownError",
    "TransportError",
    "ZooKeeperMembership",
    "open_signal_receiver",
]

__compiled__: bool
__version__: str

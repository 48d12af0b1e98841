"""kafkagroup: Kafka group coordination for asyncio and trio.

Here are the clients, their arguments and results, and the errors that applications catch. All
errors are in `kafkagroup.errors`, events in `kafkagroup.events`, single requests in
`kafkagroup.broker`, encoders and decoders in `kafkagroup.wire`. Each name is imported on first use
(PEP 562), so `import kafkagroup` is fast.
"""

from __future__ import annotations

import os
from importlib import import_module

from kafkagroup._public import late_names, names_in_all

_HOMES = {
    "_signals": ("open_signal_receiver",),
    "admin": ("Admin",),
    "consume.delivery": ("Batch",),
    "consumer": ("Consumer",),
    "consuming_transactions": ("ConsumingTransaction",),
    "coordination": ("Election", "Leadership", "ShardAssignment", "Shards"),
    "errors": (
        "AuthenticationError",
        "AuthorizationError",
        "BrokerError",
        "BufferFullError",
        "ChangesRefusedError",
        "ClosedError",
        "CommitFailedError",
        "ConfigurationError",
        "DeserializationError",
        "ErrorCode",
        "FencedError",
        "KafkaGroupError",
        "NoOffsetError",
        "NotAssignedError",
        "NotWrittenError",
        "OffsetOutOfRangeError",
        "ProducerFencedError",
        "TransactionAbortedError",
        "TransactionOutcomeUnknownError",
        "TransportError",
    ),
    "group": ("GroupMember", "GroupProtocol"),
    "producer": ("Producer",),
    "runtime.consume.busy": ("ConsumerBusyError",),
    "runtime.consume.health": ("Health", "HealthFinding", "HealthProblem"),
    "runtime.consume.loads_file": ("LoadsFile",),
    "runtime.member.event_feed": ("GroupEvents",),
    "runtime.member.generations": ("Generation",),
    "runtime.member.metrics": ("GroupMetrics", "RequestMetrics"),
    "runtime.produce.metrics": ("ProducerMetrics",),
    "runtime.produce.record_future": ("RecordFuture",),
    "transaction": ("Transaction",),
    "transport.metadata": ("Node",),
    "transport.sasl.oauthbearer": ("Token",),
    "transport.security": ("Security",),
    "types": ("OffsetAndMetadata", "Record", "RecordMetadata", "TopicPartition"),
    "wire.compression": ("Codec",),
    "zookeeper.membership": ("ZooKeeperMembership",),
}
"""Module in `kafkagroup` -> the names that are imported from it. Type checkers read them in
`__init__.pyi`, which `docs/site/made.py` writes from this table."""

__all__ = sorted(name for names in _HOMES.values() for name in names)

if os.environ.get("KAFKAGROUP_PURE"):
    # Import the Python sources, not compiled modules.
    import_module("kafkagroup._pure").install()
elif os.path.exists(os.path.join(os.path.dirname(__file__), "_in_place.txt")):
    # A source tree whose modules are compiled in place: refuse modules that are outdated.
    import_module("kafkagroup._in_place").check()

__getattr__ = late_names(
    __name__,
    {
        "__compiled__": "kafkagroup.wire.records.COMPILED",
        "__version__": "kafkagroup._version.VERSION",
        **{name: f"kafkagroup.{home}.{name}" for home, names in _HOMES.items() for name in names},
    },
)
__dir__ = names_in_all(__name__)

"""kafkagroup: Kafka group coordination for asyncio and trio.

This module has the public names. Each is imported on first use (PEP 562), so `import kafkagroup` is
fast.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkagroup._signals import open_signal_receiver
    from kafkagroup.admin import Admin
    from kafkagroup.broker import Broker
    from kafkagroup.consume.delivery import Batch
    from kafkagroup.consumer import Consumer
    from kafkagroup.coordination import (
        Election,
        Leader,
        Leaders,
        Leadership,
        MemberOptions,
        ShardAssignment,
        Shards,
    )
    from kafkagroup.errors import (
        AuthenticationError,
        AuthorizationError,
        BrokerError,
        ChangesRefusedError,
        ClosedError,
        ClusterChangedError,
        CommitFailedError,
        ConfigurationError,
        ConnectionLostError,
        CorruptRecordError,
        DecodeError,
        DeserializationError,
        ErrorCode,
        FencedError,
        IllegalStateError,
        JoinFailedError,
        KafkaGroupError,
        LimitExceededError,
        LocalProtocolError,
        NoBrokersAvailableError,
        NoOffsetError,
        NotAssignedError,
        NotStartedError,
        NotWrittenError,
        OffsetOutOfRangeError,
        RecordRefusedError,
        RemoteProtocolError,
        RequestTimeoutError,
        TlsError,
        TransportError,
        UnsupportedVersionError,
    )
    from kafkagroup.events import (
        CoordinatorFound,
        EventsMissed,
        GroupEvent,
        GroupLeft,
        MembershipLost,
        RebalanceCause,
        Rebalanced,
        RebalancePhases,
        RebalanceStarted,
        TroubleEnded,
        TroubleReported,
    )
    from kafkagroup.group import GroupMember, GroupProtocol
    from kafkagroup.runtime.consume.busy import ConsumerBusyError
    from kafkagroup.runtime.consume.health import Health, HealthFinding, HealthProblem
    from kafkagroup.runtime.consume.loads_file import LoadsFile
    from kafkagroup.runtime.member.event_feed import GroupEvents
    from kafkagroup.runtime.member.generations import Generation
    from kafkagroup.runtime.member.metrics import GroupMetrics, RequestMetrics
    from kafkagroup.transport.metadata import Node
    from kafkagroup.transport.options import ClientOptions
    from kafkagroup.transport.sasl.oauthbearer import Token
    from kafkagroup.transport.security import InsecureConnectionWarning, Security
    from kafkagroup.types import (
        GroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Record,
        TimestampType,
        TopicPartition,
    )
    from kafkagroup.wire.batch_writing import NewRecord, encode_batch
    from kafkagroup.wire.compression import Codec
    from kafkagroup.wire.embedded_protocol import (
        Subscription,
        decode_assignment,
        decode_subscription,
        encode_assignment,
        encode_subscription,
    )
    from kafkagroup.wire.record_decoding import decode_records
    from kafkagroup.zookeeper.membership import ZooKeeperMembership

    __compiled__: bool
    """Whether the hot path is compiled; if not, it behaves the same, but is slower."""
    __version__: str

__all__ = [
    "Admin",
    "AuthenticationError",
    "AuthorizationError",
    "Batch",
    "Broker",
    "BrokerError",
    "ChangesRefusedError",
    "ClientOptions",
    "ClosedError",
    "ClusterChangedError",
    "Codec",
    "CommitFailedError",
    "ConfigurationError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerBusyError",
    "CoordinatorFound",
    "CorruptRecordError",
    "DecodeError",
    "DeserializationError",
    "Election",
    "ErrorCode",
    "EventsMissed",
    "FencedError",
    "Generation",
    "GroupEvent",
    "GroupEvents",
    "GroupLeft",
    "GroupMember",
    "GroupMetadata",
    "GroupMetrics",
    "GroupProtocol",
    "Health",
    "HealthFinding",
    "HealthProblem",
    "IllegalStateError",
    "InsecureConnectionWarning",
    "JoinFailedError",
    "KafkaGroupError",
    "Leader",
    "Leaders",
    "Leadership",
    "LimitExceededError",
    "LoadsFile",
    "LocalProtocolError",
    "MemberOptions",
    "MembershipLost",
    "NewRecord",
    "NoBrokersAvailableError",
    "NoOffsetError",
    "Node",
    "NotAssignedError",
    "NotStartedError",
    "NotWrittenError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "RebalanceCause",
    "RebalancePhases",
    "RebalanceStarted",
    "Rebalanced",
    "Record",
    "RecordRefusedError",
    "RemoteProtocolError",
    "RequestMetrics",
    "RequestTimeoutError",
    "Security",
    "ShardAssignment",
    "Shards",
    "Subscription",
    "TimestampType",
    "TlsError",
    "Token",
    "TopicPartition",
    "TransportError",
    "TroubleEnded",
    "TroubleReported",
    "UnsupportedVersionError",
    "ZooKeeperMembership",
    "decode_assignment",
    "decode_records",
    "decode_subscription",
    "encode_assignment",
    "encode_batch",
    "encode_subscription",
    "open_signal_receiver",
]

_HOMES = {
    "Admin": "admin",
    "Batch": "consume.delivery",
    "Broker": "broker",
    "ClientOptions": "transport.options",
    "Codec": "wire.compression",
    "Consumer": "consumer",
    "ConsumerBusyError": "runtime.consume.busy",
    "Generation": "runtime.member.generations",
    "GroupMember": "group",
    "GroupMetadata": "types",
    "GroupMetrics": "runtime.member.metrics",
    "GroupProtocol": "group",
    "RebalanceCause": "events",
    "CoordinatorFound": "events",
    "EventsMissed": "events",
    "GroupLeft": "events",
    "MembershipLost": "events",
    "RebalancePhases": "events",
    "RebalanceStarted": "events",
    "Rebalanced": "events",
    "GroupEvent": "events",
    "TroubleEnded": "events",
    "TroubleReported": "events",
    "GroupEvents": "runtime.member.event_feed",
    "HealthFinding": "runtime.consume.health",
    "Health": "runtime.consume.health",
    "HealthProblem": "runtime.consume.health",
    "Election": "coordination",
    "Leader": "coordination",
    "Leaders": "coordination",
    "Leadership": "coordination",
    "LoadsFile": "runtime.consume.loads_file",
    "MemberOptions": "coordination",
    "NewRecord": "wire.batch_writing",
    "Node": "transport.metadata",
    "OffsetAndMetadata": "types",
    "OffsetAndTimestamp": "types",
    "InsecureConnectionWarning": "transport.security",
    "Record": "types",
    "RequestMetrics": "runtime.member.metrics",
    "Security": "transport.security",
    "Shards": "coordination",
    "ShardAssignment": "coordination",
    "Subscription": "wire.embedded_protocol",
    "TimestampType": "types",
    "Token": "transport.sasl.oauthbearer",
    "TopicPartition": "types",
    "decode_assignment": "wire.embedded_protocol",
    "decode_records": "wire.record_decoding",
    "decode_subscription": "wire.embedded_protocol",
    "encode_assignment": "wire.embedded_protocol",
    "encode_batch": "wire.batch_writing",
    "encode_subscription": "wire.embedded_protocol",
    "open_signal_receiver": "_signals",
    "ZooKeeperMembership": "zookeeper.membership",
}


def _check_compiled() -> None:
    """Refuse to import compiled modules that do not match the sources beside them.

    Python prefers a compiled module to its source, even an outdated one, so edits would silently
    have no effect. The same holds for modules whose source is no longer compiled. Only source trees
    have the list `_in_place.txt`; see setup.py. Raises: ImportError.
    """
    here = os.path.dirname(__file__)
    try:
        with open(os.path.join(here, "_in_place.txt"), encoding="utf-8") as lines:
            compiled = [line.split() for line in lines]
    except (FileNotFoundError, NotADirectoryError):  # the latter in a zip, as Spark ships packages
        return
    from importlib.machinery import EXTENSION_SUFFIXES
    from zlib import crc32

    # This Python does not load modules of other versions; their sources may no longer exist.
    compiled = [line for line in compiled if line[0] == EXTENSION_SUFFIXES[0]]
    top = os.path.dirname(here)
    for _, name, crc in compiled:
        try:
            with open(os.path.join(top, name), "rb") as source:
                fresh = crc32(source.read()) == int(crc)
        except FileNotFoundError:
            fresh = False
        if not fresh:
            raise ImportError(f"{name} has changed since it was compiled; run `make compile`")
    # On Windows the list has other separators than the folders below.
    listed = {os.path.normpath(f"{top}/{name}").removesuffix(".py") for _, name, _ in compiled}
    for directory, subdirectories, files in os.walk(here):
        subdirectories[:] = [name for name in subdirectories if name != "__pycache__"]
        for file in files:
            if file.endswith(EXTENSION_SUFFIXES[0]):
                path = os.path.join(directory, file)
                if path.removesuffix(EXTENSION_SUFFIXES[0]) not in listed:
                    raise ImportError(f"{path} is of an older build; run `make compile`")


if os.environ.get("KAFKAGROUP_PURE"):
    import_module("kafkagroup._pure").install()
else:
    _check_compiled()


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name):
        if name == "__compiled__":
            return import_module("kafkagroup.wire.records").COMPILED
        if name == "__version__":
            return import_module("kafkagroup._version").VERSION
        if name not in __all__:
            # Not a module, which `from kafkagroup import ...` looks for here.
            if name[0].isupper() or name.endswith("_assignor"):
                raise import_module("kafkagroup._foreign_names").unknown_import(__name__, name)
            raise AttributeError(f"module 'kafkagroup' has no attribute {name!r}")
        module = import_module(f"kafkagroup.{_HOMES.get(name, 'errors')}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)

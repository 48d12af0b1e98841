"""kafkagroup: Kafka group coordination for asyncio and trio.

The public names; each is imported on first use (PEP 562), so that `import kafkagroup` costs little.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkagroup.admin import Admin
    from kafkagroup.consume.delivery import Batch
    from kafkagroup.consumer import Consumer
    from kafkagroup.errors import (
        AuthenticationError,
        AuthorizationError,
        BrokerError,
        CommitFailedError,
        ConfigurationError,
        ConnectionLostError,
        ConsumerClosedError,
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
    from kafkagroup.group import Generation, GroupMember, GroupProtocol
    from kafkagroup.net.broker import Broker
    from kafkagroup.net.busy import ConsumerBusyError
    from kafkagroup.net.event_feed import GroupEvents
    from kafkagroup.net.group_events import (
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
    from kafkagroup.net.health import Health, HealthFinding, HealthProblem
    from kafkagroup.net.loads_file import LoadsFile
    from kafkagroup.net.metadata import Node
    from kafkagroup.net.metrics import GroupMetrics, RequestMetrics
    from kafkagroup.net.options import ClientOptions
    from kafkagroup.net.sasl.oauthbearer import Token
    from kafkagroup.net.security import InsecureConnectionWarning, Security
    from kafkagroup.recipes import (
        Election,
        Leader,
        Leaders,
        Leadership,
        MemberOptions,
        Shards,
        Share,
    )
    from kafkagroup.types import (
        GroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Record,
        TimestampType,
        TopicPartition,
    )
    from kafkagroup.wire.compression import Codec
    from kafkagroup.wire.group_log import (
        Subscription,
        decode_assignment,
        decode_subscription,
        encode_assignment,
        encode_subscription,
    )
    from kafkagroup.wire.records import NewRecord, encode_batch
    from kafkagroup.zookeeper.membership import ZooKeeperMembership

    __compiled__: bool
    __version__: str
    """Whether the hot path runs compiled; slower, but the same, where not."""

__all__ = [
    "Admin",
    "AuthenticationError",
    "AuthorizationError",
    "Batch",
    "Broker",
    "BrokerError",
    "ClientOptions",
    "Codec",
    "CommitFailedError",
    "ConfigurationError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerBusyError",
    "ConsumerClosedError",
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
    "Shards",
    "Share",
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
    "decode_subscription",
    "encode_assignment",
    "encode_batch",
    "encode_subscription",
]

_HOMES = {
    "Admin": "admin",
    "Batch": "consume.delivery",
    "Broker": "net.broker",
    "ClientOptions": "net.options",
    "Codec": "wire.compression",
    "Consumer": "consumer",
    "ConsumerBusyError": "net.busy",
    "Generation": "group",
    "GroupMember": "group",
    "GroupMetadata": "types",
    "GroupMetrics": "net.metrics",
    "GroupProtocol": "group",
    "RebalanceCause": "net.group_events",
    "CoordinatorFound": "net.group_events",
    "EventsMissed": "net.group_events",
    "GroupLeft": "net.group_events",
    "MembershipLost": "net.group_events",
    "RebalancePhases": "net.group_events",
    "RebalanceStarted": "net.group_events",
    "Rebalanced": "net.group_events",
    "GroupEvent": "net.group_events",
    "TroubleEnded": "net.group_events",
    "TroubleReported": "net.group_events",
    "GroupEvents": "net.event_feed",
    "HealthFinding": "net.health",
    "Health": "net.health",
    "HealthProblem": "net.health",
    "Election": "recipes",
    "Leader": "recipes",
    "Leaders": "recipes",
    "Leadership": "recipes",
    "LoadsFile": "net.loads_file",
    "MemberOptions": "recipes",
    "NewRecord": "wire.records",
    "Node": "net.metadata",
    "OffsetAndMetadata": "types",
    "OffsetAndTimestamp": "types",
    "InsecureConnectionWarning": "net.security",
    "Record": "types",
    "RequestMetrics": "net.metrics",
    "Security": "net.security",
    "Shards": "recipes",
    "Share": "recipes",
    "Subscription": "wire.group_log",
    "TimestampType": "types",
    "Token": "net.sasl.oauthbearer",
    "TopicPartition": "types",
    "decode_assignment": "wire.group_log",
    "decode_subscription": "wire.group_log",
    "encode_assignment": "wire.group_log",
    "encode_batch": "wire.records",
    "encode_subscription": "wire.group_log",
    "ZooKeeperMembership": "zookeeper.membership",
}


def _check_compiled() -> None:
    """Refuse modules that were compiled in place from other sources than those beside them, and
    those of sources that are compiled no longer.

    Python takes a compiled module before its source, however old: edits would be without effect,
    and without a word. Only source trees have the list; see setup.py.
    """
    here = os.path.dirname(__file__)
    try:
        with open(os.path.join(here, "_in_place.txt"), encoding="utf-8") as lines:
            made = [line.split() for line in lines]
    except FileNotFoundError:
        return
    from importlib.machinery import EXTENSION_SUFFIXES
    from zlib import crc32

    # Those of other Pythons do no harm, and may be of sources that are there no longer.
    made = [line for line in made if line[0] == EXTENSION_SUFFIXES[0]]
    top = os.path.dirname(here)
    for _, name, crc in made:
        try:
            with open(os.path.join(top, name), "rb") as source:
                fresh = crc32(source.read()) == int(crc)
        except FileNotFoundError:
            fresh = False
        if not fresh:
            raise ImportError(f"{name} has changed since it was compiled; run `make compile`")
    listed = {os.path.join(top, name).removesuffix(".py") for _, name, _ in made}
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


def __getattr__(name: str) -> object:
    if name == "__compiled__":
        return import_module("kafkagroup.wire.records").COMPILED
    if name == "__version__":
        return import_module("importlib.metadata").version("kafkagroup")
    if name not in __all__:
        raise AttributeError(f"module 'kafkagroup' has no attribute {name!r}")
    module = import_module(f"kafkagroup.{_HOMES.get(name, 'errors')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

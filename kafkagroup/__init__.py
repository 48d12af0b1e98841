"""kafkagroup: Kafka group coordination for asyncio and trio.

The public names; each is imported on first use (PEP 562), so that `import kafkagroup` costs little.
"""

from __future__ import annotations

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
        ConsumerClosedError,
        FencedError,
        KafkaGroupError,
        TlsError,
    )
    from kafkagroup.group import Generation, GroupMember, GroupProtocol
    from kafkagroup.net.broker import Broker
    from kafkagroup.net.loads_file import LoadsFile
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

__all__ = [
    "Admin",
    "AuthenticationError",
    "AuthorizationError",
    "Batch",
    "Broker",
    "BrokerError",
    "CommitFailedError",
    "ConfigurationError",
    "Consumer",
    "ConsumerClosedError",
    "Election",
    "FencedError",
    "Generation",
    "GroupMember",
    "GroupMetadata",
    "GroupProtocol",
    "InsecureConnectionWarning",
    "KafkaGroupError",
    "Leader",
    "Leaders",
    "Leadership",
    "LoadsFile",
    "MemberOptions",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "Security",
    "Shards",
    "Share",
    "TimestampType",
    "TlsError",
    "Token",
    "TopicPartition",
]

_HOMES = {
    "Admin": "admin",
    "Batch": "consume.delivery",
    "Broker": "net.broker",
    "Consumer": "consumer",
    "Generation": "group",
    "GroupMember": "group",
    "GroupMetadata": "types",
    "GroupProtocol": "group",
    "Election": "recipes",
    "Leader": "recipes",
    "Leaders": "recipes",
    "Leadership": "recipes",
    "LoadsFile": "net.loads_file",
    "MemberOptions": "recipes",
    "OffsetAndMetadata": "types",
    "OffsetAndTimestamp": "types",
    "InsecureConnectionWarning": "net.security",
    "Record": "types",
    "Security": "net.security",
    "Shards": "recipes",
    "Share": "recipes",
    "TimestampType": "types",
    "Token": "net.sasl.oauthbearer",
    "TopicPartition": "types",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'kafkagroup' has no attribute {name!r}")
    module = import_module(f"kafkagroup.{_HOMES.get(name, 'errors')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""What members of a group write into ZooKeeper, and who of them belongs together. Pure.

```
<root>/<group>/members/<member>   ephemeral: type and protocols, as below; never changed
<root>/<group>/claims/<unit>      ephemeral: the name of the member that holds it
```

A unit is a partition, "orders:3"; of a group that is no consumer's a whole generation, held by each
member for itself: "17@<name>". The generation is the version of the list of members.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import attrs

from kafkagroup.errors import RemoteProtocolError, escaped
from kafkagroup.types import TopicPartition

__all__ = [
    "MemberNode",
    "Metadata",
    "Paths",
    "admitted",
    "decode_metadata",
    "encode_metadata",
    "partition_of",
    "unit_of",
]

_MOST_BYTES = 1 << 20
"""ZooKeeper takes no more in one node (`jute.maxbuffer`)."""


@attrs.frozen
class Metadata:
    """What a member says of itself."""

    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol name and metadata, the preferred first."""


@attrs.frozen
class MemberNode:
    """A member's node, as read."""

    member_id: str
    order: int
    """Grows with the time of registration; the same for whoever reads it (the node's czxid)."""
    data: bytes


@attrs.frozen
class Paths:
    """Where a group is."""

    root: str
    group_id: str

    @property
    def group(self) -> str:
        """The group's own node. Dots are escaped too: ZooKeeper takes "." and ".." for no name."""
        return f"{self.root.rstrip('/')}/{quote(self.group_id, safe='').replace('.', '%2E')}"

    @property
    def members(self) -> str:
        """Parent of the members."""
        return f"{self.group}/members"

    @property
    def claims(self) -> str:
        """Parent of the claims."""
        return f"{self.group}/claims"

    def member(self, member_id: str) -> str:
        """A member's node."""
        return f"{self.members}/{member_id}"

    def claim(self, unit: str) -> str:
        """A unit's node."""
        return f"{self.claims}/{unit}"


def unit_of(tp: TopicPartition) -> str:
    """The unit that a partition is. Names of topics hold no colon."""
    return f"{tp.topic}:{tp.partition}"


def partition_of(unit: str) -> TopicPartition:
    """The partition that a unit is."""
    topic, _, partition = unit.rpartition(":")
    return TopicPartition(topic, int(partition))


def encode_metadata(metadata: Metadata) -> bytes:
    """As a member's node holds it: JSON, `{"type": ..., "protocols": [[name, base64], ...]}`."""
    protocols = [[name, b64encode(data).decode("ascii")] for name, data in metadata.protocols]
    return json.dumps({"type": metadata.protocol_type, "protocols": protocols}).encode("utf-8")


def decode_metadata(data: bytes) -> Metadata:
    """Raises: RemoteProtocolError for anything that `encode_metadata` does not make."""
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"{len(data)} bytes")
        match json.loads(data):
            case {"type": str(kind), "protocols": [_, *_] as pairs}:
                protocols = tuple((_text(n), b64decode(m, validate=True)) for n, m in pairs)
                return Metadata(kind, protocols)
        raise ValueError("not a type and protocols")
    except (ValueError, TypeError, RecursionError) as error:
        raise RemoteProtocolError(f"no member's metadata: {escaped(str(error))}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a protocol's name is a string")
    return value


def admitted(nodes: Iterable[MemberNode]) -> tuple[str, Mapping[str, bytes]]:
    """The protocol that the group speaks, and its members: member id -> metadata, first come first.

    Who came first decides: a newcomer of another type, or without a protocol that all before it
    offer, is not among the members, however many they are. Of several common protocols it is the
    one that the first member prefers. Every reader of the same list finds the same.
    """
    kind, common = "", tuple[str, ...]()
    members: dict[str, Metadata] = {}
    for node in sorted(nodes, key=lambda node: node.order):
        try:
            metadata = decode_metadata(node.data)
        except RemoteProtocolError:
            continue  # it cannot read itself, and will say so
        offered = tuple(name for name, _ in metadata.protocols)
        both = tuple(n for n in common if n in offered) if members else offered
        if both and kind in ("", metadata.protocol_type):
            kind, common = metadata.protocol_type, both
            members[node.member_id] = metadata
    if not members:
        return "", {}
    name = common[0]
    return name, {member: dict(metadata.protocols)[name] for member, metadata in members.items()}

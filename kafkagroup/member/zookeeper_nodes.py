"""The nodes of a group in ZooKeeper, and which members share a protocol. Pure.

```
<root>/<group>/members/<member>   ephemeral: type and protocols, as below; never changed
<root>/<group>/claims/<claim>     ephemeral: the name of the member that has claimed it
```

A unit is what a member claims: a partition, "orders:3"; or, in a group with exclusive generations,
a generation, which is a version of the list of members, "17". A partition's claim has the name of
the unit. A generation is claimed by all members at a time, so its claims are named "17@<name>".
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import attrs

from kafkagroup._text import escaped
from kafkagroup.errors import RemoteProtocolError
from kafkagroup.types import TopicPartition

__all__ = [
    "MemberNode",
    "Metadata",
    "Paths",
    "admitted",
    "decode_metadata",
    "encode_metadata",
    "generation_claim",
    "generation_of",
    "partition_of",
    "unit_of",
]

_MAX_BYTES = 1 << 20
"""The limit of one node's data in ZooKeeper (`jute.maxbuffer`)."""


@attrs.frozen
class Metadata:
    """The content of a member's node."""

    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol name and metadata, the preferred first."""


@attrs.frozen
class MemberNode:
    """A member's node, as read."""

    member_id: str
    order: int
    """The order of registration, the same for every reader: the node's czxid."""
    data: bytes


@attrs.frozen
class Paths:
    """The paths of a group's nodes in ZooKeeper."""

    root: str
    group_id: str
    foreign: tuple[str, ...] = ()
    """Parents of the nodes of other libraries' members in the same group, or of their claims."""

    @property
    def group(self) -> str:
        """The path of the group's node. Dots are escaped, too: ZooKeeper rejects the names "." and
        ".."."""
        return f"{self.root.rstrip('/')}/{quote(self.group_id, safe='').replace('.', '%2E')}"

    @property
    def members(self) -> str:
        """The path of the parent of the members' nodes."""
        return f"{self.group}/members"

    @property
    def claims(self) -> str:
        """The path of the parent of the claims' nodes."""
        return f"{self.group}/claims"

    def member(self, member_id: str) -> str:
        """Return the path of a member's node."""
        return f"{self.members}/{member_id}"

    def claim(self, unit: str) -> str:
        """Return the path of a claim's node. `unit`: that of a partition, or a
        `generation_claim`."""
        return f"{self.claims}/{unit}"


def unit_of(tp: TopicPartition) -> str:
    """Return the unit of a partition. Topic names contain no colon."""
    return f"{tp.topic}:{tp.partition}"


def partition_of(unit: str) -> TopicPartition:
    """Return the partition of a unit."""
    topic, _, partition = unit.rpartition(":")
    return TopicPartition(topic, int(partition))


def generation_claim(generation: str, name: str) -> str:
    """Return the name of the node by which a member claims a generation."""
    return f"{generation}@{name}"


def generation_of(claim: str) -> str:
    """Return the generation that a node of this name claims."""
    return claim.partition("@")[0]


def encode_metadata(metadata: Metadata) -> bytes:
    """Encode the content of a node as JSON: `{"type": ..., "protocols": [[name, base64], ...]}`."""
    protocols = [[name, b64encode(data).decode("ascii")] for name, data in metadata.protocols]
    return json.dumps({"type": metadata.protocol_type, "protocols": protocols}).encode("utf-8")


def decode_metadata(data: bytes) -> Metadata:
    """Decode the content of a node. Raises: RemoteProtocolError."""
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"{len(data)} bytes")
        match json.loads(data):
            case {"type": str(kind), "protocols": [_, *_] as pairs}:
                protocols = tuple((_text(n), b64decode(m, validate=True)) for n, m in pairs)
                return Metadata(kind, protocols)
        raise ValueError("not a type and protocols")
    except (ValueError, TypeError, RecursionError) as error:
        raise RemoteProtocolError(f"not the metadata of a member: {escaped(str(error))}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a protocol's name is a string")
    return value


def admitted(nodes: Iterable[MemberNode]) -> tuple[str, Mapping[str, bytes]]:
    """Return the group's protocol, and its members in the order of registration: member id ->
    metadata for this protocol. "" and no members if none is admitted.

    A member is not admitted if its type differs from that of the earlier members, or if it supports
    no protocol that all of them support. Of several common protocols, the first member's preferred
    one is used. The result is the same for every reader of the same list.
    """
    kind = ""
    common: tuple[str, ...] = ()
    members: dict[str, Metadata] = {}
    for node in sorted(nodes, key=lambda node: node.order):
        try:
            metadata = decode_metadata(node.data)
        except RemoteProtocolError:
            continue  # the member itself fails when it reads its node
        supported = tuple(name for name, _ in metadata.protocols)
        shared = tuple(n for n in common if n in supported) if members else supported
        if shared and kind in ("", metadata.protocol_type):
            kind, common = metadata.protocol_type, shared
            members[node.member_id] = metadata
    if not members:
        return "", {}
    name = common[0]
    return name, {member: dict(metadata.protocols)[name] for member, metadata in members.items()}

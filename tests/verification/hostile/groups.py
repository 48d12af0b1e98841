"""Attacks in data that the coordinator passes on: assignments, and metadata of other members.

The bytes come from other clients of the group; the leader decodes those of all members.
"""

from __future__ import annotations

import struct
from typing import Any

from kafkagroup.wire.embedded_protocol import Subscription, encode_subscription
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponseMember,
    SyncGroupRequest,
)

from .honest import at_first, honest, joined, serving, synced
from .server import Conversation
from .trial import Attack

__all__ = ["ATTACKS", "assignment"]

NONE_LEFT = "claims 2147483647, but only 0 bytes are left"

STRANGER = JoinGroupResponseMember(member_id="m", metadata=b"")

GOOD = encode_subscription(Subscription(topics=("t",)))


def assignment(*topics: tuple[bytes, list[int]], version: int = 0) -> bytes:
    """Encode an assignment without checking it."""
    out = struct.pack(">hi", version, len(topics))
    for name, partitions in topics:
        out += struct.pack(">h", len(name)) + name + struct.pack(">i", len(partitions))
        out += struct.pack(f">{len(partitions)}i", *partitions)
    return out + struct.pack(">i", -1)


def owning(partitions: int) -> bytes:
    """Return the subscription of a member that reports so many owned partitions."""
    owned = struct.pack(">ih1si", 1, 1, b"t", partitions) + struct.pack(
        f">{partitions}i", *range(partitions)
    )
    return struct.pack(">hih1si", 1, 1, 1, b"t", -1) + owned


def _assigned(name: str, data: bytes, ends: str, *, times: int = 10**9, **more: Any) -> Attack:
    def ill(request: SyncGroupRequest, _: object) -> object:
        return synced(request, assignment=data)

    def does() -> Conversation:
        return serving({SyncGroupRequest: at_first(times, ill, honest(SyncGroupRequest))})

    return Attack(name=name, family="groups", does=does, client="join", ends=ends, **more)


def _joined(name: str, ends: str, responses: dict[str, Any], **more: Any) -> Attack:
    def does() -> Conversation:
        return serving({JoinGroupRequest: lambda request, _: joined(request, **responses)})

    return Attack(name=name, family="groups", does=does, client="join", ends=ends, **more)


def _beside(name: str, metadata: bytes, ends: str, **more: Any) -> Attack:
    """Let this client lead a group with a hostile member."""
    members = (
        JoinGroupResponseMember(member_id="me", metadata=GOOD),
        JoinGroupResponseMember(member_id="stranger", metadata=metadata),
    )
    return _joined(name, ends, {"leader": "me", "members": members}, **more)


ATTACKS = (
    _assigned(
        "an assignment of 2^31-1 topics",
        b"\0\0\x7f\xff\xff\xff",
        f"DecodeError: ConsumerProtocolAssignment v0: assigned_partitions {NONE_LEFT}",
    ),
    _assigned(
        "an assignment of 2^31-1 partitions",
        struct.pack(">hih1si", 0, 1, 1, b"t", 2**31 - 1),
        f"DecodeError: ConsumerProtocolAssignment v0: partitions {NONE_LEFT}",
    ),
    _assigned(
        "an assignment of 100,001 partitions",
        assignment((b"t", list(range(100_001)))),
        "LimitExceededError: assignment of 100001 partitions; the limit is 100000",
        mebibytes=16,
    ),
    _assigned(
        "an assignment of 100,000 partitions",
        assignment((b"t", list(range(1, 100_001)))),
        "no end within 3 s",
        job={"patience": 3.0},
        mebibytes=200,
        long=True,
    ),
    _assigned(
        "an assignment with partition -1",
        assignment((b"t", [-1])),
        "DecodeError: assignment names a partition below zero",
    ),
    _assigned(
        "an assignment with a partition twice",
        assignment((b"t", [0, 0])),
        "DecodeError: assignment names a partition twice",
    ),
    _assigned(
        "an assignment with a topic twice",
        assignment((b"t", [0]), (b"t", [0])),
        "DecodeError: assignment names a partition twice",
    ),
    _assigned(
        "an assignment that is not UTF-8", assignment((b"\xff", [0])), "DecodeError: ...utf-8..."
    ),
    _assigned(
        "an assignment of one byte", b"\0", "DecodeError: assignment of 1 bytes has no version"
    ),
    _assigned(
        "an assignment of version -1",
        assignment(version=-1),
        "DecodeError: assignment of version -1",
    ),
    _assigned(
        "an assignment of a topic that forges",
        assignment((b"t\nCRITICAL forged\x1b[31m", [0])),
        "t/0 at 0",
        times=2,
    ),
    _assigned(
        "an assignment outside the subscription",
        assignment((b"other", [0])),
        "t/0 at 0",
        times=2,
    ),
    _assigned(
        "an assignment outside the subscription, without end",
        assignment((b"other", [0])),
        "no end within 2 s",
        job={"patience": 2.0},
        requests=60,
    ),
    _assigned(
        "an assignment of 5,000 topics outside the subscription",
        assignment(*((b"other-topic-%04d" % n, [0]) for n in range(5_000))),
        "t/0 at 0",
        times=2,
        mebibytes=32,
    ),
    _joined(
        "another protocol type",
        "BrokerError: INCONSISTENT_GROUP_PROTOCOL (23): group 'g' is of type 'connect', not"
        " 'consumer'",
        {"protocol_type": "connect"},
    ),
    _joined("a protocol that was not offered", "t/0 at 0", {"protocol_name": "x\nCRITICAL forged"}),
    _joined("no member id", "t/0 at 0", {"member_id": ""}),
    _joined("a generation of -2^31", "t/0 at 0", {"generation_id": -(2**31)}),
    _joined("a leader without members", "t/0 at 0", {"leader": "me"}),
    _joined(
        "250,000 members without metadata",
        "DecodeError: subscription of 0 bytes has no version",
        {"leader": "me", "members": (STRANGER,) * 250_000},
        mebibytes=100,
        long=True,
    ),
    _joined(
        "a million members",
        # Beyond the limit of elements: such a response counts as none, and the member joins again.
        "no end within 3 s",
        {"leader": "me", "members": (STRANGER,) * 1_000_000},
        job={"patience": 3.0},
        mebibytes=100,
        requests=60,
        long=True,
    ),
    _beside(
        "a member without metadata", b"", "DecodeError: subscription of 0 bytes has no version"
    ),
    _beside(
        "a member with 2^31-1 topics",
        b"\0\0\x7f\xff\xff\xff",
        f"DecodeError: ConsumerProtocolSubscription v0: topics {NONE_LEFT}",
    ),
    _beside(
        "a member whose topic is not UTF-8",
        b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff",
        "DecodeError: ...utf-8...",
    ),
    _beside(
        "a member that names a topic twice",
        GOOD.replace(b"\0\1\0\1t", b"\0\2\0\1t\0\1t"),
        "DecodeError: subscription names a topic twice",
    ),
    _beside(
        "a member that owns 100,001 partitions",
        owning(100_001),
        "LimitExceededError: subscription of 100001 partitions; the limit is 100000",
        mebibytes=16,
    ),
    _beside(
        "a member that owns 100,000 partitions",
        owning(100_000),
        "t/0 at 0",
        mebibytes=64,
    ),
    Attack(
        name="a rebalance at every heartbeat",
        family="groups",
        does=lambda: serving({HeartbeatRequest: lambda _, __: HeartbeatResponse(error_code=27)}),
        client="join",
        ends="t/0 at 0",
    ),
)

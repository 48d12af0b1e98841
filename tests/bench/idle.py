"""Requests per second: of an idle member, and of one whose broker only returns errors.

python -m tests.bench.idle [--seconds N] [--json FILE]

On embedded brokers, which count requests: one for each case, all at the same time. The first
seconds do not count, as connecting and joining send more. One value is one second of one case; a
rejected member may send 20 requests in any second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Action, Close
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafkagroup.wire.schema import Request

from . import trial as trials
from .command import Settings, main
from .figures import Figure, Target
from .members import FLEETS

__all__ = ["measure", "trial"]

PARTITIONS = 32
"""Of one member: with few, back-offs that each partition has for itself would look harmless."""

WARM_UP = 2
"""Seconds until all members, started at once on one loop, have done what starting takes."""

TARGET = Target(100, 20.0)
"""Requests in a second of a member under a permanent error; invariant L6."""

CLIENTS = ("ours", "aiokafka", "librdkafka")

_COORDINATOR = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
_GENERATION = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
_LEADER = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)

REFUSED: Mapping[type[Request[Any]], tuple[Action, ...]] = {
    FindCoordinatorRequest: (*_COORDINATOR[:2], ErrorCode.UNKNOWN_SERVER_ERROR, Close()),
    JoinGroupRequest: (
        *_COORDINATOR,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.REBALANCE_IN_PROGRESS,
        Close(),
    ),
    SyncGroupRequest: (*_COORDINATOR, *_GENERATION, Close()),
    HeartbeatRequest: (*_COORDINATOR, *_GENERATION, Close()),
    OffsetFetchRequest: (
        *_COORDINATOR,
        *_GENERATION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        Close(),
    ),
    OffsetCommitRequest: (*_COORDINATOR, *_GENERATION, ErrorCode.REQUEST_TIMED_OUT, Close()),
    ListOffsetsRequest: (*_LEADER, Close()),
    FetchRequest: (
        *_LEADER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        Close(),
    ),
    MetadataRequest: (
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        Close(),
    ),
}
"""What is refused for good, and how."""

CASES: Mapping[str, tuple[type[Request[Any]], Action]] = {
    f"{api.__name__.removesuffix('Request')} {getattr(action, 'name', 'closed')}": (api, action)
    for api, actions in REFUSED.items()
    for action in actions
}


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all clients, in requests per second. The shared broker is not used."""
    figures = []
    for name in CLIENTS:
        client = FLEETS[name].client
        found = _run(name, [], settings.seconds)
        figures.append(
            Figure(
                what="idle: requests/s", client=client, values=tuple(found["idle"]), paired=False
            )
        )
        found = _run(name, list(CASES), settings.seconds)
        del found["idle"]
        worst = sorted(found, key=lambda case: max(found[case]), reverse=True)
        over = [case for case in worst if max(found[case]) > TARGET.most]
        figures.append(
            Figure(
                what=f"refused in {len(CASES)} ways: requests/s",
                client=client,
                values=tuple(count for counts in found.values() for count in counts),
                paired=False,
                target=TARGET if name == "ours" else None,
                note=f"{len(over)} above {TARGET.most:g}; the worst: "
                + ", ".join(f"{case} {max(found[case])}" for case in worst[:3]),
            )
        )
    return figures


def _run(fleet: str, cases: list[str], seconds: int) -> dict[str, Any]:
    return trials.run("idle", lasts=seconds, fleet=fleet, cases=cases, seconds=seconds)


def trial(*, fleet: str, cases: list[str], seconds: int) -> dict[str, list[int]]:
    """Return case -> the requests in each second; "idle" is one without errors."""
    return asyncio.run(_count(fleet, cases, seconds))


async def _count(fleet: str, cases: list[str], seconds: int) -> dict[str, list[int]]:
    with ExitStack() as stack:
        brokers = {
            case: stack.enter_context(EmbeddedKafka({"t": PARTITIONS})) for case in ("idle", *cases)
        }
        for case in cases:
            # Something to commit, and to fetch.
            brokers[case].produce("t", ["a record"] * 8)
            brokers[case].fail(*CASES[case], times=None)
        members = {
            case: FLEETS[fleet].member(node.bootstrap_servers, "g", "t", reset="earliest")
            for case, node in brokers.items()
        }
        # A start that waits for what never comes must not hold up the others.
        starting = [asyncio.create_task(member.start()) for member in members.values()]
        counts: dict[str, list[int]] = {case: [] for case in brokers}
        await asyncio.sleep(WARM_UP - 1)
        for _ in range(seconds + 1):
            await asyncio.sleep(1)
            for case, node in brokers.items():
                counts[case].append(len(node.requests()))
        for task in starting:
            task.cancel()
        return {
            case: [after - before for before, after in pairwise(seen)]
            for case, seen in counts.items()
        }


if __name__ == "__main__":
    main(__doc__, {"idle": measure})

"""The classic protocol, as a value: members assign, and each rebalance begins a generation."""

from __future__ import annotations

from typing import Any

from kafkagroup.member.classic import step
from kafkagroup.member.classic_state import Member
from kafkagroup.member.vocabulary import MemberMetadata, RejoinRequested
from kafkagroup.runtime.member.protocol import CoordinatedProtocol, Predecessor

__all__ = ["CLASSIC", "rejoin_requested"]


def rejoin_requested(now: float, reason: str, metadata: MemberMetadata) -> RejoinRequested:
    """Return the event of changed metadata where members assign: they rejoin with it."""
    return RejoinRequested(now=now, reason=reason, protocols=metadata.protocols)


def _first_state(config: Any, metadata: MemberMetadata, last: Predecessor) -> Member:
    return Member(config=config, protocols=metadata.protocols, member_id=last.unanswered_id)


CLASSIC = CoordinatedProtocol(
    step=step,
    first_state=_first_state,
    change_metadata=rejoin_requested,
    preparation=lambda member, response: None,
    topic_names=None,
    coordinator_assigns=False,
    claims_partitions=False,
)

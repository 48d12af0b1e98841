"""The protocol of KIP-848, as a value: the coordinator assigns, and each member has an epoch.

Imported only for a client that uses it: most members are classic, and importing a consumer must
stay cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kafkagroup.member.consumer_protocol import step
from kafkagroup.member.consumer_state import Member
from kafkagroup.member.consumer_target import TargetChange, is_large, prepare
from kafkagroup.member.consumer_vocabulary import Subscribed
from kafkagroup.member.vocabulary import MemberMetadata
from kafkagroup.runtime.member.protocol import CoordinatedProtocol, Predecessor
from kafkagroup.runtime.member.topic_names import TopicNames

__all__ = ["CONSUMER"]


def _first_state(config: Any, metadata: MemberMetadata, last: Predecessor) -> Member:
    return Member(
        config=config,
        member_id=last.client_member_id,
        topics=metadata.topics,
        pattern=metadata.pattern,
        may_be_known=last.may_be_known,
    )


def _subscribe(now: float, reason: str, metadata: MemberMetadata) -> Subscribed:
    """Return the event of changed metadata. It has no reason: a heartbeat has no field for one."""
    return Subscribed(now=now, topics=metadata.topics, pattern=metadata.pattern)


def _preparation(member: Member, response: Any) -> Callable[[], TargetChange] | None:
    """Return the job that compares a large assignment with the member's target; None if the
    response has no assignment, or a small one. With 200,000 topics the step would block the loop,
    and so the heartbeats of other members."""
    assignment = getattr(response, "assignment", None)  # only that of a heartbeat may have one
    if assignment is None or not is_large(assignment):
        return None
    return partial(prepare, assignment, member.target, member.names)


CONSUMER = CoordinatedProtocol(
    step=step,
    first_state=_first_state,
    change_metadata=_subscribe,
    preparation=_preparation,
    topic_names=TopicNames,
    coordinator_assigns=True,
    claims_partitions=False,
)

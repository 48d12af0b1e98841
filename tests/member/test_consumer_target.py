"""Large assignments by topic id: what a thread prepares, a step does not do again."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar
from uuid import UUID

import pytest

from kafkagroup._values import evolve
from kafkagroup.member import consumer_protocol
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.consumer_state import Member, Phase
from kafkagroup.member.consumer_target import (
    PartitionsByTopicId,
    Target,
    TargetChange,
    is_large,
    is_missing,
    prepare,
)
from kafkagroup.member.consumer_vocabulary import ConsumerEvent, LookUpNames, TopicsNamed
from kafkagroup.member.vocabulary import Coordinator, Replied, WakeAt, Woke
from kafkagroup.wire.messages.consumer_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

T, U, V = UUID(int=1), UUID(int=2), UUID(int=3)

MEMBER = Member(
    config=MemberConfig(group_id="g"),
    member_id="m1",
    topics=("t",),
    phase=Phase.MEMBER,
    epoch=5,
    coordinator=Coordinator(1, "one", 9092),
    heartbeat_in_flight=2,
    last_token=2,
    session_ends_at=100.0,
    next_heartbeat_at=50.0,
    heartbeat_sent_at=10.0,
    names={T: "t"},
)


class CountedId(UUID):
    """A topic id that counts how often any is looked at."""

    looks: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        CountedId.looks += 1
        return super().__eq__(other)

    def __hash__(self) -> int:
        CountedId.looks += 1
        return super().__hash__()


def assignment(*topics: tuple[UUID, tuple[int, ...]]) -> Assignment:
    return Assignment(
        topic_partitions=tuple(TopicPartitions(topic_id=t, partitions=p) for t, p in topics)
    )


def reply(assigned: Assignment, change: TargetChange | None = None, token: int = 2) -> Replied:
    response = ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=0,
        member_id="m1",
        member_epoch=6,
        heartbeat_interval_ms=5_000,
        assignment=assigned,
    )
    return Replied(now=10.0, token=token, message=response, target_change=change)


def unknown(count: int = 3_000) -> Assignment:
    """Return an assignment of topics that no broker knows, as it is decoded: with new ids."""
    return assignment(*((CountedId(int=n), (0,)) for n in range(1_000, 1_000 + count)))


def looks_during(work: Callable[[], object]) -> int:
    CountedId.looks = 0
    work()
    return CountedId.looks


def test_steps_look_at_no_topic_of_a_prepared_assignment() -> None:
    """A heartbeat that assigned 200,000 unknown topics blocked the loop for 0.4 s, and each later
    step for 50 ms."""
    member = MEMBER

    def step(event: ConsumerEvent) -> None:
        nonlocal member, effects
        member, effects = consumer_protocol.step(member, event)

    effects: object = ()
    event = reply(unknown(), prepare(unknown(), member.target, member.names))
    assert looks_during(lambda: step(event)) == 0
    topics = frozenset(UUID(int=n) for n in range(1_000, 4_000))
    assert effects == (LookUpNames(topic_ids=topics), WakeAt(time=10.1))
    assert looks_during(lambda: step(Woke(now=11.0))) == 0
    # The coordinator may repeat it in each response.
    member = evolve(member, heartbeat_in_flight=9, next_heartbeat_at=50.0)
    again = reply(unknown(), prepare(unknown(), member.target, member.names), token=9)
    assert looks_during(lambda: step(again)) == 0
    assert effects == (WakeAt(time=11.1),)
    # Names are found for some thousands at a time.
    named = TopicsNamed(now=12.0, names={UUID(int=n): f"t{n}" for n in range(1_000, 1_010)})
    assert looks_during(lambda: step(named)) <= 100
    assert len(member.unnamed) == 2_990


@pytest.mark.parametrize(
    ("target", "topics"),
    [
        (None, ((T, (0, 1)), (V, (0,)))),
        (Target({T: (0, 1)}), ((T, (1, 0)),)),
        (Target({T: (0, 1)}), ((T, (0,)), (U, (1,)))),
        (Target({T: (0,), U: (0,)}), ((T, (0,)), (T, (1,)), (U, ()))),
    ],
    ids=["first", "same", "fewer", "a topic twice"],
)
def test_a_step_is_the_same_with_and_without_a_preparation(
    target: Target | None, topics: tuple[tuple[UUID, tuple[int, ...]], ...]
) -> None:
    member = evolve(MEMBER, target=target)
    assigned = assignment(*topics)
    change = prepare(assigned, target, member.names)
    by_itself = consumer_protocol.step(member, reply(assigned))
    assert consumer_protocol.step(member, reply(assigned, change)) == by_itself


def test_a_preparation_for_an_earlier_state_is_not_used() -> None:
    """The member may have rejoined, or learned names, while the thread worked."""
    assigned = assignment((T, (0,)), (U, (0,)))
    change = prepare(assigned, Target({V: (0,)}), MEMBER.names)
    assert change.takes_away
    later = evolve(MEMBER, target=Target({T: (0,)}), names={T: "t", U: "u"})
    by_itself = consumer_protocol.step(later, reply(assigned))
    assert consumer_protocol.step(later, reply(assigned, change)) == by_itself
    member, _ = by_itself
    assert (member.revocation_requested_at, member.unnamed) == (None, frozenset())


def test_an_equal_assignment_is_the_same_target() -> None:
    before = Target({T: (0, 1)})
    assert TargetChange.of(assignment((T, (1, 0))), before) == TargetChange(
        before, before, takes_away=False
    )
    assert TargetChange.of(assignment((T, (1, 0))), before).target is before


def test_a_target_is_divided_by_the_names_of_its_topics() -> None:
    target, names = Target({T: (0,), U: (1,), V: (2,)}), {T: "t"}
    assert target.named({}) == {}
    assert target.unnamed({}) == {T, U, V}
    assert (target.named(names), target.unnamed(names)) == ({T: (0,)}, {U, V})
    more = {T: "t", U: "u"}
    target.note_named(names, more, (U,))
    assert (target.named(more), target.unnamed(more)) == ({T: (0,), U: (1,)}, {V})
    # Names that have not followed from those before are looked up again.
    fewer = {V: "v"}
    target.note_named(names, fewer, (V,))
    assert (target.named(fewer), target.unnamed(fewer)) == ({V: (2,)}, {T, U})


@pytest.mark.parametrize(
    ("partitions", "other", "expected"),
    [
        ({}, {}, False),
        ({T: (0, 1)}, {T: (0,)}, False),
        ({T: (0, 1)}, {T: (1, 0)}, False),
        ({T: (0,)}, {T: (0, 1)}, True),
        ({U: (0,)}, {T: (0,)}, True),
    ],
)
def test_partitions_that_are_missing(
    partitions: PartitionsByTopicId, other: PartitionsByTopicId, expected: bool
) -> None:
    assert is_missing(partitions, other) is expected


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        (assignment(), False),
        (assignment((T, tuple(range(1_999)))), False),
        (assignment((T, tuple(range(2_000)))), True),
        (unknown(1_001), True),
    ],
    ids=["empty", "few", "partitions", "topics"],
)
def test_a_large_assignment_has_many_topics_or_partitions(
    assigned: Assignment, expected: bool
) -> None:
    assert is_large(assigned) is expected

"""The logs of the soak's members as events for the checker."""

from collections.abc import Iterator

from member_log import ENTRY, Kind
from verification.sim.events import (
    Assigned,
    Committed,
    Committing,
    Delivered,
    Ended,
    Event,
    Killed,
    Lost,
    Processed,
    Revoked,
    Revoking,
)

from kafkagroup import TopicPartition


def events(data: bytes, topic: str, member: str, *, killed: bool) -> Iterator[Event]:
    """Return a member's events from its log, up to its end or kill."""
    partitions: dict[int, TopicPartition] = {}
    time, token = 0.0, 0
    for kind, number, offset, sequence, nanoseconds in ENTRY.iter_unpack(data):
        time = nanoseconds / 1e9
        tp = partitions.setdefault(number, TopicPartition(topic, number))
        if kind == Kind.DELIVERED:
            yield Delivered(
                time=time, member=member, partition=tp, offset=offset, sequence=sequence
            )
        elif kind == Kind.PROCESSED:
            yield Processed(time=time, member=member, partition=tp, offset=offset)
        elif kind == Kind.ASSIGNED:
            yield Assigned(time=time, member=member, partitions=(tp,), generation=-1)
        elif kind == Kind.REVOKED:
            yield Revoking(time=time, member=member, partitions=(tp,))
            yield Revoked(time=time, member=member, partitions=(tp,))
        elif kind == Kind.LOST:
            yield Lost(time=time, member=member, partitions=(tp,))
        else:
            token += 1
            yield Committing(time=time, member=member, token=token, offsets={tp: offset})
            yield Committed(time=time, member=member, token=token, outcome="ok")
    yield Killed(time=time, member=member) if killed else Ended(time=time, member=member)

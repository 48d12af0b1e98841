"""Records of `__consumer_offsets` as rows of one shape: events in the lives of groups. Pure.

One record is one event, whatever it says, and keeps its place in the log, by which doubles of it
are known. What a record does not tell is null; what nobody here can tell is in `undecoded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkagroup.errors import DecodeError
from kafkagroup.wire.coordinator import classic, consumer, offsets, share, streams
from kafkagroup.wire.group_history import Undecoded, decode_group_record
from kafkagroup.wire.group_log import decode_assignment, decode_subscription
from kafkagroup.wire.schema import NO_ID

if TYPE_CHECKING:
    import pyarrow

__all__ = ["READ_COLUMNS", "event_of", "schema", "to_events"]


def schema() -> pyarrow.Schema:
    """Of the events.

    `record` is the type, as Kafka names its schemas; `kind` is `offsets`, `classic`, `consumer`,
    `share` or `streams`; `removed` is a tombstone. Of a member only what the record is about is
    set: who it is, what it has, or (`target`) is to have.
    """
    import pyarrow as pa

    text, int32, int64, time = pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")

    def many(element: Any) -> Any:
        return pa.list_(pa.field("element", element))

    partitions = many(pa.struct({"topic": text, "topic_id": text, "partition": int32}))
    commit = {
        "topic": text,
        "topic_id": text,
        "partition": int32,
        "offset": int64,
        "leader_epoch": int32,
        "metadata": text,
        "commit_time": time,
        "expire_time": time,
    }
    generation = {
        "number": int32,
        "protocol_type": text,
        "protocol": text,
        "leader": text,
        "state_time": time,
        "members": int32,
    }
    member = {
        "member_id": text,
        "instance_id": text,
        "client_id": text,
        "client_host": text,
        "rack": text,
        "epoch": int32,
        "state": int32,
        "session_timeout_ms": int32,
        "rebalance_timeout_ms": int32,
        "topics": many(text),
        "regex": text,
        "assigned": partitions,
        "target": partitions,
        "pending": partitions,
    }
    return pa.schema(
        {
            "log_partition": int32,
            "log_offset": int64,
            "log_time": time,
            "record": text,
            "kind": text,
            "group_id": text,
            "removed": pa.bool_(),
            "commit": pa.struct(commit),
            "generation": pa.struct(generation),
            "members": many(pa.struct(member)),
            "names": many(pa.struct({"topic_id": text, "topic": text})),
            "undecoded": pa.struct({"reason": text, "key": pa.binary(), "value": pa.binary()}),
        }
    )


READ_COLUMNS = "partition,offset,timestamp,key,value"
"""What is read of the topic."""

_KINDS = {
    module.__name__: module.__name__.rpartition(".")[2]
    for module in (classic, consumer, offsets, share, streams)
}
_COMMITS = (offsets.OffsetCommitKey, offsets.LegacyOffsetCommitKey)


def event_of(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """The event that a record tells of, without its place in the log. Never raises."""
    decoded = decode_group_record(key, value)
    if isinstance(decoded, Undecoded):
        return {"undecoded": {"reason": decoded.reason, "key": key, "value": value}}
    of, told = decoded.key, decoded.value
    event = {
        "record": type(of).__name__.removesuffix("Key"),
        "kind": _KINDS[type(of).__module__],
        "group_id": of.group if hasattr(of, "group") else of.group_id,
        "removed": told is None,
    }
    if isinstance(of, _COMMITS):
        event["commit"] = _commit(of, told)
    elif hasattr(of, "member_id"):
        event["members"] = [{"member_id": of.member_id, **({} if told is None else _member(told))}]
    elif isinstance(told, classic.GroupMetadataValue):
        event |= _classic(told)
    elif isinstance(
        told,
        consumer.ConsumerGroupMetadataValue
        | share.ShareGroupMetadataValue
        | streams.StreamsGroupMetadataValue,
    ):
        event["generation"] = {"number": told.epoch}
    elif isinstance(told, share.ShareGroupStatePartitionMetadataValue):
        event["names"] = _names([*told.initializing_topics, *told.initialized_topics])
    elif isinstance(told, consumer.ConsumerGroupPartitionMetadataValue):
        event["names"] = _names(told.topics)
    return event


def _commit(of: Any, told: Any) -> dict[str, Any]:
    commit = {"topic": of.topic, "partition": of.partition}
    if told is None:
        return commit
    commit |= {
        "offset": told.offset,
        "metadata": told.metadata,
        "commit_time": _time(told.commit_timestamp),
    }
    if isinstance(told, offsets.OffsetCommitValue):
        commit |= {
            "topic_id": _id(told.topic_id),
            "leader_epoch": None if told.leader_epoch < 0 else told.leader_epoch,
            "expire_time": _time(told.expire_timestamp),
        }
    return commit


def _classic(told: classic.GroupMetadataValue) -> dict[str, Any]:
    return {
        "generation": {
            "number": told.generation,
            "protocol_type": told.protocol_type,
            "protocol": told.protocol,
            "leader": told.leader,
            "state_time": _time(told.current_state_timestamp),
            "members": len(told.members),
        },
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "epoch": told.generation,
                "session_timeout_ms": member.session_timeout,
                "rebalance_timeout_ms": member.rebalance_timeout,
                **(_consumer(member) if told.protocol_type == "consumer" else {}),
            }
            for member in told.members
        ],
    }


def _consumer(member: classic.MemberMetadata) -> dict[str, Any]:
    """What members of a group of consumers have told each other; the broker does not look at it."""
    found: dict[str, Any] = {}
    try:
        subscription = decode_subscription(member.subscription)
        found |= {"topics": list(subscription.topics), "rack": subscription.rack}
        held = decode_assignment(member.assignment)
        found["assigned"] = [{"topic": topic, "partition": partition} for topic, partition in held]
    except DecodeError:
        pass
    return found


def _member(told: Any) -> dict[str, Any]:
    """What one record of a newer kind of group says about a member."""
    match told:
        case consumer.ConsumerGroupMemberMetadataValue():
            return {
                **_who(told),
                "instance_id": told.instance_id,
                "topics": list(told.subscribed_topic_names),
                "regex": told.subscribed_topic_regex,
                "rebalance_timeout_ms": told.rebalance_timeout_ms,
            }
        case share.ShareGroupMemberMetadataValue():
            return {**_who(told), "topics": list(told.subscribed_topic_names)}
        case streams.StreamsGroupMemberMetadataValue():
            return {**_who(told), "instance_id": told.instance_id}
        case (
            consumer.ConsumerGroupTargetAssignmentMemberValue()
            | share.ShareGroupTargetAssignmentMemberValue()
        ):
            return {"target": _flat(told.topic_partitions)}
        case consumer.ConsumerGroupCurrentMemberAssignmentValue():
            return {
                **_has(told),
                "pending": _flat(told.partitions_pending_revocation),
            }
        case share.ShareGroupCurrentMemberAssignmentValue():
            return _has(told)
        case streams.StreamsGroupCurrentMemberAssignmentValue():
            return {"epoch": told.member_epoch, "state": told.state}
        case _:
            return {}


def _who(told: Any) -> dict[str, Any]:
    return {"client_id": told.client_id, "client_host": told.client_host, "rack": told.rack_id}


def _has(told: Any) -> dict[str, Any]:
    return {
        "epoch": told.member_epoch,
        "state": told.state,
        "assigned": _flat(told.assigned_partitions),
    }


def _flat(topics: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {"topic_id": _id(topic.topic_id), "partition": partition}
        for topic in topics
        for partition in topic.partitions
    ]


def _names(topics: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"topic_id": _id(topic.topic_id), "topic": topic.topic_name} for topic in topics]


def _id(topic_id: UUID) -> str | None:
    return None if topic_id == NO_ID else str(topic_id)


def _time(milliseconds: int) -> int | None:
    """Microseconds, as Arrow and Spark count them; None for what says that there is none."""
    return None if milliseconds < 0 else min(milliseconds, _LAST) * 1000


_LAST = 253_402_300_799_999
"""The end of the year 9999, beyond which Spark shows no time."""


def to_events(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """What `mapInArrow` runs: rows of `READ_COLUMNS` to rows of `schema`."""
    import pyarrow as pa

    made = schema()

    for batch in batches:
        # As numbers: there are times in a log for which Python has no datetime.
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        others = (
            batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")
        )
        rows = [
            {
                "log_partition": partition,
                "log_offset": offset,
                "log_time": time,
                **event_of(key, value),
            }
            for time, partition, offset, key, value in zip(times, *others, strict=True)
        ]
        if rows:
            columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in made]
            yield pa.RecordBatch.from_arrays(columns, schema=made)

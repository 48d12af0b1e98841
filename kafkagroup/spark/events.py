"""Records of `__consumer_offsets` as rows of one schema: the events of groups. Pure.

One record is one event, and keeps its place in the log, which identifies duplicates. Fields that a
record does not have are null; a record that cannot be decoded is in `undecoded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkagroup.errors import DecodeError
from kafkagroup.wire.coordinator import classic, consumer, offsets, share, streams
from kafkagroup.wire.embedded_protocol import decode_assignment, decode_subscription
from kafkagroup.wire.group_log import Undecoded, decode_group_record
from kafkagroup.wire.schema import NO_ID

if TYPE_CHECKING:
    import pyarrow

    from kafkagroup.spark.commit_columns import CommitColumns

__all__ = ["READ_COLUMNS", "event_of", "schema", "to_events"]


def schema() -> pyarrow.Schema:
    """Return the schema of the events.

    `record` is the type of the record, as Kafka names its schemas; `kind` is `offsets`, `classic`,
    `consumer`, `share` or `streams`; `removed` marks a tombstone. Of a member, only the fields are
    set that the record has: its identity, its current or its `target` assignment. `pending` are the
    partitions that it must revoke; `state` is Kafka's number of its state: 0 is stable. `names` has
    the names of topics by id.
    """
    import pyarrow as pa

    text, int32, int64, time = pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")

    def list_of(element: Any) -> Any:
        return pa.list_(pa.field("element", element))

    partitions = list_of(pa.struct({"topic": text, "topic_id": text, "partition": int32}))
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
        "topics": list_of(text),
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
            "members": list_of(pa.struct(member)),
            "names": list_of(pa.struct({"topic_id": text, "topic": text})),
            "undecoded": pa.struct({"reason": text, "key": pa.binary(), "value": pa.binary()}),
        }
    )


READ_COLUMNS = "partition,offset,timestamp,key,value"
"""The columns that `to_events` needs of each record, as the option `columns`."""

_MAX_MILLISECONDS = 253_402_300_799_999
"""The end of the year 9999, after which Spark cannot show a time."""

_KINDS = {
    module.__name__: module.__name__.rpartition(".")[2]
    for module in (classic, consumer, offsets, share, streams)
}
"""Module of a record's schema -> `kind` of its event, the last part of the module's name."""
_COMMITS = (offsets.OffsetCommitKey, offsets.LegacyOffsetCommitKey)
"""The keys of commits: their records are events of `commit`."""


def event_of(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return the event of a record, without its place in the log. Never raises."""
    decoded = decode_group_record(key, value)
    if isinstance(decoded, Undecoded):
        return {"undecoded": {"reason": decoded.reason, "key": key, "value": value}}
    record_key, content = decoded.key, decoded.value
    # Kafka's schemas call the group id of a key either `group` or `group_id`.
    event = {
        "record": type(record_key).__name__.removesuffix("Key"),
        "kind": _KINDS[type(record_key).__module__],
        "group_id": record_key.group if hasattr(record_key, "group") else record_key.group_id,
        "removed": content is None,
    }
    if isinstance(record_key, _COMMITS):
        event["commit"] = _commit_fields(record_key, content)
    elif hasattr(record_key, "member_id"):
        event["members"] = [
            {
                "member_id": record_key.member_id,
                **({} if content is None else _member_fields(content)),
            }
        ]
    elif isinstance(content, classic.GroupMetadataValue):
        event |= _classic_fields(content)
    elif isinstance(
        content,
        consumer.ConsumerGroupMetadataValue
        | share.ShareGroupMetadataValue
        | streams.StreamsGroupMetadataValue,
    ):
        event["generation"] = {"number": content.epoch}
    elif isinstance(content, share.ShareGroupStatePartitionMetadataValue):
        event["names"] = _names([*content.initializing_topics, *content.initialized_topics])
    elif isinstance(content, consumer.ConsumerGroupPartitionMetadataValue):
        event["names"] = _names(content.topics)
    return event


def _commit_fields(key: Any, value: Any) -> dict[str, Any]:
    commit = {"topic": key.topic, "partition": key.partition}
    if value is None:
        return commit
    commit |= {
        "offset": value.offset,
        "metadata": value.metadata,
        "commit_time": _time(value.commit_timestamp),
    }
    if isinstance(value, offsets.OffsetCommitValue):
        commit |= {
            "topic_id": _id(value.topic_id),
            "leader_epoch": None if value.leader_epoch < 0 else value.leader_epoch,
            "expire_time": _time(value.expire_timestamp),
        }
    return commit


def _classic_fields(value: classic.GroupMetadataValue) -> dict[str, Any]:
    return {
        "generation": {
            "number": value.generation,
            "protocol_type": value.protocol_type,
            "protocol": value.protocol,
            "leader": value.leader,
            "state_time": _time(value.current_state_timestamp),
            "members": len(value.members),
        },
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "epoch": value.generation,
                "session_timeout_ms": member.session_timeout,
                "rebalance_timeout_ms": member.rebalance_timeout,
                **(_consumer_fields(member) if value.protocol_type == "consumer" else {}),
            }
            for member in value.members
        ],
    }


def _consumer_fields(member: classic.MemberMetadata) -> dict[str, Any]:
    """Decode the subscription and the assignment of a classic consumer. Brokers do not check them:
    if the subscription cannot be decoded, leave out both; if only the assignment cannot, leave that
    out."""
    found: dict[str, Any] = {}
    try:
        subscription = decode_subscription(member.subscription)
        found |= {"topics": list(subscription.topics), "rack": subscription.rack}
        held = decode_assignment(member.assignment)
        found["assigned"] = [{"topic": topic, "partition": partition} for topic, partition in held]
    except DecodeError:
        pass
    return found


def _member_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a member from a record of a consumer, share or streams group."""
    match value:
        case consumer.ConsumerGroupMemberMetadataValue():
            return {
                **_client_fields(value),
                "instance_id": value.instance_id,
                "topics": list(value.subscribed_topic_names),
                "regex": value.subscribed_topic_regex,
                "rebalance_timeout_ms": value.rebalance_timeout_ms,
            }
        case share.ShareGroupMemberMetadataValue():
            return {**_client_fields(value), "topics": list(value.subscribed_topic_names)}
        case streams.StreamsGroupMemberMetadataValue():
            return {**_client_fields(value), "instance_id": value.instance_id}
        case (
            consumer.ConsumerGroupTargetAssignmentMemberValue()
            | share.ShareGroupTargetAssignmentMemberValue()
        ):
            return {"target": _flat(value.topic_partitions)}
        case consumer.ConsumerGroupCurrentMemberAssignmentValue():
            return {
                **_assignment_fields(value),
                "pending": _flat(value.partitions_pending_revocation),
            }
        case share.ShareGroupCurrentMemberAssignmentValue():
            return _assignment_fields(value)
        case streams.StreamsGroupCurrentMemberAssignmentValue():
            return {"epoch": value.member_epoch, "state": value.state}
        case _:
            return {}


def _client_fields(value: Any) -> dict[str, Any]:
    return {"client_id": value.client_id, "client_host": value.client_host, "rack": value.rack_id}


def _assignment_fields(value: Any) -> dict[str, Any]:
    return {
        "epoch": value.member_epoch,
        "state": value.state,
        "assigned": _flat(value.assigned_partitions),
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
    """Return microseconds, the unit of Arrow and Spark; None for a negative time, which means that
    there is none."""
    return None if milliseconds < 0 else min(milliseconds, _MAX_MILLISECONDS) * 1000


def to_events(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Convert rows of `READ_COLUMNS` to rows of `schema`; `mapInArrow` runs this.

    The rows of a batch do not keep their order: those of commits come first.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from kafkagroup.spark.commit_columns import decode_commits

    arrow_schema = schema()

    for batch in batches:
        commits = decode_commits(
            batch.column("key"),
            batch.column("value"),
            arrow_schema.field("commit").type,
            _MAX_MILLISECONDS,
        )
        if count := len(commits.rows):
            yield _commit_rows(batch.take(commits.rows), commits, arrow_schema)
        if count == batch.num_rows:
            continue
        is_other = pc.invert(pc.is_in(pa.array(range(batch.num_rows)), commits.rows))
        batch = batch.filter(is_other)
        # As numbers: there are times in a log for which Python has no datetime.
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        columns = (
            batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")
        )
        rows = [
            {
                "log_partition": partition,
                "log_offset": offset,
                "log_time": time,
                **event_of(key, value),
            }
            for time, partition, offset, key, value in zip(times, *columns, strict=True)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema)


def _commit_rows(
    batch: pyarrow.RecordBatch, commits: CommitColumns, arrow_schema: pyarrow.Schema
) -> pyarrow.RecordBatch:
    """Return the rows of commits; `batch` has the partition, offset and timestamp of each."""
    import pyarrow as pa

    columns = {
        "log_partition": batch.column("partition"),
        "log_offset": batch.column("offset"),
        "log_time": batch.column("timestamp"),
        "record": pa.repeat("OffsetCommit", batch.num_rows),
        "kind": pa.repeat("offsets", batch.num_rows),
        "group_id": commits.group_id,
        "removed": commits.removed,
        "commit": commits.commit,
    }
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(batch.num_rows, field.type)
        for field in arrow_schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)

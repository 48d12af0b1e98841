"""Responses as large as the limits allow: decoding and inflating them must not block the loop.

The broker is correct otherwise. The delay of another task of the loop is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from uuid import UUID

import attrs
from old_messages import compressed, message

from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.codec import encode
from kafkagroup.wire.compression import Codec, compress
from kafkagroup.wire.embedded_protocol import Subscription, encode_assignment, encode_subscription
from kafkagroup.wire.messages import (
    consumer_heartbeat,
    fetch,
    group,
    metadata,
    offsets,
    produce,
)
from kafkagroup.wire.schema import Request

from .honest import TOPIC_ID, cluster_of, fetched, joined, serving, synced, topic_of
from .records import batch, encode_varint, zeros
from .server import Conversation, Wire
from .trial import MEBIBYTE, Attack

__all__ = ["ATTACKS", "ELEMENTS", "OWNED"]

ELEMENTS = 250_000
"""Most elements of one response."""

OWNED = 10_000
"""Partitions of a large assignment. The limit is 100,000, of which the broker here takes as long to
answer as the client to ask."""

LED = 90_000
"""Partitions that a leader assigns."""

_PER_TOPIC = 100
"""Partitions of each topic."""


def _topic_id(number: int) -> UUID:
    return UUID(int=number + 1_000)


def _topics(partitions: int) -> list[range]:
    """Return the partitions of topic 0, topic 1 and so on, `partitions` in all."""
    return [
        range(min(_PER_TOPIC, partitions - start)) for start in range(0, partitions, _PER_TOPIC)
    ]


# ---------------------------------------------------------------- one large answer to one request


def _metadata(partitions: int) -> tuple[metadata.MetadataResponseTopic, ...]:
    return tuple(
        metadata.MetadataResponseTopic(
            error_code=0,
            name=f"t{number}",
            topic_id=_topic_id(number),
            partitions=tuple(
                metadata.MetadataResponsePartition(
                    error_code=0,
                    partition_index=index,
                    leader_id=1,
                    leader_epoch=0,
                    replica_nodes=(1, 2 + number % 7, 3),
                    isr_nodes=(1, 3),
                )
                for index in indexes
            ),
        )
        for number, indexes in enumerate(_topics(partitions))
    )


def _metadata_response() -> object:
    node = metadata.MetadataResponseBroker(node_id=1, host="h", port=1)
    return metadata.MetadataResponse(brokers=(node,), topics=_metadata(ELEMENTS * 49 // 50))


def _coordinators() -> object:
    found = metadata.Coordinator(key="g", node_id=1, host="h", port=1)
    return metadata.FindCoordinatorResponse(coordinators=(found,) * ELEMENTS)


def _listed_groups() -> object:
    listed = group.ListedGroup(group_id="g", protocol_type="consumer")
    return group.ListGroupsResponse(error_code=0, groups=(listed,) * ELEMENTS)


def _described_group() -> object:
    member = group.DescribedGroupMember(
        member_id="m", client_id="c", client_host="h", member_metadata=b"", member_assignment=b""
    )
    described = group.DescribedGroup(
        error_code=0,
        group_id="g",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=(member,) * (ELEMENTS - 1),
    )
    return group.DescribeGroupsResponse(groups=(described,))


def _heartbeat() -> object:
    topic = consumer_heartbeat.TopicPartitions(topic_id=TOPIC_ID, partitions=(0,))
    return consumer_heartbeat.ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=0,
        member_epoch=1,
        heartbeat_interval_ms=1_000,
        assignment=consumer_heartbeat.Assignment(topic_partitions=(topic,) * 200_000),
    )


def _members() -> object:
    member = group.JoinGroupResponseMember(member_id="m", metadata=b"")
    return group.JoinGroupResponse(
        error_code=0, protocol_name="range", leader="m", member_id="m", members=(member,) * ELEMENTS
    )


def _assignment() -> object:
    partitions = [TopicPartition("t", number) for number in range(100_000)]
    return group.SyncGroupResponse(error_code=0, assignment=encode_assignment(partitions))


def _all_committed() -> object:
    part = offsets.OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=1, metadata="", error_code=0
    )
    topic = offsets.OffsetFetchResponseTopics(
        name="t", topic_id=TOPIC_ID, partitions=(part,) * (ELEMENTS - 2)
    )
    found = offsets.OffsetFetchResponseGroup(group_id="g", topics=(topic,), error_code=0)
    return offsets.OffsetFetchResponse(groups=(found,))


def _all_listed() -> object:
    part = offsets.ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=1)
    topic = offsets.ListOffsetsTopicResponse(name="t", partitions=(part,) * (ELEMENTS - 1))
    return offsets.ListOffsetsResponse(topics=(topic,))


def _all_taken() -> object:
    part = offsets.OffsetCommitResponsePartition(partition_index=0, error_code=0)
    topic = offsets.OffsetCommitResponseTopic(
        name="t", topic_id=TOPIC_ID, partitions=(part,) * (ELEMENTS - 1)
    )
    return offsets.OffsetCommitResponse(topics=(topic,))


def _all_fetched() -> object:
    part = fetch.PartitionData(partition_index=0, error_code=0, high_watermark=9, records=b"")
    topic = fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(part,) * (ELEMENTS - 1))
    return fetch.FetchResponse(responses=(topic,))


def _all_appended() -> object:
    part = produce.PartitionProduceResponse(index=0, error_code=0, base_offset=1)
    topic = produce.TopicProduceResponse(
        topic_id=TOPIC_ID, partition_responses=(part,) * (ELEMENTS - 1)
    )
    return produce.ProduceResponse(responses=(topic,))


_LARGE: Mapping[str, tuple[type[Request[Any]], Callable[[], object]]] = {
    "245,000 partitions of metadata": (metadata.MetadataRequest, _metadata_response),
    "250,000 coordinators": (metadata.FindCoordinatorRequest, _coordinators),
    "250,000 groups": (group.ListGroupsRequest, _listed_groups),
    "a group of 250,000 members": (group.DescribeGroupsRequest, _described_group),
    "200,000 topics in a heartbeat": (
        consumer_heartbeat.ConsumerGroupHeartbeatRequest,
        _heartbeat,
    ),
    "250,000 members to lead": (group.JoinGroupRequest, _members),
    "100,000 partitions assigned": (group.SyncGroupRequest, _assignment),
    "250,000 committed offsets": (offsets.OffsetFetchRequest, _all_committed),
    "250,000 offsets of logs": (offsets.ListOffsetsRequest, _all_listed),
    "250,000 offsets taken": (offsets.OffsetCommitRequest, _all_taken),
    "250,000 partitions without records": (fetch.FetchRequest, _all_fetched),
    "250,000 partitions appended to": (produce.ProduceRequest, _all_appended),
}


def _answered(name: str, request: type[Request[Any]], makes: Callable[[], object]) -> Attack:
    def does() -> Conversation:
        # Encoded once, and before the client asks.
        data = encode(makes(), request.versions.high)
        return serving({request: lambda _, __: data})

    return Attack(
        name=name,
        family="sizes",
        does=does,
        client="ask",
        job={"request": request.__name__.removesuffix("Request")},
        ends=request.response.__name__,
        mebibytes=300,
        long=True,
    )


# ---------------------------------------------------------------- large batches


@cache
def _values() -> bytes:
    """Return the records of a batch: 90 of 1 MiB of zeros."""
    return encode_batch([NewRecord(None, bytes(MEBIBYTE))] * 90)[61:]


def _dense(codec: Codec) -> Conversation:
    data = batch(compress(codec, _values()), codec=codec, count=90, delta=89)
    return serving({fetch.FetchRequest: lambda _, __: fetched(data)})


def _tiny_batches() -> Conversation:
    """Return as many batches as fit into 40 MiB for one partition."""
    one = encode_batch([NewRecord(None, b"")])
    count = 40 * MEBIBYTE // len(one)
    data = b"".join(with_base_offset(one, number, 0) for number in range(count))
    return serving({fetch.FetchRequest: lambda _, __: fetched(data)})


def _middle() -> Conversation:
    """Return a batch of three million records; the position is at its last one."""
    count = 3_000_000
    payload = b"".join(map(_tiny_record, range(count)))
    data = batch(payload, count=count, delta=count - 1)
    return serving({fetch.FetchRequest: lambda _, __: fetched(data)})


def _tiny_record(delta: int) -> bytes:
    body = b"\0\0" + encode_varint(delta) + b"\x01\x01\0"
    return encode_varint(len(body)) + body


def _compressed_markers() -> Conversation:
    """Return control batches that are decompression bombs."""
    bomb = batch(zeros(Codec.GZIP, 100), codec=Codec.GZIP | 0x20)
    data = b"".join(with_base_offset(bomb, number, 0) for number in range(5))
    good = with_base_offset(encode_batch([NewRecord(None, b"v")]), 5, 0)
    return serving({fetch.FetchRequest: lambda _, __: fetched(data + good, last_stable_offset=9)})


def _batches(name: str, does: Callable[[], Conversation], ends: str, **more: Any) -> Attack:
    return Attack(
        name=name,
        family="sizes",
        does=does,
        ends=ends,
        **{"client": "consume", "mebibytes": 300, "long": True, **more},
    )


# ---------------------------------------------------------------- large groups and clusters


def _cluster(wire: Wire, topics: tuple[metadata.MetadataResponseTopic, ...]) -> object:
    return cluster_of(wire, topics=(topic_of(), *topics))


@cache
def _on_one_node(partitions: int) -> tuple[metadata.MetadataResponseTopic, ...]:
    return tuple(
        attrs.evolve(
            topic,
            partitions=tuple(
                attrs.evolve(p, replica_nodes=(1,), isr_nodes=(1,)) for p in topic.partitions
            ),
        )
        for topic in _metadata(partitions)
    )


def _all_topics() -> Conversation:
    """Return a cluster for a consumer with a pattern."""
    topics = _metadata(200_000)
    return serving({metadata.MetadataRequest: lambda _, wire: _cluster(wire, topics)})


def _led(request: group.JoinGroupRequest) -> group.JoinGroupResponse:
    """Return a group in which the member leads 900 others with 100 partitions each."""
    topics = tuple(topic.name or "" for topic in _on_one_node(LED))
    others = (
        group.JoinGroupResponseMember(
            member_id=f"m{number}",
            metadata=encode_subscription(
                Subscription(
                    topics=topics,
                    owned=tuple(TopicPartition(f"t{number}", p) for p in range(_PER_TOPIC)),
                    generation=1,
                )
            ),
        )
        for number in range(len(topics))
    )
    me = group.JoinGroupResponseMember(member_id="me", metadata=request.protocols[0].metadata)
    return joined(request, leader="me", members=(me, *others))


def _assigning(target: consumer_heartbeat.Assignment) -> dict[type[Request[Any]], Any]:
    """Return the responses of a coordinator that assigns this to each member (KIP-848)."""

    def beat(request: consumer_heartbeat.ConsumerGroupHeartbeatRequest, _: Wire) -> object:
        return consumer_heartbeat.ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=0,
            member_id=request.member_id,
            member_epoch=1,
            heartbeat_interval_ms=1_000,
            assignment=target if request.topic_partitions is not None else None,
        )

    return {consumer_heartbeat.ConsumerGroupHeartbeatRequest: beat}


def _owning(topics: tuple[metadata.MetadataResponseTopic, ...]) -> dict[type[Request[Any]], Any]:
    """Return a cluster with these topics, all with a committed offset of 0."""
    names = {topic.topic_id: topic.name for topic in topics}

    def committed(request: offsets.OffsetFetchRequest, _: Wire) -> object:
        asked = request.groups[0].topics or ()
        found = tuple(
            offsets.OffsetFetchResponseTopics(
                name=topic.name or names.get(topic.topic_id, ""),
                topic_id=topic.topic_id,
                partitions=tuple(
                    offsets.OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=0, metadata="", error_code=0
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in asked
        )
        whole = offsets.OffsetFetchResponseGroup(group_id="g", topics=found, error_code=0)
        return offsets.OffsetFetchResponse(groups=(whole,))

    def records(request: fetch.FetchRequest, _: Wire) -> object:
        """Answer the first request with a record of each partition, and hold the others."""
        if not request.topics:
            return None
        record = encode_batch([NewRecord(None, b"v")])
        found = tuple(
            fetch.FetchableTopicResponse(
                topic_id=topic.topic_id,
                partitions=tuple(
                    fetch.PartitionData(
                        partition_index=part.partition,
                        error_code=0,
                        high_watermark=1,
                        records=record if not part.fetch_offset else b"",
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return fetch.FetchResponse(responses=found)

    return {
        metadata.MetadataRequest: lambda _, wire: _cluster(wire, topics),
        offsets.OffsetFetchRequest: committed,
        fetch.FetchRequest: records,
    }


def _classic_owner() -> Conversation:
    topics = _on_one_node(OWNED)
    mine = [TopicPartition(t.name or "", p.partition_index) for t in topics for p in t.partitions]
    assignment = encode_assignment(mine)
    return serving(
        {
            **_owning(topics),
            group.SyncGroupRequest: lambda request, _: synced(request, assignment=assignment),
        }
    )


def _consumer_owner() -> Conversation:
    topics = _on_one_node(OWNED)
    target = consumer_heartbeat.Assignment(
        topic_partitions=tuple(
            consumer_heartbeat.TopicPartitions(
                topic_id=t.topic_id, partitions=tuple(p.partition_index for p in t.partitions)
            )
            for t in topics
        )
    )

    return serving({**_owning(topics), **_assigning(target)})


def _leader() -> Conversation:
    topics = _on_one_node(LED)
    return serving(
        {
            **_owning(topics),
            group.JoinGroupRequest: lambda request, _: _led(request),
            # Its own assignment, whatever it computed for the group.
            group.SyncGroupRequest: lambda request, _: synced(
                request, assignment=encode_assignment([TopicPartition("t0", 0)])
            ),
        }
    )


def _unknown_topics() -> Conversation:
    """Return a group whose coordinator assigns topics that no broker knows (KIP-848)."""
    target = consumer_heartbeat.Assignment(
        topic_partitions=tuple(
            consumer_heartbeat.TopicPartitions(topic_id=_topic_id(number), partitions=(0,))
            for number in range(200_000)
        )
    )

    return serving(_assigning(target))


def _topics_without_partitions() -> Conversation:
    topics = tuple(attrs.evolve(topic_of(), name=f"t{n}", partitions=()) for n in range(190_000))
    return serving({metadata.MetadataRequest: lambda _, wire: _cluster(wire, topics)})


def _old_bomb() -> Conversation:
    """Return a message of format 1 that decompresses to 126 MiB of messages."""
    inside = message(1, 0, bytes(1_000))
    count = 126 * MEBIBYTE // len(inside)
    data = compressed(
        1, Codec.GZIP, count - 1, b"".join(n.to_bytes(8, "big") + inside[8:] for n in range(count))
    )
    return serving({fetch.FetchRequest: lambda _, __: fetched(data)})


_MATCHING = {"consumer": {"group_id": "g", "pattern": "t.*", "group_protocol": "classic"}}
_ASSIGNED = {"consumer": {**_MATCHING["consumer"], "group_protocol": "consumer"}}

ATTACKS = (
    *(_answered(name, request, makes) for name, (request, makes) in _LARGE.items()),
    *(
        _batches(
            f"90 MiB in a batch of {codec.name.lower()}", lambda c=codec: _dense(c), "t/0 at 0"
        )
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
    ),
    _batches("40 MiB of tiny batches", _tiny_batches, "t/0 at 0"),
    _batches(
        "a position behind three million records",
        _middle,
        "t/0 at 2999999",
        client="consume_at",
        job={"offset": 2_999_999},
    ),
    _batches(
        "compressed markers",
        _compressed_markers,
        "t/0 at 5",
        job={"consumer": {"isolation_level": "read_committed"}},
    ),
    _batches(
        "a pattern over 200,000 partitions",
        _all_topics,
        "t/0 at 0",
        client="match",
        job={"consumer": {"pattern": "t"}},
    ),
    _batches(
        "10,000 partitions owned (classic)",
        _classic_owner,
        "t... at 0",
        client="match",
        job=_MATCHING,
    ),
    _batches(
        "10,000 partitions owned (consumer)",
        _consumer_owner,
        "t... at 0",
        client="match",
        job=_ASSIGNED,
    ),
    _batches(
        "10,000 positions committed",
        _classic_owner,
        f"{OWNED} committed",
        client="commit_all",
        job={**_MATCHING, "records": OWNED},
    ),
    _batches(
        "a group of 901 members to assign to", _leader, "t0/0 at 0", client="match", job=_MATCHING
    ),
    _batches(
        "200,000 unknown topics assigned",
        _unknown_topics,
        "no end within 4 s",
        client="join",
        job={"patience": 4.0, "consumer": {"group_protocol": "consumer"}},
    ),
    _batches(
        "190,000 topics without partitions",
        _topics_without_partitions,
        "t/0 at 0",
        client="match",
        job=_MATCHING,
    ),
    _batches("126 MiB in a message of gzip", _old_bomb, "t/0 at 0", mebibytes=200),
)

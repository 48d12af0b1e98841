"""The responses of a correct broker: one node that leads t/0 and coordinates every group.

An attack replaces some of them; the others remain, so that the client gets to that point.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import attrs

from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.embedded_protocol import encode_assignment
from kafkagroup.wire.messages import fetch, group, metadata, offsets
from kafkagroup.wire.schema import Request

from .server import SPOKEN, Conversation, Wire

__all__ = [
    "TOPIC_ID",
    "Raw",
    "Response",
    "Responses",
    "at_first",
    "cluster_of",
    "committed",
    "fetched",
    "honest",
    "joined",
    "listed",
    "one_record",
    "serving",
    "synced",
    "topic_of",
    "versions",
]

TOPIC_ID = UUID(int=7)
"""Of the topic "t"."""


@attrs.frozen
class Raw:
    """Bytes for the socket, including the frame."""

    data: bytes


Response = Callable[[Any, Wire], object]
"""Request, connection -> a message, `bytes` for a body, `Raw`; None for no response at all."""

Responses = Mapping[type[Request[Any]], Response]


def honest(request: type[Request[Any]]) -> Response:
    """Return the correct response to a request."""
    return _HONEST[request]


def at_first(times: int, ill: Response, well: Response) -> Response:
    """Answer with the attack a few times, on any connection, then correctly."""
    numbers = itertools.count()
    lock = threading.Lock()

    def respond(request: Any, wire: Wire) -> object:
        with lock:
            number = next(numbers)
        return (ill if number < times else well)(request, wire)

    return respond


def serving(responses: Responses | None = None) -> Conversation:
    """Answer every request until the client disconnects: with the given responses, otherwise
    correctly."""
    all_responses = {**_HONEST, **(responses or {})}

    def conversation(wire: Wire) -> None:
        while True:
            incoming = wire.request()
            message = all_responses[type(incoming.request)](incoming.request, wire)
            if isinstance(message, Raw):
                wire.send(message.data)
            elif message is not None:
                wire.respond(incoming, message)

    return conversation


def versions(**fields: Any) -> metadata.ApiVersionsResponse:
    """Return all versions of the client."""
    keys = tuple(
        metadata.ApiVersion(
            api_key=cls.api_key, min_version=cls.versions.low, max_version=cls.versions.high
        )
        for cls in SPOKEN
    )
    return metadata.ApiVersionsResponse(**{"error_code": 0, "api_keys": keys, **fields})


def topic_of(leader: int = 1, **fields: Any) -> metadata.MetadataResponseTopic:
    """Return the topic "t", by default with partition 0."""
    partition = metadata.MetadataResponsePartition(
        error_code=0,
        partition_index=0,
        leader_id=leader,
        leader_epoch=0,
        replica_nodes=(1,),
        isr_nodes=(1,),
    )
    given = {"error_code": 0, "name": "t", "topic_id": TOPIC_ID, "partitions": (partition,)}
    return metadata.MetadataResponseTopic(**(given | fields))


def cluster_of(
    wire: Wire, address: tuple[str, int] | None = None, **fields: Any
) -> metadata.MetadataResponse:
    """Return metadata with node 1 at this connection's own address, or at another."""
    host, port = address or wire.socket.getsockname()
    node = metadata.MetadataResponseBroker(node_id=1, host=host, port=port)
    return metadata.MetadataResponse(**{"brokers": (node,), "topics": (topic_of(),), **fields})


def coordinator_of(wire: Wire, **fields: Any) -> metadata.FindCoordinatorResponse:
    """Return a response that names node 1 as coordinator."""
    host, port = wire.socket.getsockname()
    given = {"key": "g", "node_id": 1, "host": host, "port": port}
    found = metadata.Coordinator(**(given | fields))
    return metadata.FindCoordinatorResponse(coordinators=(found,))


def joined(request: group.JoinGroupRequest, **fields: Any) -> group.JoinGroupResponse:
    """Return the join response of a follower."""
    given = {
        "error_code": 0,
        "generation_id": 1,
        "protocol_type": request.protocol_type,
        "protocol_name": request.protocols[0].name,
        "leader": "other",
        "member_id": "me",
        "members": (),
    }
    return group.JoinGroupResponse(**(given | fields))


def synced(request: group.SyncGroupRequest, **fields: Any) -> group.SyncGroupResponse:
    """Return an assignment of t/0."""
    given = {
        "error_code": 0,
        "protocol_type": request.protocol_type,
        "protocol_name": request.protocol_name,
        "assignment": encode_assignment([TopicPartition("t", 0)]),
    }
    return group.SyncGroupResponse(**(given | fields))


def listed(request: offsets.ListOffsetsRequest, offset: int) -> offsets.ListOffsetsResponse:
    """Return `offset` as start and end of every log."""
    topics = tuple(
        offsets.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=tuple(
                offsets.ListOffsetsPartitionResponse(
                    partition_index=part.partition_index, error_code=0, offset=offset
                )
                for part in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return offsets.ListOffsetsResponse(topics=topics)


def committed(offset: int) -> offsets.OffsetFetchResponse:
    """Return the group's committed offset of t/0; -1 for none."""
    part = offsets.OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=offset, metadata="", error_code=0
    )
    topic = offsets.OffsetFetchResponseTopics(name="t", topic_id=TOPIC_ID, partitions=(part,))
    found = offsets.OffsetFetchResponseGroup(group_id="g", topics=(topic,), error_code=0)
    return offsets.OffsetFetchResponse(groups=(found,))


def committing(request: offsets.OffsetCommitRequest) -> offsets.OffsetCommitResponse:
    """Acknowledge any commit."""
    topics = tuple(
        offsets.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                offsets.OffsetCommitResponsePartition(
                    partition_index=part.partition_index, error_code=0
                )
                for part in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return offsets.OffsetCommitResponse(topics=topics)


def fetched(records: bytes, **fields: Any) -> fetch.FetchResponse:
    """Return these record batches, by default of t/0."""
    given = {"partition_index": 0, "error_code": 0, "high_watermark": 9, "records": records}
    part = fetch.PartitionData(**(given | fields))
    topic = fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(part,))
    return fetch.FetchResponse(responses=(topic,))


def one_record(request: fetch.FetchRequest) -> fetch.FetchResponse:
    """Return a record at the requested offset."""
    if not request.topics:
        return fetch.FetchResponse(responses=())
    asked = request.topics[0].partitions[0]
    record = encode_batch([NewRecord(None, b"v")])
    return fetched(with_base_offset(record, asked.fetch_offset, 0), partition_index=asked.partition)


_HONEST: Responses = {
    metadata.ApiVersionsRequest: lambda _, __: versions(),
    metadata.MetadataRequest: lambda _, wire: cluster_of(wire),
    metadata.FindCoordinatorRequest: lambda _, wire: coordinator_of(wire),
    fetch.FetchRequest: lambda request, _: one_record(request),
    offsets.ListOffsetsRequest: lambda request, _: listed(request, 0),
    offsets.OffsetFetchRequest: lambda _, __: committed(-1),
    offsets.OffsetCommitRequest: lambda request, _: committing(request),
    group.JoinGroupRequest: lambda request, _: joined(request),
    group.SyncGroupRequest: lambda request, _: synced(request),
    group.HeartbeatRequest: lambda _, __: group.HeartbeatResponse(error_code=0),
    group.LeaveGroupRequest: lambda _, __: group.LeaveGroupResponse(error_code=0),
}

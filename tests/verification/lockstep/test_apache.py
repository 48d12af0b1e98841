"""Apache's own group coordinator answers requests in virtual time, the same in each JVM."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from verification.lockstep.apache import ApacheCoordinator
from verification.lockstep.wire import encode_request

from kafkagroup.errors import ErrorCode
from kafkagroup.testing._jars import LocalKafkaError, LocalKafkaUnavailable
from kafkagroup.wire.codec import decode
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkagroup.wire.messages.group import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkagroup.wire.messages.share_describe import ShareGroupDescribeRequest
from kafkagroup.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    Request,
    array,
    field,
    message,
)
from kafkagroup.wire.schema import struct as wire_struct

R = TypeVar("R")


# The library has no transactions with groups, and no members of share groups.


@wire_struct
class _TxnPartition:
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "2+", default=-1)
    metadata: str | None = field(STRING, nullable="0+")


@wire_struct
class _TxnTopic:
    name: str = field(STRING)
    partitions: tuple[_TxnPartition, ...] = field(array(_TxnPartition))


@wire_struct
class _TxnTopicResponse:
    name: str = field(STRING)
    partitions: tuple[OffsetCommitResponsePartition, ...] = field(
        array(OffsetCommitResponsePartition)
    )


@message(28, "0-5", flexible="3+")
class _TxnOffsetCommitResponse:
    throttle_time_ms: int = field(INT32)
    topics: tuple[_TxnTopicResponse, ...] = field(array(_TxnTopicResponse))


@message(28, "0-5", flexible="3+")
class _TxnOffsetCommitRequest(Request[_TxnOffsetCommitResponse]):
    response = _TxnOffsetCommitResponse

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+", default="")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    topics: tuple[_TxnTopic, ...] = field(array(_TxnTopic))


@message(76, "1", flexible="0+")
class _ShareGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse]):
    response = ConsumerGroupHeartbeatResponse
    """With the same fields."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    rack_id: str | None = field(STRING, default=None, nullable="0+")
    subscribed_topic_names: tuple[str, ...] | None = field(
        array(STRING), default=None, nullable="0+"
    )


_ORDERS = UUID(int=(1 << 64) + (4 << 76) + (2 << 62) + 1)
_PAYMENTS = UUID(int=(2 << 64) + (4 << 76) + (2 << 62) + 2)


def _start() -> ApacheCoordinator:
    try:
        return ApacheCoordinator()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"Apache's coordinator is NOT TESTED: {error}")


@pytest.fixture(scope="module")
def jvm() -> Iterator[ApacheCoordinator]:
    with _start() as coordinator:
        yield coordinator


@pytest.fixture
def client(jvm: ApacheCoordinator) -> _Client:
    jvm.reset(1)
    jvm.set_topics({"orders": (_ORDERS, 4), "payments": (_PAYMENTS, 2)})
    return _Client(jvm)


class _Client:
    def __init__(self, coordinator: ApacheCoordinator) -> None:
        self.coordinator = coordinator
        self._sent: dict[int, tuple[Request[Any], int]] = {}

    def send(self, request: Request[Any], version: int | None = None) -> int:
        """Send a request in this version, the newest by default; return its ticket."""
        version = request.versions.high if version is None else version
        ticket = self.coordinator.submit(_frame(request, version))
        self._sent[ticket] = request, version
        return ticket

    def receive(self) -> dict[int, Any]:
        return {ticket: self._decode(ticket, data) for ticket, data in self.coordinator.responses()}

    def _decode(self, ticket: int, data: bytes) -> Any:
        request, version = self._sent[ticket]
        assert struct.unpack_from(">i", data) == (7,)
        body = data[5:] if version in request.flexible else data[4:]
        return decode(request.response, version, body)

    def ask(self, request: Request[R], version: int | None = None) -> R:
        """Send a request and return its response, which must come at once."""
        ticket = self.send(request, version)
        received = self.receive()
        assert list(received) == [ticket]
        response: R = received[ticket]
        return response

    # ------------------------------------------------------------ classic groups

    def join(self, member_id: str = "", protocol: str = "range") -> int:
        return self.send(
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=(JoinGroupRequestProtocol(name=protocol, metadata=b"\0\1"),),
            )
        )

    def first_member(self) -> JoinGroupResponse:
        """Return the response to a member that is alone in a new group."""
        self.join()
        (rejected,) = self.receive().values()
        assert rejected.error_code == ErrorCode.MEMBER_ID_REQUIRED
        ticket = self.join(rejected.member_id)
        assert self.receive() == {}, "the group waits for more members"
        self.coordinator.advance(3000)
        joined: JoinGroupResponse = self.receive()[ticket]
        assert joined.error_code == 0
        return joined

    def sync(self, joined: JoinGroupResponse) -> SyncGroupResponse:
        return self.ask(
            SyncGroupRequest(
                group_id="g",
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=(
                    SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine"),
                ),
            )
        )

    def heartbeat(self, joined: JoinGroupResponse) -> HeartbeatResponse:
        return self.ask(
            HeartbeatRequest(
                group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
            )
        )

    # ------------------------------------------------------------ consumer groups

    def consumer_heartbeat(
        self, member: str, epoch: int, group_id: str = "g", **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        return self.ask(
            ConsumerGroupHeartbeatRequest(
                group_id=group_id, member_id=member, member_epoch=epoch, **fields
            )
        )

    def consumer_join(
        self, member: str, *topics: str, group_id: str = "g"
    ) -> ConsumerGroupHeartbeatResponse:
        return self.consumer_heartbeat(
            member,
            0,
            group_id,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=topics,
            topic_partitions=(),
        )


def _frame(request: Request[Any], version: int) -> bytes:
    return encode_request(request, version, "me", 7)


def _assigned(response: ConsumerGroupHeartbeatResponse) -> dict[UUID, tuple[int, ...]]:
    assert response.assignment is not None
    return {topic.topic_id: topic.partitions for topic in response.assignment.topic_partitions}


# ---------------------------------------------------------------- classic groups


def test_a_classic_member_joins_syncs_and_stays(client: _Client) -> None:
    joined = client.first_member()
    assert (joined.generation_id, joined.leader) == (1, joined.member_id)
    assert client.sync(joined).assignment == b"mine"
    assert client.heartbeat(joined).error_code == 0


def test_a_second_member_makes_the_first_join_again(client: _Client) -> None:
    first = client.first_member()
    client.sync(first)
    client.join()
    (rejected,) = client.receive().values()
    second = client.join(rejected.member_id)
    assert client.receive() == {}, "the join of the second waits for that of the first"
    assert client.heartbeat(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = client.join(first.member_id)
    received = client.receive()
    assert received.keys() == {second, again}
    assert {response.generation_id for response in received.values()} == {2}


def test_the_session_of_a_classic_member_expires(client: _Client) -> None:
    joined = client.first_member()
    client.sync(joined)
    client.coordinator.advance(9_999)
    assert client.heartbeat(joined).error_code == 0
    client.coordinator.advance(10_001)
    assert client.heartbeat(joined).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_leaves(client: _Client) -> None:
    joined = client.first_member()
    left = client.ask(
        LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=joined.member_id),))
    )
    assert [member.error_code for member in left.members] == [0]
    assert client.heartbeat(joined).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_without_a_protocol_is_rejected(client: _Client) -> None:
    """The broker checks this before its coordinator."""
    joined = client.first_member()
    response = client.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=(),
        )
    )
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_groups_are_described_and_listed(client: _Client) -> None:
    joined = client.first_member()
    client.sync(joined)
    described = client.ask(DescribeGroupsRequest(groups=("g",), include_authorized_operations=True))
    (group,) = described.groups
    assert (group.group_state, group.protocol_data) == ("Stable", "range")
    assert [(member.client_id, member.client_host) for member in group.members] == [
        ("me", "/127.0.0.1")
    ]
    # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS.
    assert group.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
    (listed,) = client.ask(ListGroupsRequest()).groups
    assert (listed.group_id, listed.group_type) == ("g", "classic")


# ---------------------------------------------------------------- consumer groups


def test_consumer_group_members_share_the_partitions(client: _Client) -> None:
    first, second = "a" * 22, "b" * 22
    joined = client.consumer_join(first, "orders")
    assert (joined.error_code, _assigned(joined)) == (0, {_ORDERS: (0, 1, 2, 3)})
    # The first assignment is a second old before there is another.
    assert _assigned(client.consumer_join(second, "orders")) == {}
    assert client.consumer_heartbeat(first, joined.member_epoch).assignment is None
    client.coordinator.advance(1000)
    revoking = client.consumer_heartbeat(first, joined.member_epoch)
    assert _assigned(revoking) == {_ORDERS: (0, 1)}


def test_the_assignment_follows_a_topic_that_grows(client: _Client) -> None:
    member = "a" * 22
    joined = client.consumer_join(member, "orders")
    client.coordinator.set_topics({"orders": (_ORDERS, 6)})
    client.coordinator.advance(1000)
    grown = client.consumer_heartbeat(member, joined.member_epoch)
    assert _assigned(grown) == {_ORDERS: (0, 1, 2, 3, 4, 5)}


def test_a_regular_expression_subscribes_to_topics(client: _Client) -> None:
    member = "a" * 22
    joined = client.consumer_heartbeat(
        member, 0, rebalance_timeout_ms=60_000, subscribed_topic_regex="pay.*", topic_partitions=()
    )
    assert _assigned(joined) == {}, "the expression is resolved in the background"
    assigned = client.consumer_heartbeat(member, joined.member_epoch)
    assert _assigned(assigned) == {_PAYMENTS: (0, 1)}


def test_the_session_of_a_consumer_group_member_expires(client: _Client) -> None:
    member = "a" * 22
    joined = client.consumer_join(member, "orders")
    client.coordinator.advance(44_999)
    alive = client.consumer_heartbeat(member, joined.member_epoch)
    assert alive.error_code == 0
    client.coordinator.advance(45_001)
    expired = client.consumer_heartbeat(member, alive.member_epoch)
    assert expired.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_consumer_group_is_described(client: _Client) -> None:
    client.consumer_join("a" * 22, "orders")
    described = client.ask(
        ConsumerGroupDescribeRequest(group_ids=("g",), include_authorized_operations=False)
    )
    (group,) = described.groups
    assert [member.subscribed_topic_names for member in group.members] == [("orders",)]


def test_an_invalid_heartbeat_is_rejected_with_a_message(client: _Client) -> None:
    response = client.consumer_heartbeat("a" * 22, 0)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message


def test_settings_are_those_of_a_broker(client: _Client) -> None:
    client.coordinator.settings = {"group.consumer.heartbeat.interval.ms": "7000"}
    try:
        client.coordinator.reset(1)
        assert client.consumer_join("a" * 22, "orders").heartbeat_interval_ms == 7000
    finally:
        client.coordinator.settings = {}


# ---------------------------------------------------------------- offsets


def _commit(*partitions: int, topic: str = "orders", topic_id: UUID = _ORDERS) -> Any:
    return OffsetCommitRequest(
        group_id="g",
        topics=(
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id,
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=40 + partition,
                        committed_metadata="x",
                    )
                    for partition in partitions
                ),
            ),
        ),
    )


def _fetch(
    topic: str = "orders", topic_id: UUID = _ORDERS, *, require_stable: bool = False
) -> OffsetFetchRequest:
    topics = (OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=(0, 1)),)
    group = OffsetFetchRequestGroup(group_id="g", topics=topics)
    return OffsetFetchRequest(groups=(group,), require_stable=require_stable)


def _errors(response: Any) -> list[int]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


@pytest.mark.parametrize("version", [9, 10], ids=["by-name", "by-id"])
def test_committed_offsets_are_fetched(client: _Client, version: int) -> None:
    assert _errors(client.ask(_commit(1), version)) == [0]
    (group,) = client.ask(_fetch(), version).groups
    (topic,) = group.topics
    assert (topic.name, topic.topic_id) in (("orders", UUID(int=0)), ("", _ORDERS))
    assert [(p.committed_offset, p.metadata) for p in topic.partitions] == [(-1, ""), (41, "x")]


def test_unknown_topics_and_partitions_are_rejected(client: _Client) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sorted(_errors(client.ask(_commit(0, 4), 9))) == [0, unknown]
    assert _errors(client.ask(_commit(0, topic="none"), 9)) == [unknown]
    nowhere = UUID(int=5)
    response = client.ask(_commit(0, topic_id=nowhere), 10)
    assert _errors(response) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert response.topics[0].topic_id == nowhere
    (group,) = client.ask(_fetch(topic_id=nowhere), 10).groups
    assert _errors(group) == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


def test_offsets_are_deleted(client: _Client) -> None:
    client.ask(_commit(0, 1))
    partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9))
    deleted = client.ask(
        OffsetDeleteRequest(
            group_id="g",
            topics=(OffsetDeleteRequestTopic(name="orders", partitions=partitions),),
        )
    )
    assert sorted(_errors(deleted)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    (group,) = client.ask(_fetch()).groups
    assert [p.committed_offset for p in group.topics[0].partitions] == [-1, 41]


def test_a_deleted_topic_loses_its_offsets(client: _Client) -> None:
    client.ask(_commit(1))
    client.coordinator.set_topics({"payments": (_PAYMENTS, 2)})
    client.coordinator.set_topics({"orders": (UUID(int=9), 4), "payments": (_PAYMENTS, 2)})
    (group,) = client.ask(_fetch(), 9).groups
    assert [p.committed_offset for p in group.topics[0].partitions] == [-1, -1]


def test_offsets_of_an_open_transaction_are_unstable(client: _Client) -> None:
    partition = _TxnPartition(partition_index=1, committed_offset=5, metadata=None)
    committed = client.ask(
        _TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="g",
            producer_id=1,
            producer_epoch=0,
            topics=(
                _TxnTopic(name="orders", partitions=(partition,)),
                _TxnTopic(name="none", partitions=(partition,)),
            ),
        )
    )
    assert sorted(_errors(committed)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    (group,) = client.ask(_fetch(require_stable=True)).groups
    assert _errors(group) == [0, ErrorCode.UNSTABLE_OFFSET_COMMIT]


# ---------------------------------------------------------------- share groups


def test_members_of_a_share_group_get_partitions(client: _Client) -> None:
    member = "a" * 22
    joined = client.ask(
        _ShareGroupHeartbeatRequest(
            group_id="s",
            member_id=member,
            member_epoch=0,
            subscribed_topic_names=("orders", "payments"),
        )
    )
    assert _assigned(joined) == {}, "the state of the partitions is initialized first"
    client.coordinator.advance(1000)
    assigned = client.ask(
        _ShareGroupHeartbeatRequest(
            group_id="s", member_id=member, member_epoch=joined.member_epoch
        )
    )
    assert _assigned(assigned) == {_ORDERS: (0, 1, 2, 3), _PAYMENTS: (0, 1)}
    (group,) = client.ask(
        ShareGroupDescribeRequest(group_ids=("s",), include_authorized_operations=True)
    ).groups
    assert [described.member_id for described in group.members] == [member]
    too_long = client.ask(
        _ShareGroupHeartbeatRequest(group_id="s", member_id="m" * 37, member_epoch=0)
    )
    assert too_long.error_code == ErrorCode.INVALID_REQUEST


# ---------------------------------------------------------------- the program


def test_a_request_that_does_not_parse_closes_the_connection(client: _Client) -> None:
    request = _frame(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    newer = request[:2] + b"\x00\x63" + request[4:]
    tickets = [client.coordinator.submit(data) for data in (b"", request[:-9], newer)]
    assert client.coordinator.responses() == [(ticket, b"") for ticket in tickets]


def test_a_request_to_another_part_of_the_broker_fails(client: _Client) -> None:
    client.send(MetadataRequest(topics=()))
    with pytest.raises(LocalKafkaError, match="not a request to a group coordinator: METADATA"):
        client.receive()
    client.coordinator.reset(1)
    assert client.consumer_join("a" * 22, "orders").error_code == 0


def test_a_reset_forgets_groups_topics_and_responses(client: _Client) -> None:
    client.first_member()
    client.send(ListGroupsRequest())
    client.coordinator.reset(2)
    assert client.receive() == {}
    assert client.ask(ListGroupsRequest()).groups == ()
    assert _errors(client.ask(_commit(0), 9)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_reload_keeps_what_was_written(client: _Client) -> None:
    member = "a" * 22
    epoch = client.consumer_join(member, "orders", group_id="c").member_epoch
    client.ask(_commit(1))
    joined = client.first_member()
    client.sync(joined)
    client.join()
    (rejected,) = client.receive().values()
    pending = client.join(rejected.member_id)
    client.coordinator.reload()
    assert client.receive()[pending].error_code == ErrorCode.NOT_COORDINATOR
    assert client.heartbeat(joined).error_code == 0, "it has forgotten the rebalance"
    assert client.consumer_heartbeat(member, epoch, group_id="c").error_code == 0
    (group,) = client.ask(_fetch()).groups
    assert [p.committed_offset for p in group.topics[0].partitions] == [-1, 41]


def test_the_time_until_the_next_timer(client: _Client) -> None:
    """A caller with an event loop sleeps that long."""
    client.first_member()
    client.coordinator.advance(7_500)
    client.receive()
    assert client.coordinator.until_next_timer == 2_500, "until the member's session expires"


def test_member_ids_come_from_the_seed(client: _Client) -> None:
    ids = []
    for seed in (5, 6, 5):
        client.coordinator.reset(seed)
        client.join()
        (rejected,) = client.receive().values()
        ids.append(rejected.member_id)
    assert ids[0] == ids[2] != ids[1]


def test_a_jvm_that_died_is_reported() -> None:
    coordinator = _start()
    coordinator._process.kill()
    coordinator._process.wait()
    with pytest.raises(LocalKafkaError, match="the JVM of Apache's coordinator ended"):
        coordinator.responses()
    coordinator.close()


def test_two_jvms_give_the_same_bytes(jvm: ApacheCoordinator) -> None:
    """Random ids differ between JVMs without a seed, and so does the order of `Set.of`."""
    recorded = _play(jvm)
    with _start() as other:
        assert _play(other) == recorded
    assert len(recorded) > 50


def _play(coordinator: ApacheCoordinator) -> list[tuple[int, bytes]]:
    """Return the responses to requests of many members in several groups and worlds."""
    received = []
    topics = {f"t{index}": (UUID(int=index + 1), 3) for index in range(6)}
    for seed in range(2):
        coordinator.reset(seed)
        coordinator.set_topics(topics)
        client = _Client(coordinator)
        first = client.send(ListGroupsRequest())
        for epoch in (0, 1, 1, 1):
            for member in range(8):
                client.join(protocol=f"p{member}")
                client.send(
                    ConsumerGroupHeartbeatRequest(
                        group_id=f"c{member % 2}",
                        member_id=str(member),
                        member_epoch=epoch,
                        rebalance_timeout_ms=60_000,
                        subscribed_topic_names=tuple(topics),
                        topic_partitions=() if epoch == 0 else None,
                    )
                )
            coordinator.advance(1500)
        groups = ("c0", "c1")
        client.send(
            ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=True)
        )
        client.send(ListGroupsRequest())
        received += [(ticket - first, data) for ticket, data in coordinator.responses()]
    return received


def test_a_machine_without_java_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalKafkaUnavailable, match="which holds no bin/java"):
        ApacheCoordinator()

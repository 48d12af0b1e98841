"""Groups as `Admin` describes them, and the specs made from them."""

from contextlib import asynccontextmanager
from uuid import UUID

import anyio
import pytest
from brokers import FAST, Worker, until

from kafkagroup import (
    BrokerError,
    ClosedError,
    ConfigurationError,
    GroupMember,
    GroupProtocol,
    OffsetAndMetadata,
    TopicPartition,
)
from kafkagroup.admin import (
    Admin,
    GroupDescription,
    GroupList,
    GroupListing,
    GroupState,
    GroupType,
    MemberDescription,
)
from kafkagroup.admin.describing import _describe_classic, describe, list_groups
from kafkagroup.assign import (
    GroupSpec,
    MemberSpec,
    cooperative_sticky_assignor,
    range_assignor,
)
from kafkagroup.broker import Broker
from kafkagroup.consume.partition_counts import encode_partition_counts
from kafkagroup.errors import (
    DecodeError,
    ErrorCode,
    IllegalStateError,
    LocalProtocolError,
    NoBrokersAvailableError,
    NotStartedError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Swallow
from kafkagroup.testing.embedded.refusals import refuse
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.transport.metadata import Node
from kafkagroup.wire.embedded_protocol import Subscription, encode_assignment, encode_subscription
from kafkagroup.wire.messages import consumer_describe, share_describe
from kafkagroup.wire.messages.group import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from kafkagroup.wire.messages.share_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

pytestmark = pytest.mark.anyio


async def test_a_group_of_consumers(bootstrap, name, fill):
    await fill(3)
    worker = Worker(
        bootstrap,
        name,
        group_instance_id="node-1",
        client_id="me",
        client_rack="east",
        assignors=[cooperative_sticky_assignor],
    )
    async with worker.consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: worker.owns == [0, 1, 2])
        with anyio.fail_after(20):
            found = await admin.describe_group(name)
            spec = await admin.group_spec(name)
    subscription = Subscription(topics=(name,), rack="east", user_data=b"\xff\xff\xff\xff")
    owned = tuple(TopicPartition(name, p) for p in range(3))
    (member,) = found.members
    assert found == GroupDescription(
        group_id=name,
        state=GroupState.STABLE,
        protocol_type="consumer",
        protocol_name="cooperative-sticky",
        members=(
            MemberDescription(
                member_id=member.member_id,
                instance_id="node-1",
                client_id="me",
                host="/127.0.0.1",
                metadata=encode_subscription(subscription),
                assignment=encode_assignment(owned, encode_partition_counts({name: 3})),
                subscription=subscription,
                partitions=owned,
            ),
        ),
        coordinator=found.coordinator,
    )
    assert f"{found.coordinator.host}:{found.coordinator.port}" in bootstrap
    assert member.member_id.startswith("node-1-")
    assert spec == GroupSpec(
        members={
            member.member_id: MemberSpec(
                topics=frozenset({name}),
                instance_id="node-1",
                rack="east",
                owned=owned,
                generation=0,
                user_data=subscription.user_data,
            )
        },
        partitions={name: 3},
    )


async def test_a_spec_has_the_current_partitions_of_each_member(bootstrap, name, fill):
    await fill(4)
    first = Worker(bootstrap, name, assignors=[cooperative_sticky_assignor])
    second = Worker(bootstrap, name, assignors=[cooperative_sticky_assignor])
    async with first.consumer, second.consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: len(first.owns) == len(second.owns) == 2)
        with anyio.fail_after(20):
            spec = await admin.group_spec(name)
        generation = first.consumer.group_metadata().generation_id
        owns = {w.consumer.group_metadata().member_id: w.owns for w in (first, second)}
    assert {m: [tp.partition for tp in of.owned] for m, of in spec.members.items()} == owns
    # Both remember at most the generation before this one.
    assert {of.generation for of in spec.members.values()} <= set(range(generation + 1))
    assert len({of.generation for of in spec.members.values()}) == 1


async def test_a_topic_that_does_not_exist_is_not_in_the_spec(bootstrap, name, fill):
    await fill(1, 1)  # with a record, as the broker may know an empty topic later
    protocol = GroupProtocol(
        "consumer",
        "range",
        encode_subscription(Subscription(topics=(name, f"{name}-none"))),
        lambda members: {m: encode_assignment([TopicPartition(name, 0)]) for m in members},
    )
    async with GroupMember(name, protocol, bootstrap_servers=bootstrap, **FAST) as member:
        with anyio.fail_after(20):
            await member.wait_generation()
            async with Admin(bootstrap_servers=bootstrap) as admin:
                spec = await admin.group_spec(name)
        (of,) = spec.members.values()
        assert of.topics == {name, f"{name}-none"}
        assert spec.partitions == {name: 1}
        await member.stop()


async def test_a_group_of_another_protocol_type_has_no_spec(bootstrap, name):
    protocol = GroupProtocol("workers", "split", b"about me", lambda members: dict(members))
    async with GroupMember(name, protocol, bootstrap_servers=bootstrap, **FAST) as member:
        with anyio.fail_after(20):
            await member.wait_generation()
            async with Admin(bootstrap_servers=bootstrap) as admin:
                found = await admin.describe_group(name)
                with pytest.raises(IllegalStateError, match="is of type 'workers'; only consumers"):
                    await admin.group_spec(name)
        await member.stop()
    (described,) = found.members
    assert (found.protocol_type, found.protocol_name) == ("workers", "split")
    assert (described.metadata, described.assignment) == (b"about me", b"about me")
    assert (described.subscription, described.partitions) == (None, None)


async def test_a_group_without_members(bootstrap, name, fill):
    await fill(1)
    worker = Worker(bootstrap, name, assignors=[range_assignor])
    async with Admin(bootstrap_servers=bootstrap) as admin:
        async with worker.consumer:
            await until(lambda: worker.owns == [0])
        with anyio.fail_after(20):
            found = await admin.describe_group(name)
            with pytest.raises(IllegalStateError, match=f"group '{name}' has no members"):
                await admin.group_spec(name)
    assert (found.state, found.members) == (GroupState.EMPTY, ())


async def test_a_missing_group_is_an_error(bootstrap, name):
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20), pytest.raises(BrokerError) as caught:
            await admin.describe_group(name)
    assert (caught.value.name, caught.value.retriable) == ("GROUP_ID_NOT_FOUND", False)


async def test_a_broker_without_consumer_groups_reports_the_group_as_missing():
    with EmbeddedKafka(settings=BrokerSettings(consumer_groups=False)) as kafka:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            with anyio.fail_after(20), pytest.raises(BrokerError) as caught:
                await admin.describe_group("g")
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_broker_that_cannot_filter_groups_is_an_error_with_its_name():
    class Old:
        async def request(self, _):
            raise LocalProtocolError("types_filter is not in version 4")

    with pytest.raises(UnsupportedVersionError, match="too old for this filter: types_filter is"):
        await list_groups(Old(), Node(1, "kafka-1", 9092), types=["consumer"])


async def test_a_missing_group_described_as_dead_is_an_error():
    """DescribeGroups 0-5 has no error for a missing group."""
    dead = DescribedGroup(
        error_code=0,
        group_id="g",
        group_state="Dead",
        protocol_type="",
        protocol_data="",
        members=(),
    )

    class Old:
        async def request(self, _):
            return DescribeGroupsResponse(groups=(dead,))

    with pytest.raises(BrokerError) as caught:
        await _describe_classic(Old(), Node(1, "kafka-1", 9092), "g")
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_rebalancing_group_has_no_spec(bootstrap, name):
    """The first member keeps its generation, so the group waits for it."""
    metadata = encode_subscription(Subscription(topics=(name,)))
    protocol = GroupProtocol("consumer", "range", metadata, lambda members: {})
    async with GroupMember(name, protocol, bootstrap_servers=bootstrap, **FAST) as first:
        with anyio.fail_after(20):
            await anext(first)
            async with anyio.create_task_group() as tasks:
                late = GroupMember(name, protocol, bootstrap_servers=bootstrap, **FAST)
                await tasks.start(late.run)
                async with Admin(bootstrap_servers=bootstrap) as admin:
                    while True:
                        found = await admin.describe_group(name)
                        if found.state is not GroupState.STABLE:
                            break
                        await anyio.sleep(0.01)
                    with pytest.raises(IllegalStateError) as caught:
                        await admin.group_spec(found)
                first.rejoin()
                await first.stop()
                await late.stop()
    assert str(caught.value) == (
        f"group '{name}' is in state PreparingRebalance, and its coordinator reports subscriptions"
        " only when it is Stable; try again then"
    )
    assert {m.subscription for m in found.members} == {None}


async def test_a_group_of_the_consumer_protocol(bootstrap, name, fill):
    await fill(2)
    worker = Worker(
        bootstrap,
        name,
        group_protocol="consumer",
        group_instance_id="node-1",
        client_id="me",
        heartbeat_interval_ms=None,
        session_timeout_ms=None,
    )
    async with worker.consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: worker.owns == [0, 1])
        with anyio.fail_after(20):
            found = await admin.describe_group(name)
            while found.state is not GroupState.STABLE:
                found = await admin.describe_group(name)
            spec = await admin.group_spec(found)
        epoch = worker.consumer.group_metadata().generation_id
    owned = (TopicPartition(name, 0), TopicPartition(name, 1))
    (member,) = found.members
    assert found == GroupDescription(
        group_id=name,
        type=GroupType.CONSUMER,
        state=GroupState.STABLE,
        protocol_type="consumer",
        protocol_name="uniform",
        group_epoch=epoch,
        assignment_epoch=epoch,
        members=(
            MemberDescription(
                member_id=member.member_id,
                instance_id="node-1",
                client_id="me",
                host="/127.0.0.1",
                subscription=Subscription(topics=(name,), generation=epoch),
                partitions=owned,
                target=owned,
                member_epoch=epoch,
            ),
        ),
        coordinator=found.coordinator,
    )
    assert spec.members[member.member_id].owned == owned


async def test_a_group_with_a_pattern_evaluated_by_the_coordinator_has_no_spec(embedded):
    member = MemberDescription(
        member_id="m",
        client_id="",
        host="",
        subscription=Subscription(topics=()),
        topic_pattern="orders-.*",
    )
    group = GroupDescription(
        group_id="g",
        type=GroupType.CONSUMER,
        state=GroupState.STABLE,
        protocol_type="consumer",
        protocol_name="uniform",
        members=(member,),
        coordinator=Node(1, "kafka-1", 9092),
    )
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(IllegalStateError, match="member 'm' subscribes to the pattern"):
            await admin.group_spec(group)


async def test_groups_are_listed_by_state_and_type(bootstrap, name, fill):
    await fill(1)
    classic = Worker(bootstrap, name, assignors=[range_assignor])
    modern = Worker(
        bootstrap,
        name,
        group_id=f"{name}-848",
        group_protocol="consumer",
        heartbeat_interval_ms=None,
        session_timeout_ms=None,
    )
    async with Admin(bootstrap_servers=bootstrap) as admin:

        async def listed(**filters):
            found = await admin.list_groups(**filters)
            assert found.errors == {}
            return [group for group in found.groups if group.group_id.startswith(name)]

        with anyio.fail_after(30):
            async with modern.consumer:
                async with classic.consumer:
                    await until(lambda: classic.owns == modern.owns == [0])
                    while len(await listed(states=[GroupState.STABLE])) < 2:
                        await anyio.sleep(0.01)
                coordinator = await admin.find_coordinator(name)
                assert await listed(states=[GroupState.EMPTY]) == [
                    GroupListing(
                        group_id=name,
                        type=GroupType.CLASSIC,
                        state=GroupState.EMPTY,
                        protocol_type="consumer",
                        coordinator=coordinator,
                    )
                ]
                (of_848,) = await listed(types=[GroupType.CONSUMER])
                assert (of_848.group_id, of_848.type) == (f"{name}-848", GroupType.CONSUMER)
                assert await listed(states=[GroupState.DEAD]) == []
                both = await listed()
    assert [group.group_id for group in both] == [name, f"{name}-848"]


async def test_an_unknown_filter_value_is_an_error(embedded):
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(ConfigurationError, match="'Unknown' is none of Assigning, "):
            await admin.list_groups(states=[GroupState.UNKNOWN])


async def test_each_group_has_its_own_description_or_error(bootstrap, name, fill):
    await fill(1)
    worker = Worker(bootstrap, name, assignors=[range_assignor])
    async with worker.consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: worker.owns == [0])
        with anyio.fail_after(20):
            found = await admin.describe_groups([f"{name}-none", name])
    assert list(found) == [f"{name}-none", name]
    absent, there = found.values()
    assert isinstance(absent, BrokerError)
    assert absent.name == "GROUP_ID_NOT_FOUND"
    assert isinstance(there, GroupDescription)
    assert there.group_id == name


async def test_a_broker_that_fails_to_list_groups_does_not_hide_other_groups():
    with EmbeddedKafka({"t": 1}, nodes=2) as kafka:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            groups = [f"g{n}" for n in range(8)]
            for group in groups:
                home = await admin.find_coordinator(group)
                async with Broker.open(home.host, home.port) as broker:
                    offsets = {TopicPartition("t", 0): OffsetAndMetadata(0)}
                    await broker.commit_consumer_group_offsets(group, -1, "", offsets)
            kafka.fail(ListGroupsRequest, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            with anyio.fail_after(20):
                found = await admin.list_groups()
    (error,) = found.errors.values()
    assert isinstance(error, BrokerError)
    assert error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert 0 < len(found.groups) < 8
    assert isinstance(found, GroupList)


class OneCoordinator:
    """The only broker of a cluster without classic groups; its coordinator gives this response to
    all other requests."""

    def __init__(self, **responses):
        self.responses = responses

    node_id, host, port = 1, "kafka-1", 9092

    @asynccontextmanager
    async def coordinator(self, _):
        yield self

    async def request(self, request):
        if (response := self.responses.get(type(request).__name__)) is not None:
            return response
        if isinstance(request, ShareGroupDescribeRequest):
            raise UnsupportedVersionError("no share groups")
        return refuse(request, ErrorCode.GROUP_ID_NOT_FOUND, 0)


async def test_a_group_of_a_type_that_cannot_be_described_is_named():
    cluster = OneCoordinator(
        ShareGroupDescribeRequest=ShareGroupDescribeResponse(
            throttle_time_ms=0, groups=(share_group(error_code=69),)
        ),
        ListGroupsRequest=ListGroupsResponse(error_code=0, groups=(STREAMS,)),
    )
    with pytest.raises(IllegalStateError) as caught:
        await describe(cluster, "g")
    assert str(caught.value) == (
        "group 'g' is of type 'streams', in state Stable; only classic, consumer and share groups"
        " can be described"
    )


async def test_a_broker_without_share_groups_does_not_have_the_group():
    cluster = OneCoordinator(ListGroupsRequest=ListGroupsResponse(error_code=0, groups=()))
    with pytest.raises(BrokerError) as caught:
        await describe(cluster, "g")
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_share_group():
    """All members of a share group read the same partitions."""
    members = tuple(
        share_describe.Member(
            member_id=name,
            rack_id="east",
            member_epoch=3,
            client_id="me",
            client_host="/127.0.0.1",
            subscribed_topic_names=("u", "t"),
            assignment=consumer_describe.Assignment(
                topic_partitions=(
                    consumer_describe.TopicPartitions(
                        topic_id=UUID(int=7), topic_name="t", partitions=(1, 0)
                    ),
                )
            ),
        )
        for name in ("b", "a")
    )
    response = ShareGroupDescribeResponse(
        throttle_time_ms=0, groups=(share_group(members=members),)
    )
    found = await describe(OneCoordinator(ShareGroupDescribeRequest=response), "g")
    assert found == GroupDescription(
        group_id="g",
        type=GroupType.SHARE,
        state=GroupState.STABLE,
        protocol_type="share",
        protocol_name="simple",
        group_epoch=4,
        assignment_epoch=3,
        members=tuple(
            MemberDescription(
                member_id=name,
                client_id="me",
                host="/127.0.0.1",
                subscription=Subscription(topics=("t", "u"), generation=3, rack="east"),
                partitions=(TopicPartition("t", 0), TopicPartition("t", 1)),
                member_epoch=3,
            )
            for name in ("a", "b")
        ),
        coordinator=Node(1, "kafka-1", 9092),
    )


def share_group(members=(), error_code=0):
    return share_describe.DescribedGroup(
        error_code=error_code,
        group_id="g",
        group_state="Stable",
        group_epoch=4,
        assignment_epoch=3,
        assignor_name="simple",
        members=members,
    )


STREAMS = ListedGroup(
    group_id="g", protocol_type="streams", group_state="Stable", group_type="streams"
)


async def test_calls_before_the_start_and_after_the_close_raise(bootstrap, name):
    admin = Admin(bootstrap_servers=bootstrap)
    with pytest.raises(NotStartedError, match="not started; use `async with` or start"):
        await admin.describe_group(name)
    async with admin:
        pass
    with pytest.raises(ClosedError, match="closed; make a new one") as refused:
        await admin.describe_group(name)
    assert not isinstance(refused.value, NotStartedError)


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("request_type", "code"),
    [
        (FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (DescribeGroupsRequest, ErrorCode.NOT_COORDINATOR),
        (DescribeGroupsRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_retriable_errors_are_retried(request_type, code):
    """After the retries the coordinator's own response is returned: the group does not exist."""
    with EmbeddedKafka() as kafka:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            fault = kafka.fail(request_type, code, times=2)
            with anyio.fail_after(20), pytest.raises(BrokerError) as caught:
                await admin.describe_group("g")
    assert (caught.value.code, fault.hits) == (ErrorCode.GROUP_ID_NOT_FOUND, 2)


@pytest.mark.parametrize(
    ("request_type", "code"),
    [
        (FindCoordinatorRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (DescribeGroupsRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (MetadataRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_permanent_errors_are_raised_at_once(request_type, code):
    """Well before the timeout of 60 s. A topic error too: without its topic the spec would be
    another group's."""
    with EmbeddedKafka({"t": 1}) as kafka:
        worker = Worker(kafka.bootstrap_servers, "t")
        async with worker.consumer, Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await until(lambda: worker.owns == [0])
            kafka.fail(request_type, code, times=None)
            with anyio.fail_after(20), pytest.raises(BrokerError) as caught:
                await admin.group_spec("t")
            assert caught.value.code == code


async def test_an_unavailable_coordinator_ends_in_a_timeout():
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.fail(DescribeGroupsRequest, ErrorCode.NOT_COORDINATOR, times=None)
        options = {"default_api_timeout_ms": 300, "retry_backoff_ms": 10}
        async with Admin(bootstrap_servers=kafka.bootstrap_servers, **options) as admin:
            with anyio.fail_after(20), pytest.raises(BrokerError) as caught:
                await admin.describe_group("g")
    assert caught.value.code == ErrorCode.NOT_COORDINATOR


async def test_an_unresponsive_coordinator_ends_in_a_timeout():
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.fail(DescribeGroupsRequest, Swallow())
        options = {"default_api_timeout_ms": 100}
        async with Admin(bootstrap_servers=kafka.bootstrap_servers, **options) as admin:
            with anyio.fail_after(20), pytest.raises(RequestTimeoutError) as caught:
                await admin.describe_group("g")
    assert str(caught.value) == "no response within 0.1 s"


async def test_undecodable_metadata_names_its_member():
    protocol = GroupProtocol("consumer", "range", b"\0", lambda members: dict(members))
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        async with GroupMember("g", protocol, bootstrap_servers=servers, **FAST) as member:
            with anyio.fail_after(20):
                await member.wait_generation()
                async with Admin(bootstrap_servers=servers) as admin:
                    with pytest.raises(DecodeError) as caught:
                        await admin.describe_group("g")
            member_id = member.member_id
            await member.stop()
    assert str(caught.value) == (
        f"group 'g', member '{member_id}': subscription of 1 bytes has no version"
    )


async def test_without_a_reachable_broker_calls_raise():
    with anyio.fail_after(20), pytest.raises(NoBrokersAvailableError):
        async with Admin(bootstrap_servers="127.0.0.1:1"):
            pytest.fail("it opened")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers is empty"),
        ({"default_api_timeout_ms": 0}, "default_api_timeout_ms=0; expected 1 to"),
        ({"request_timeout_ms": 0}, "request_timeout_ms=0; expected 1 to"),
        ({"retry_backoff_max_ms": 50}, "retry_backoff_max_ms=50; expected 100 to"),
    ],
)
def test_invalid_arguments_raise(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Admin(**options)


async def test_an_empty_group_id_is_an_error(embedded):
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(ConfigurationError, match="group_id is empty"):
            await admin.describe_group("")

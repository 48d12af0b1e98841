"""Brokers from 2.4 up, as the library promises, on real ones.

Old brokers differ in the versions of requests and their formats, in topics without ids before 2.8,
and in which side restarts the handshake. The rest must not differ.
"""

from contextlib import asynccontextmanager

import anyio
import pytest
from brokers import FAST, Worker, append, numbered, until

from kafkagroup import (
    Consumer,
    GroupMember,
    GroupProtocol,
    OffsetAndMetadata,
    TopicPartition,
)
from kafkagroup.broker import Broker
from kafkagroup.types import OffsetAndTimestamp, TimestampType
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.messages import admin, fetch, group, metadata, offsets, produce
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.records import read_batches
from kafkagroup.wire.schema import NO_ID

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]

HIGHEST = {
    "2.4.1": {
        metadata.MetadataRequest: 9,
        metadata.FindCoordinatorRequest: 3,
        group.JoinGroupRequest: 6,
        group.SyncGroupRequest: 4,
        group.HeartbeatRequest: 4,
        group.LeaveGroupRequest: 4,
        offsets.OffsetCommitRequest: 8,
        offsets.OffsetFetchRequest: 6,
        offsets.ListOffsetsRequest: 5,
        fetch.FetchRequest: 11,
        produce.ProduceRequest: 8,
    },
    "3.9.1": {
        metadata.MetadataRequest: 12,
        metadata.FindCoordinatorRequest: 6,
        group.JoinGroupRequest: 9,
        group.SyncGroupRequest: 5,
        group.HeartbeatRequest: 4,
        group.LeaveGroupRequest: 5,
        offsets.OffsetCommitRequest: 9,
        offsets.OffsetFetchRequest: 9,
        offsets.ListOffsetsRequest: 9,
        fetch.FetchRequest: 17,
        produce.ProduceRequest: 11,
    },
}
"""Release -> request -> the highest version that it and this library speak, from its source."""

HAS_IDS = {"2.4.1": False, "3.9.1": True}
"""Release -> whether its topics have ids (KIP-516)."""


@asynccontextmanager
async def connected(old):
    host, port = old.address(1).split(":")
    async with Broker.open(host, int(port)) as broker:
        yield broker


async def create(broker, name, partitions=1):
    new = admin.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    response = await broker.request(admin.CreateTopicsRequest(topics=(new,)))
    assert [topic.error_code for topic in response.topics] == [0]


async def fill(old, name, partitions, count, start=0):
    """Create the topic if `start` is 0, and append records to each of its partitions."""
    async with connected(old) as broker:
        if start == 0:
            await create(broker, name, partitions)
        for partition in range(partitions):
            records = numbered(partition, count, start)
            await append(broker, TopicPartition(name, partition), records)


async def find_coordinator(broker, name, highest=None):
    """Repeat the lookup until the offsets topic, created for the first group of a broker,
    exists."""
    request = metadata.FindCoordinatorRequest(key_type=0, coordinator_keys=(name,))
    with anyio.fail_after(20):
        while True:
            response = await broker.request(request, highest=highest)
            (found,) = response.coordinators
            if found.error_code == 0:
                return found
            assert found.error_code == 15, "COORDINATOR_NOT_AVAILABLE"
            await anyio.sleep(0.02)


async def take(consumer, count):
    with anyio.fail_after(20):
        return [await consumer.getone() for _ in range(count)]


def versions_of(sent, requests):
    """Return request -> its sent versions, without those of other requests."""
    return {request: set(sent[request.api_key]) for request in requests}


# ------------------------------------------------------------ the handshake


async def test_an_unsupported_api_versions_request_is_retried_in_a_supported_version(old, sent):
    """KIP-511: 2.4 supports ApiVersions up to 3, responds in version 0, and keeps the
    connection."""
    async with connected(old):
        pass
    assert sent == {18: {"2.4.1": [4, 3], "3.9.1": [4]}[old.version]}


async def test_the_highest_versions_are_those_of_the_broker(old):
    async with connected(old) as broker:
        response = await broker.request(metadata.ApiVersionsRequest(), highest=0)
    theirs = {api.api_key: api.max_version for api in response.api_keys}
    highest = HIGHEST[old.version]
    assert {r: min(r.versions.high, theirs[r.api_key]) for r in highest} == highest


# ------------------------------------------------------------ the consumer


async def test_auto_falls_back_to_the_classic_protocol(old, name, sent):
    """2.4 does not know the request that joins a KIP-848 group. 3.9 answers UNSUPPORTED_VERSION,
    which counts once it is repeated."""
    await fill(old, name, 1, 1)
    async with Consumer(
        name, bootstrap_servers=old.bootstrap_servers, group_id=name, group_protocol="auto", **FAST
    ) as consumer:
        assert len(await take(consumer, 1)) == 1
    assert group.JoinGroupRequest.api_key in sent
    refused = sent[ConsumerGroupHeartbeatRequest.api_key]
    assert len(refused) == {"2.4.1": 0, "3.9.1": 2}[old.version]


async def test_consuming_uses_the_highest_common_versions(old, name, sent):
    await fill(old, name, 2, 50)
    tps = [TopicPartition(name, 0), TopicPartition(name, 1)]
    async with Consumer(
        name, bootstrap_servers=old.bootstrap_servers, group_id=name, **FAST
    ) as consumer:
        records = await take(consumer, 100)
        assert sorted((r.partition, r.offset, r.value) for r in records) == [
            (p, n, b"%d/%d" % (p, n)) for p in (0, 1) for n in range(50)
        ]
        await consumer.commit()
        assert await consumer.committed() == {tp: OffsetAndMetadata(50, "", 0) for tp in tps}
        with anyio.fail_after(5):
            while group.HeartbeatRequest.api_key not in sent:
                await anyio.sleep(0.01)
    highest = HIGHEST[old.version]
    assert versions_of(sent, highest) == {request: {v} for request, v in highest.items()}


async def test_committed_records_are_not_consumed_again(old, name):
    await fill(old, name, 1, 10)
    for expected in ([0, 1, 2, 3], [3, 4, 5], [5, 6, 7, 8, 9]):
        # The record in flight when a consumer closes was not processed, and is redelivered.
        async with Consumer(
            name, bootstrap_servers=old.bootstrap_servers, group_id=name, **FAST
        ) as consumer:
            assert [r.offset for r in await take(consumer, len(expected))] == expected


async def test_members_share_partitions_and_take_over(old, name):
    await fill(old, name, 4, 50)
    first, second = (Worker(old.bootstrap_servers, name) for _ in range(2))
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: len(first.seen) == 200)
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 2)
            assert sorted(first.owns + second.owns) == [0, 1, 2, 3]
            await fill(old, name, 4, 100, 50)
            await until(lambda: len(first.seen) + len(second.seen) == 400)
        await until(lambda: len(first.owns) == 4)
        await fill(old, name, 4, 110, 100)
        await until(lambda: len(first.seen) + len(second.seen) == 440)
        await first.consumer.stop()
    # A clean handover: every record once.
    assert sorted(first.seen + second.seen) == [(p, n) for p in range(4) for n in range(110)]


async def test_a_static_member_restarts_without_a_rebalance(old, name):
    """KIP-345: it keeps its partitions, and the others do not rebalance."""
    await fill(old, name, 2, 20)
    first, second, again = (
        Worker(old.bootstrap_servers, name, group_instance_id=instance)
        for instance in ("1", "2", "2")
    )
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: first.story)
        async with second.consumer:
            tasks.start_soon(second.run)
            shared = [("assigned", [0]), ("assigned", [1])]
            await until(
                lambda: second.story and sorted((first.story[-1], second.story[-1])) == shared
            )
            owned, story = second.owns, list(first.story)
        async with again.consumer:
            tasks.start_soon(again.run)
            await until(lambda: again.story)
            assert (again.owns, again.story) == (owned, [("assigned", owned)])
            await fill(old, name, 2, 40, 20)
            await until(lambda: len({*first.seen, *second.seen, *again.seen}) == 80)
            assert first.story == story
        await first.consumer.stop()


async def test_a_consumer_continues_after_a_broker_restart(old, name):
    """Metadata, coordinator and fetch sessions are all found again."""
    await fill(old, name, 2, 20)
    worker = Worker(old.bootstrap_servers, name)
    async with worker.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(lambda: len(worker.seen) == 40)
        await anyio.to_thread.run_sync(old.restart, 1)
        await fill(old, name, 2, 40, 20)
        await until(lambda: {(p, n) for p in (0, 1) for n in range(40)} == set(worker.seen), 40.0)
        await worker.consumer.stop()


@pytest.mark.parametrize("codec", Codec)
async def test_every_codec_is_read_and_written(old, name, codec):
    """The broker inflates each batch to check it, and returns it unchanged."""
    tp = TopicPartition(name, 0)
    records = [
        NewRecord(b"key", b"value" * 500, 1000 + n, (("header", b"%d" % n),)) for n in range(20)
    ]
    async with connected(old) as broker:
        await create(broker, name)
        await append(broker, tp, records[:1])
        response = await broker.produce_messages({tp: encode_batch(records[1:], codec=codec)})
        (produced,) = response.responses[0].partition_responses
        assert (produced.error_code, produced.base_offset) == (0, 1)
        response = await broker.fetch_messages({tp: 1})
        (fetched,) = response.responses[0].partitions
        (batch,) = read_batches(memoryview(fetched.records), topic=name, partition=0)
        assert batch.codec == codec
    async with Consumer(
        name, bootstrap_servers=old.bootstrap_servers, group_id=name, **FAST
    ) as consumer:
        found = await take(consumer, 20)
    assert [(r.key, r.value, r.timestamp, r.headers) for r in found] == records
    assert {r.timestamp_type for r in found} == {TimestampType.CREATE_TIME}


async def test_native_libraries_are_removed_with_the_broker(old, name):
    """A killed JVM leaves its unpacked libraries; in the system's folder they would stay."""
    tp = TopicPartition(name, 0)
    async with connected(old) as broker:
        await create(broker, name)
        await append(broker, tp, numbered(0, 1))
        await broker.produce_messages({tp: encode_batch(numbered(0, 1), codec=Codec.SNAPPY)})
    assert len(list(old.directory.glob("node-1/snappy-*.so"))) == 1


async def test_log_start_and_end_offsets(old, name):
    await fill(old, name, 1, 10)
    tp = TopicPartition(name, 0)
    async with Consumer(
        name, bootstrap_servers=old.bootstrap_servers, group_id=name, **FAST
    ) as consumer:
        await take(consumer, 1)
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 10}
        assert await consumer.offsets_for_times({tp: 1004}) == {tp: OffsetAndTimestamp(4, 1004, 0)}


# ------------------------------------------------------------ other members


def split(members):
    """Return each member's index and the number of members."""
    return {m: b"%d/%d" % (i, len(members)) for i, m in enumerate(sorted(members))}


class RunningMember:
    """A group member in a task; records its assignments."""

    def __init__(self, bootstrap, name):
        self.assigned = []
        self.member = GroupMember(
            name,
            GroupProtocol("workers", "split", b"host", split),
            bootstrap_servers=bootstrap,
            **FAST,
        )

    async def run(self):
        async with self.member:
            async for generation in self.member:
                self.assigned.append(generation.assignment)
                with generation.scope():
                    await anyio.sleep_forever()


async def test_members_of_custom_groups_join_and_leave(old, name):
    first, second = (RunningMember(old.bootstrap_servers, name) for _ in range(2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: first.assigned == [b"0/1"])
        described = await first.member.describe()
        assert described.protocol_type == "workers"
        tasks.start_soon(second.run)
        await until(
            lambda: (
                second.assigned
                and sorted((first.assigned[-1], second.assigned[-1])) == [b"0/2", b"1/2"]
            )
        )
        await second.member.stop()
        await until(lambda: first.assigned[-1] == b"0/1")
        await first.member.stop()


# ------------------------------------------------------------ one request at a time


async def test_a_topic_has_an_id_or_a_name(old, name, sent):
    """Before 2.8 there are no ids: a fetch must use the name."""
    await fill(old, name, 1, 3)
    async with connected(old) as broker:
        response = await broker.request_metadata([name])
        (topic,) = response.topics
        assert (topic.topic_id != NO_ID) == HAS_IDS[old.version]
    async with Consumer(bootstrap_servers=old.bootstrap_servers) as consumer:
        await consumer.assign([TopicPartition(name, 0)])
        assert [r.offset for r in await take(consumer, 3)] == [0, 1, 2]
    # From version 13 on topics go by id.
    assert {version > 12 for version in sent[fetch.FetchRequest.api_key]} == {HAS_IDS[old.version]}


def spoken(old, request):
    """Return every common version of a request."""
    return range(request.versions.low, HIGHEST[old.version][request] + 1)


async def test_every_version_of_produce_and_fetch(old, name):
    tp = TopicPartition(name, 0)
    batch = encode_batch([NewRecord(b"k", b"v", 1000)])
    async with connected(old) as broker:
        await create(broker, name)
        await append(broker, tp, [NewRecord(b"k", b"v", 1000)])
        (topic,) = (await broker.request_metadata([name])).topics
        appended = produce.ProduceRequest(
            acks=-1,
            timeout_ms=5000,
            topic_data=(
                produce.TopicProduceData(
                    name=name,
                    partition_data=(produce.PartitionProduceData(index=0, records=batch),),
                ),
            ),
        )
        for count, version in enumerate(spoken(old, produce.ProduceRequest), 1):
            response = await broker.request(appended, highest=version)
            (partition,) = response.responses[0].partition_responses
            assert (partition.error_code, partition.base_offset) == (0, count), version
        for version in spoken(old, fetch.FetchRequest):
            asked = fetch.FetchRequest(
                max_wait_ms=1000,
                min_bytes=1,
                topics=(
                    fetch.FetchTopic(
                        topic=name,
                        topic_id=topic.topic_id,
                        partitions=(
                            fetch.FetchPartition(
                                partition=0, fetch_offset=0, partition_max_bytes=1 << 20
                            ),
                        ),
                    ),
                ),
            )
            response = await broker.request(asked, highest=version)
            (partition,) = response.responses[0].partitions
            batches = list(read_batches(memoryview(partition.records), topic=name, partition=0))
            assert [b.base_offset for b in batches] == list(range(count + 1)), version


async def test_every_version_of_list_offsets(old, name):
    await fill(old, name, 1, 10)
    async with connected(old) as broker:
        for version in spoken(old, offsets.ListOffsetsRequest):
            for timestamp, offset in ((-2, 0), (-1, 10), (1004, 4)):
                asked = offsets.ListOffsetsRequest(
                    replica_id=-1,
                    topics=(
                        offsets.ListOffsetsTopic(
                            name=name,
                            partitions=(
                                offsets.ListOffsetsPartition(
                                    partition_index=0, timestamp=timestamp
                                ),
                            ),
                        ),
                    ),
                )
                response = await broker.request(asked, highest=version)
                (found,) = response.topics[0].partitions
                assert (found.error_code, found.offset) == (0, offset), (version, timestamp)


async def test_every_version_of_metadata_and_coordinator(old, name):
    host, port = old.address(1).split(":")
    async with connected(old) as broker:
        await create(broker, name, 2)
        await append(broker, TopicPartition(name, 1), numbered(1, 1))
        for version in spoken(old, metadata.MetadataRequest):
            asked = metadata.MetadataRequest(
                topics=(metadata.MetadataRequestTopic(name=name),),
                # Before version 4 a broker is not to be asked to leave topics alone.
                allow_auto_topic_creation=version < 4,
            )
            response = await broker.request(asked, highest=version)
            assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(1, host, int(port))]
            (topic,) = response.topics
            assert (topic.name, sorted(p.partition_index for p in topic.partitions)) == (
                name,
                [0, 1],
            ), version
        for version in spoken(old, metadata.FindCoordinatorRequest):
            found = await find_coordinator(broker, name, version)
            assert (found.key, found.node_id, found.host, found.port) == (
                name,
                1,
                host,
                int(port),
            ), version


@pytest.mark.parametrize("highest", range(10))
async def test_a_member_joins_commits_and_leaves_in_every_version(old, name, highest):
    """Join, lead, send heartbeats, commit, fetch the commit and leave: all in this version, or the
    nearest one of both sides. LeaveGroup before 3 and OffsetFetch before 8 have shapes of their
    own."""

    async def ask(request):
        return await broker.request(request, highest=max(highest, type(request).versions.low))

    await fill(old, name, 1, 1)
    async with connected(old) as broker:
        await find_coordinator(broker, name)
        protocols = (group.JoinGroupRequestProtocol(name="p", metadata=b"m"),)
        member_id = ""
        with anyio.fail_after(20):
            while True:
                joined = await ask(
                    group.JoinGroupRequest(
                        group_id=name,
                        session_timeout_ms=6000,
                        rebalance_timeout_ms=6000,
                        member_id=member_id,
                        protocol_type="workers",
                        protocols=protocols,
                    )
                )
                if joined.error_code == 0:
                    break
                member_id = joined.member_id
                # MEMBER_ID_REQUIRED, or the coordinator has just come to be.
                assert joined.error_code in (79, 14, 16)
        assert (joined.generation_id, joined.leader) == (1, joined.member_id)
        assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, b"m")]
        membership = {"group_id": name, "generation_id": 1, "member_id": joined.member_id}
        synced = await ask(
            group.SyncGroupRequest(
                **membership,
                protocol_type="workers",
                protocol_name="p",
                assignments=(
                    group.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all"),
                ),
            )
        )
        assert (synced.error_code, synced.assignment) == (0, b"all")
        assert (await ask(group.HeartbeatRequest(**membership))).error_code == 0

        committed = await ask(
            offsets.OffsetCommitRequest(
                group_id=name,
                generation_id_or_member_epoch=1,
                member_id=joined.member_id,
                topics=(
                    offsets.OffsetCommitRequestTopic(
                        name=name,
                        partitions=(
                            offsets.OffsetCommitRequestPartition(
                                partition_index=0, committed_offset=7, committed_metadata="note"
                            ),
                        ),
                    ),
                ),
            )
        )
        assert [p.error_code for t in committed.topics for p in t.partitions] == [0]
        await check_committed(ask, name, (7, "note"), everything=highest >= 2)

        leaving = group.MemberIdentity(member_id=joined.member_id)
        left = await ask(group.LeaveGroupRequest(group_id=name, members=(leaving,)))
        assert (left.error_code, [m.error_code for m in left.members]) in ((0, []), (0, [0]))
        # UNKNOWN_MEMBER_ID: the broker has understood who it was.
        assert (await ask(group.HeartbeatRequest(**membership))).error_code == 25


async def check_committed(ask, name, committed, *, everything):
    """Check the offsets by name and, if `everything`, which version 1 lacks, as all of the
    group."""
    named = (offsets.OffsetFetchRequestTopics(name=name, partition_indexes=(0,)),)
    for topics in (named, None) if everything else (named,):
        request = offsets.OffsetFetchRequest(
            groups=(offsets.OffsetFetchRequestGroup(group_id=name, topics=topics),)
        )
        (response,) = (await ask(request)).groups
        assert (response.group_id, response.error_code) == (name, 0)
        assert [
            (t.name, p.partition_index, (p.committed_offset, p.metadata), p.error_code)
            for t in response.topics
            for p in t.partitions
        ] == [(name, 0, committed, 0)]


async def test_the_groups_of_a_broker(old, name):
    async with connected(old) as broker:
        await find_coordinator(broker, name)
        async with GroupMember(
            name,
            GroupProtocol("workers", "split", b"host", split),
            bootstrap_servers=old.bootstrap_servers,
            **FAST,
        ) as member:
            with anyio.fail_after(20):
                await anext(member)
            listed = await broker.request(group.ListGroupsRequest())
            assert (name, "workers") in [(g.group_id, g.protocol_type) for g in listed.groups]
            response = await broker.request(group.DescribeGroupsRequest(groups=(name,)))
            (described,) = response.groups
            assert (described.group_state, described.protocol_data) == ("Stable", "split")
            assert [(m.member_metadata, m.member_assignment) for m in described.members] == [
                (b"host", b"0/1")
            ]
        deleted = await broker.request(group.DeleteGroupsRequest(groups_names=(name,)))
        assert [(r.group_id, r.error_code) for r in deleted.results] == [(name, 0)]

"""Committed offsets read, changed and deleted by `Admin`; members and groups removed."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from brokers import FAST, Worker, until

from kafkagroup import (
    BrokerError,
    ConfigurationError,
    GroupMember,
    GroupProtocol,
    OffsetAndMetadata,
    TopicPartition,
)
from kafkagroup.admin import (
    Admin,
    GroupState,
    OffsetChange,
    OffsetPlan,
    offsets_from_json,
    offsets_to_json,
)
from kafkagroup.assign import range_assignor
from kafkagroup.errors import ChangesRefusedError, ErrorCode, IllegalStateError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.group import DeleteGroupsRequest, LeaveGroupRequest
from kafkagroup.wire.messages.offset_delete import OffsetDeleteRequest
from kafkagroup.wire.messages.offsets import OffsetFetchRequest

pytestmark = pytest.mark.anyio

MODERN = {"group_protocol": "consumer", "heartbeat_interval_ms": None, "session_timeout_ms": None}


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset)


async def test_offsets_are_altered_read_and_deleted(bootstrap, name, fill):
    await fill(3, 5)
    zero, one, two = (TopicPartition(name, p) for p in range(3))
    noted = OffsetAndMetadata(2, "by hand", 0)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            await admin.alter_offsets(name, {one: noted, zero: 4})
            found = await admin.committed([name, f"{name}-none"])
            assert found == {name: {zero: at(4), one: noted}, f"{name}-none": {}}
            assert await admin.delete_offsets(name, [one, two]) == (one, two)
            assert await admin.committed([name]) == {name: {zero: at(4)}}


@pytest.mark.parametrize("options", [{"assignors": [range_assignor]}, MODERN])
async def test_a_group_with_members_keeps_its_offsets(bootstrap, name, fill, options):
    await fill(1, 5)
    tp = TopicPartition(name, 0)
    worker = Worker(bootstrap, name, **options)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        async with worker.consumer:
            await until(lambda: worker.owns == [0])
            await worker.consumer.commit({tp: at(3)})
            with anyio.fail_after(20):
                with pytest.raises(BrokerError) as caught:
                    await admin.alter_offsets(name, {tp: 1})
                with pytest.raises(ChangesRefusedError) as kept:
                    await admin.delete_offsets(name, [tp])
                with pytest.raises(ChangesRefusedError) as undeleted:
                    await admin.delete_groups([name])
            assert await admin.committed([name]) == {name: {tp: at(3)}}
        with anyio.fail_after(20):
            await admin.alter_offsets(name, {tp: 1})
            assert await admin.committed([name]) == {name: {tp: at(1)}}
    assert caught.value.code == ErrorCode.NON_EMPTY_GROUP
    assert str(caught.value) == (
        f"NON_EMPTY_GROUP (68): group '{name}' has members; stop them, or wait until their sessions"
        " have timed out, before its offsets are changed"
    )
    assert kept.value.errors[tp].code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert undeleted.value.errors[name].code == ErrorCode.NON_EMPTY_GROUP


async def test_a_missing_partition_is_an_error_at_once(bootstrap, name, fill):
    """Nothing is committed for the others, and there is no retry as for a partition just
    created."""
    await fill(1)
    there, absent = TopicPartition(name, 0), TopicPartition(name, 7)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            with pytest.raises(BrokerError, match=f"there is no partition {name}/7"):
                await admin.alter_offsets(name, {there: 0, absent: 0})
            assert await admin.committed([name]) == {name: {}}


# ---------------------------------------------------------------- plans


async def test_a_reset_is_planned_and_then_applied(bootstrap, name, fill):
    """Records have timestamps 1.000 s, 1.001 s and so on."""
    await fill(2, 5)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)

    def plan(before, after):
        return OffsetPlan(
            group_id=name,
            changes={tp: OffsetChange(before[tp], at(after[tp])) for tp in (zero, one)},
            cluster_id=admin.cluster_id,
        )

    async with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.cluster_id
        with anyio.fail_after(20):
            await admin.alter_offsets(name, {zero: 2, one: 4})
            now = {zero: at(2), one: at(4)}
            moment = datetime.fromtimestamp(1.003, UTC)
            for how, after in (
                ({"to": "earliest"}, {zero: 0, one: 0}),
                ({"to": "latest"}, {zero: 5, one: 5}),
                ({"to": moment}, {zero: 3, one: 3}),
                ({"to": timedelta(seconds=1)}, {zero: 5, one: 5}),
                ({"to": 3}, {zero: 3, one: 3}),
                ({"to": 99}, {zero: 5, one: 5}),
                ({"shift": 2}, {zero: 4, one: 5}),
                ({"shift": -3}, {zero: 0, one: 1}),
            ):
                assert await admin.plan_reset(name, **how) == plan(now, after)
            assert await admin.committed([name]) == {name: now}
            some = await admin.plan_reset(name, [one], to="earliest")
            await admin.apply(some)
            assert await admin.committed([name]) == {name: {zero: at(2), one: at(0)}}
            with pytest.raises(IllegalStateError, match=f"has committed {name}/1 since the plan"):
                await admin.apply(some)


async def test_partitions_without_later_records_are_reset_to_their_ends():
    """To a time, each partition on its own: one has later records, one has only earlier ones, one
    is empty, and of two the log no longer starts at 0."""
    zero, moment = (datetime.fromtimestamp(seconds, UTC) for seconds in (0, 50))
    with EmbeddedKafka({"t": 5}) as kafka:
        later, earlier, empty, started, deleted = (TopicPartition("t", p) for p in range(5))
        for tp, first in ((later, 48), (earlier, 40), (started, 60), (deleted, 60)):
            stamped = [NewRecord(None, b"x", 1000 * (first + n)) for n in range(5)]
            kafka.append("t", tp.partition, encode_batch(stamped))
        kafka.delete_records("t", started.partition, 3)
        kafka.delete_records("t", deleted.partition, 5)
        committed = {later: 1, earlier: 1, empty: 0, started: 4, deleted: 5}
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            with anyio.fail_after(20):
                await admin.alter_offsets("g", committed)
                found = {
                    str(how): [at.after.offset for at in plan.changes.values()]
                    for how in ("earliest", "latest", moment, zero, timedelta(0), 2)
                    for plan in [await admin.plan_reset("g", to=how)]
                }
                back, on = [
                    [at.after.offset for at in plan.changes.values()]
                    for shift in (-2, 2)
                    for plan in [await admin.plan_reset("g", shift=shift)]
                ]
    assert found == {
        "earliest": [0, 0, 0, 3, 5],
        "latest": [5, 5, 0, 5, 5],
        str(moment): [2, 5, 0, 3, 5],
        str(zero): [0, 0, 0, 3, 5],
        str(timedelta(0)): [5, 5, 0, 5, 5],
        "2": [2, 2, 0, 3, 5],
    }
    assert (back, on) == ([0, 0, 0, 3, 5], [3, 3, 0, 5, 5])


async def test_all_partitions_of_topics(bootstrap, name, fill):
    await fill(2)
    await fill(1, topic=f"{name}-b")
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            found = await admin.partitions([f"{name}-b", name, name])
            assert found == (*(TopicPartition(name, p) for p in (0, 1)), (f"{name}-b", 0))
            with pytest.raises(BrokerError, match=f"there is no topic {name}-c, {name}-d"):
                await admin.partitions([f"{name}-d", name, f"{name}-c"])
            with pytest.raises(ConfigurationError, match="expected several topics"):
                await admin.partitions(name)


async def test_partitions_without_an_offset_can_be_reset_but_not_shifted(bootstrap, name, fill):
    await fill(1, 5)
    tp = TopicPartition(name, 0)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            found = await admin.plan_reset(name, [tp], to="latest")
            assert found.changes == {tp: OffsetChange(None, at(5))}
            with pytest.raises(ConfigurationError, match="has no committed offset of"):
                await admin.plan_reset(name, [tp], shift=1)
            await admin.apply(found)
            assert await admin.committed([name]) == {name: {tp: at(5)}}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "expected one of to and shift"),
        ({"to": "latest", "shift": 1}, "expected one of to and shift"),
        ({"to": "newest"}, "to='newest'; expected 'earliest', 'latest', an offset, a datetime or "),
        ({"to": True}, "to=True; expected 'earliest', 'latest', an offset, a datetime or "),
        ({"to": -1}, "to=-1; expected a whole number from 0 to 9223372036854775807"),
        ({"to": 2**63}, "expected a whole number from 0 to 9223372036854775807"),
        ({"shift": 2**63}, "expected a whole number from -9223372036854775807 to"),
        ({"shift": 1.5}, r"shift=1\.5; expected a whole number"),
        ({"to": timedelta(days=40_000)}, "is before 1970"),
        ({"to": datetime(2020, 1, 1)}, "has no time zone"),
    ],
)
async def test_an_ambiguous_reset_is_refused(embedded, how, message):
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(ConfigurationError, match=message):
            await admin.plan_reset("g", **how)


async def test_offsets_are_copied_to_another_group_as_json(bootstrap, name, fill):
    await fill(2, 5)
    offsets = {
        TopicPartition(name, 0): OffsetAndMetadata(2, "né\n", 0),
        TopicPartition(name, 1): at(4),
    }
    copy = f"{name}-copy"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            await admin.alter_offsets(name, offsets)
            (found,) = (await admin.committed([name])).values()
            group, read = offsets_from_json(offsets_to_json(name, found))
            assert (group, read) == (name, offsets)
            await admin.apply(await admin.plan_offsets(copy, read))
            assert await admin.committed([copy]) == {copy: offsets}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "offsets: Expecting property name"),
        ("[" * 100_000, "offsets: maximum recursion depth exceeded"),
        ("[]", 'offsets: expected an object with "version": 1'),
        ('{"version": 2, "offsets": []}', 'offsets: expected an object with "version": 1'),
        ('{"version": 1}', "offsets: offsets is None, no list"),
        ('{"version": 1, "offsets": []}', "offsets: group_id is None, no str"),
        ('{"version": 1, "offsets": [3]}', r"offsets\[0\]: expected an object"),
        ('{"version": 1, "offsets": [{"topic": "t", "partition": true}]}', "partition is True"),
        (
            '{"version": 1, "offsets": [{"topic": "t", "partition": 0, "offset": -1}]}',
            r"offsets\[0\]: the offset for t/0 is -1; expected a whole number from 0",
        ),
        (
            f'{{"version": 1, "offsets": [{{"topic": "t", "partition": 0, "offset": {2**63}}}]}}',
            r"offsets\[0\]: the offset for t/0 is 9223372036854775808",
        ),
        (
            '{"version": 1, "offsets": [{"topic": "t", "partition": 2147483648, "offset": 1}]}',
            r"offsets\[0\]: 't' has no partition 2147483648",
        ),
        (
            (
                '{"version": 1, "offsets": [{"topic": "t", "partition": 0, "offset": 1,'
                ' "leader_epoch": -2}]}'
            ),
            r"offsets\[0\]: the leader epoch for t/0 is -2",
        ),
        (
            (
                '{"version": 1, "offsets": [{"topic": "t", "partition": 0, "offset": 1},'
                ' {"topic": "t", "partition": 0, "offset": 2}]}'
            ),
            r"offsets\[1\]: t/0 appears twice",
        ),
    ],
)
def test_malformed_json_is_refused_with_its_place(text, message):
    with pytest.raises(ConfigurationError, match=message):
        offsets_from_json(text)


def test_json_holds_everything_and_needs_only_offsets():
    offsets = {TopicPartition("t", 1): OffsetAndMetadata(7, "note", 3)}
    text = offsets_to_json("g", offsets, "cluster")
    row = {"topic": "t", "partition": 1, "offset": 7, "leader_epoch": 3, "metadata": "note"}
    document = {"version": 1, "group_id": "g", "offsets": [row], "cluster_id": "cluster"}
    assert json.loads(text) == document
    assert offsets_from_json(text) == ("g", offsets)
    del row["leader_epoch"], row["metadata"], document["cluster_id"]
    short = OffsetAndMetadata(7, "", -1)
    assert offsets_from_json(json.dumps(document)) == ("g", {TopicPartition("t", 1): short})


# ---------------------------------------------------------------- removing


@pytest.mark.parametrize("static", [False, True])
async def test_a_member_is_removed_and_joins_again(bootstrap, name, static):
    protocol = GroupProtocol("workers", "split", b"", lambda members: dict(members))
    more = {"group_instance_id": "node-1"} if static else {}
    async with GroupMember(name, protocol, bootstrap_servers=bootstrap, **FAST, **more) as member:
        with anyio.fail_after(30):
            await member.wait_generation()
            before = member.member_id
            async with Admin(bootstrap_servers=bootstrap) as admin:
                with pytest.raises(BrokerError) as caught:
                    await admin.remove_member(name, instance_id="nobody")
                who = {"instance_id": "node-1"} if static else {"member_id": before}
                await admin.remove_member(name, **who, reason="maintenance")
                found = await admin.describe_group(name)
                assert before not in [m.member_id for m in found.members]
        await member.stop()
    assert caught.value.code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("static", [False, True])
async def test_a_member_of_the_consumer_protocol_is_removed(bootstrap, name, fill, static):
    await fill(1)
    more = {"group_instance_id": "node-1"} if static else {}
    worker = Worker(bootstrap, name, **MODERN, **more)
    async with worker.consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: worker.owns == [0])
        before = await admin.describe_group(name)
        (member,) = before.members
        who = {"instance_id": "node-1"} if static else {"member_id": member.member_id}
        with anyio.fail_after(20):
            with pytest.raises(BrokerError) as caught:
                await admin.remove_member(name, instance_id="nobody")
            await admin.remove_member(name, **who)
            after = await admin.describe_group(name)
    assert after.group_epoch > before.group_epoch
    assert caught.value.code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_groups_are_deleted_with_their_offsets(bootstrap, name, fill):
    await fill(1)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            await admin.alter_offsets(name, {TopicPartition(name, 0): 0})
            assert (await admin.describe_group(name)).state is GroupState.EMPTY
            with pytest.raises(ChangesRefusedError) as caught:
                await admin.delete_groups([f"{name}-none", name])
            assert await admin.committed([name]) == {name: {}}
    assert caught.value.done == (name,)
    (error,) = caught.value.exceptions
    assert error.code == ErrorCode.GROUP_ID_NOT_FOUND
    assert f"'{name}-none'" in str(error)


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("request_type", "call"),
    [
        (OffsetFetchRequest, lambda admin: admin.plan_offsets("g", {})),
        (OffsetDeleteRequest, lambda admin: admin.delete_offsets("g", [TopicPartition("t", 0)])),
        (LeaveGroupRequest, lambda admin: admin.remove_member("g", member_id="m")),
        (DeleteGroupsRequest, lambda admin: admin.delete_groups(["g"])),
    ],
)
async def test_a_moved_coordinator_is_found(request_type, call):
    with EmbeddedKafka({"t": 1}) as kafka:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("g", {TopicPartition("t", 0): 0})
            fault = kafka.fail(request_type, ErrorCode.NOT_COORDINATOR, times=2)
            with anyio.fail_after(20):
                with suppress(BrokerError):  # there is no such member
                    await call(admin)
    assert fault.hits == 2


async def test_a_member_is_named_by_id_or_instance(embedded):
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(ConfigurationError, match="one of member_id and instance_id"):
            await admin.remove_member("g")
        with pytest.raises(ConfigurationError, match="expected several group ids, not 'g' alone"):
            await admin.delete_groups("g")
        with pytest.raises(ConfigurationError, match="the offset for t/0 is -1; expected"):
            await admin.alter_offsets("g", {TopicPartition("t", 0): -1})

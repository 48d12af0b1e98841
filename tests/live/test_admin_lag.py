"""The lag of groups as `Admin` measures it: in offsets, and in seconds."""

import time

import anyio
import pytest
from brokers import append

from kafkagroup import Admin, OffsetAndMetadata, TopicPartition
from kafkagroup.admin import PartitionLag
from kafkagroup.admin.lag import measure
from kafkagroup.broker import Broker
from kafkagroup.errors import ErrorCode, KafkaGroupError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.offsets import ListOffsetsRequest, OffsetFetchRequest

pytestmark = pytest.mark.anyio


async def test_lag_is_in_offsets_and_the_age_of_the_next_record(bootstrap, name, fill):
    """Exact inside a batch too: its records are a minute apart."""
    now = time.time()
    made = [round((now - 60 * n) * 1000) for n in (30, 20, 10)]
    records = [NewRecord(None, b"x", stamp) for stamp in made]
    await fill(4, dict.fromkeys(range(4), records))
    begun, halfway, done, lost = (TopicPartition(name, p) for p in range(4))
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            await admin.alter_offsets(name, {begun: 0, halfway: 2, done: 3, lost: 9})
            found = await admin.lag([name, f"{name}-none"])
    assert list(found) == [name, f"{name}-none"]
    assert found[f"{name}-none"] == {}
    lags = found[name]
    assert {tp: (at.lag, at.committed) for tp, at in lags.items()} == {
        begun: (3, 0),
        halfway: (1, 2),
        done: (0, 3),
        lost: (None, 9),
    }
    assert {(at.start, at.end) for at in lags.values()} == {(0, 3)}
    late = time.time() - now
    assert 60 * 30 - 0.001 <= lags[begun].seconds <= 60 * 30 + late + 0.001
    assert 60 * 10 - 0.001 <= lags[halfway].seconds <= 60 * 10 + late + 0.001
    assert (lags[done].seconds, lags[done].reason) == (0.0, None)
    assert lags[lost] == PartitionLag(
        committed=9, start=0, end=3, reason="the log ends before the committed offset"
    )


async def test_two_groups_at_different_offsets_of_one_partition(bootstrap, name, fill):
    await fill(1, {0: [NewRecord(None, b"x", stamp) for stamp in (1_000, 61_000)]})
    tp = TopicPartition(name, 0)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            await admin.alter_offsets(name, {tp: 0})
            await admin.alter_offsets(f"{name}-2", {tp: 1})
            first, second = (await admin.lag([name, f"{name}-2"])).values()
    assert (first[tp].lag, second[tp].lag) == (2, 1)
    assert first[tp].seconds - second[tp].seconds == pytest.approx(60)


async def test_many_partitions_are_read_with_few_requests(bootstrap, name, fill):
    """The same if the first batch exceeds the fetch size, or two groups read it."""
    await fill(150, {p: [NewRecord(None, b"x" * 20_000, 1_000 + p)] * 2 for p in range(150)})
    offsets = {TopicPartition(name, p): p % 2 for p in range(150)}
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            await admin.alter_offsets(name, offsets)
            await admin.alter_offsets(f"{name}-2", {tp: 1 - at for tp, at in offsets.items()})
            first, second = (await admin.lag([name, f"{name}-2"])).values()
    for lags, at in ((first, (2, 1)), (second, (1, 2))):
        assert [one.lag for one in lags.values()] == [at[tp.partition % 2] for tp in lags]
        zero = lags[TopicPartition(name, 0)].seconds
        for tp, one in lags.items():
            assert zero - one.seconds == pytest.approx(tp.partition / 1000, abs=1e-4)


async def test_a_thousand_partitions_take_a_handful_of_requests():
    with EmbeddedKafka({"t": 1000}) as kafka:
        batch = encode_batch([NewRecord(None, b"x", 1_000)])
        for partition in range(1000):
            kafka.append("t", partition, batch)
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("g", {TopicPartition("t", p): 0 for p in range(1000)})
            before = len(kafka.requests(FetchRequest))
            with anyio.fail_after(20):
                found = (await admin.lag(["g"]))["g"]
            assert len(kafka.requests(FetchRequest)) - before == 10
    assert {(one.lag, one.reason) for one in found.values()} == {(1, None)}


async def test_the_lag_of_partitions_without_later_records_is_zero():
    """Empty ones, and ones whose records were all deleted; where only the first were deleted, what
    is left to read counts."""
    with EmbeddedKafka({"t": 4}) as kafka:
        empty, deleted, behind_start, last = (TopicPartition("t", p) for p in range(4))
        for tp in (deleted, behind_start, last):
            stamped = [NewRecord(None, b"x", 1_000 * n) for n in range(5)]
            kafka.append("t", tp.partition, encode_batch(stamped))
        kafka.delete_records("t", deleted.partition, 5)
        kafka.delete_records("t", behind_start.partition, 3)
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            with anyio.fail_after(20):
                await admin.alter_offsets("g", {empty: 0, deleted: 1, behind_start: 1, last: 4})
                found = (await admin.lag(["g"]))["g"]
    now = time.time()
    assert found[empty] == PartitionLag(committed=0, start=0, end=0, lag=0, seconds=0.0)
    assert found[deleted] == PartitionLag(committed=1, start=5, end=5, lag=0, seconds=0.0)
    assert [found[tp].seconds for tp in (behind_start, last)] == [
        pytest.approx(now - 3, abs=60),
        pytest.approx(now - 4, abs=60),
    ]
    left = [(at.committed, at.start, at.end, at.lag) for at in list(found.values())[2:]]
    assert left == [(1, 3, 5, 2), (4, 0, 5, 1)]


async def test_a_partition_that_its_topic_does_not_have_hides_no_other():
    """The topic was created again with fewer partitions: a broker deletes its offsets later."""
    with EmbeddedKafka({"t": 2}) as kafka:
        kafka.produce("t", [b"x"], partition=0)
        zero, one, absent = (TopicPartition("t", p) for p in range(3))
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            with anyio.fail_after(20):
                committed = dict.fromkeys((zero, one, absent), OffsetAndMetadata(0))
                found = (await measure(admin._calls, {"g": committed}))["g"]
    assert {tp: (at.lag, at.reason) for tp, at in found.items()} == {
        zero: (1, None),
        one: (0, None),
        absent: (None, "there is no such partition"),
    }


async def test_a_record_without_a_timestamp_has_no_age():
    with EmbeddedKafka({"t": 1}) as kafka:
        host, port = kafka.bootstrap_servers.split(":")
        tp = TopicPartition("t", 0)
        async with Broker.open(host, int(port)) as broker:
            await append(broker, tp, [NewRecord(None, b"x")])
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("g", {tp: 0})
            with anyio.fail_after(20):
                found = await admin.lag(["g"])
    assert found["g"][tp] == PartitionLag(
        committed=0,
        start=0,
        end=1,
        lag=1,
        reason="the record at the committed offset has no timestamp",
    )


async def test_a_transaction_marker_counts_as_no_record():
    """Its age is that of the next record; unknown if there is none."""
    marker = encode_batch(
        [NewRecord(b"\0\0\0\1", b"", 500)], producer_id=7, transactional=True, control=True
    )
    with EmbeddedKafka({"t": 2}) as kafka:
        for partition in range(2):
            kafka.append("t", partition, marker)
        kafka.append("t", 1, encode_batch([NewRecord(None, b"x", 1_000)]))
        zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("g", {zero: 0, one: 0})
            with anyio.fail_after(20):
                found = (await admin.lag(["g"]))["g"]
    assert (found[zero].lag, found[zero].seconds) == (1, None)
    assert found[zero].reason == "no record was found at the committed offset"
    assert found[one].lag == 2
    assert found[one].seconds == pytest.approx(time.time() - 1, abs=60)


@pytest.mark.parametrize(
    ("request_type", "code", "lag"),
    [
        (FetchRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1),
        (ListOffsetsRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None),
        (MetadataRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None),
    ],
)
async def test_a_partition_that_cannot_be_read_has_an_error(request_type, code, lag):
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", [b"x"])
        tp = TopicPartition("t", 0)
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("g", {tp: 0})
            kafka.fail(request_type, code, times=None)
            with anyio.fail_after(20):
                (found,) = (await admin.lag(["g"]))["g"].values()
    assert (found.committed, found.lag, found.seconds) == (0, lag, None)
    assert "TOPIC_AUTHORIZATION_FAILED" in found.reason


async def test_a_moved_leader_is_followed():
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", [b"x"])
        tp = TopicPartition("t", 0)
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("g", {tp: 0})
            with anyio.fail_after(20):
                await admin.lag(["g"])  # learns of the topic
                looked_up = [len(kafka.requests(MetadataRequest))]
                await admin.lag(["g"])
                looked_up.append(len(kafka.requests(MetadataRequest)))
                fault = kafka.fail(FetchRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
                found = await admin.lag(["g"])
                looked_up.append(len(kafka.requests(MetadataRequest)))
    assert (fault.hits, found["g"][tp].lag) == (2, 1)
    usual, after_refusal = looked_up[1] - looked_up[0], looked_up[2] - looked_up[1]
    assert after_refusal == usual + 1  # that the leader has moved is learnt from the metadata
    assert found["g"][tp].reason is None


async def test_a_group_without_permission_hides_no_other():
    with EmbeddedKafka({"t": 1}) as kafka:
        tp = TopicPartition("t", 0)
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            for group in ("g", "h"):
                await admin.alter_offsets(group, {tp: 0})
            kafka.fail(OffsetFetchRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            with anyio.fail_after(20):
                found = await admin.lag(["g", "h"])
    kinds = [isinstance(lags, KafkaGroupError) for lags in found.values()]
    assert sorted(kinds) == [False, True]

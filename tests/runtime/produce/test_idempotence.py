"""Each accepted record is in the log once and in order, whatever becomes of requests and
responses."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import anyio
import attrs
import pytest
from runtime.produce.logs import SERVERS, cluster, values

from kafkagroup import Consumer, Producer
from kafkagroup.errors import ErrorCode, NotWrittenError
from kafkagroup.runtime.produce.record_future import RecordFuture
from kafkagroup.testing.embedded import BrokerSettings, Change, Close, Delay, Late, Throttle
from kafkagroup.transport.recovery import Attempts
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataResponse
from kafkagroup.wire.messages.produce import LeaderIdAndEpoch, ProduceRequest, ProduceResponse

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)


def texts(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def send_all(producer: Producer, data: list[bytes], partition: int = 0) -> list[RecordFuture]:
    return [producer.send_nowait("t", one, partition=partition) for one in data]


async def test_concurrent_sends_have_offsets_of_their_own() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        offsets: dict[int, bytes] = {}

        async def send(data: bytes) -> None:
            offsets[(await producer.send("t", data)).offset] = data

        async with anyio.create_task_group() as tasks:
            for data in texts(100):
                tasks.start_soon(send, data)
        assert sorted(offsets) == list(range(100))
        assert await values(kafka, "t") == [offsets[n] for n in range(100)]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
async def test_no_batch_overtakes_the_first_one(code: ErrorCode) -> None:
    """Brokers up to 4.4 take any first number of a producer (KAFKA-15591)."""
    settings = BrokerSettings(any_first_sequence=True)
    async with (
        cluster(settings=settings) as kafka,
        Producer(**SERVERS, batch_size=100) as producer,
    ):
        kafka.fail(ProduceRequest, code, partition=TP)
        futures = send_all(producer, texts(30))
        await producer.flush()
        assert [(await future).offset for future in futures] == list(range(30))
        assert await values(kafka, "t") == texts(30)


async def test_several_batches_are_in_flight_once_one_was_acknowledged() -> None:
    async with cluster() as kafka, Producer(**SERVERS, batch_size=1) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Delay(1.0))
        began = anyio.current_time()
        send_all(producer, texts(12))
        await producer.flush()
        assert anyio.current_time() - began < 1.5
        assert await values(kafka, "t") == [b"first", *texts(12)]


@pytest.mark.parametrize("action", [Close(), Close(before=True), Late(0.5)])
async def test_a_lost_response_duplicates_nothing(action: object) -> None:
    async with cluster() as kafka, Producer(**SERVERS, batch_size=100) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, action, times=3)  # type: ignore[arg-type]
        send_all(producer, texts(30))
        await producer.flush()
        await anyio.sleep(2)  # what was late has arrived
        assert await values(kafka, "t") == [b"first", *texts(30)]


async def test_another_partitions_new_epoch_does_not_duplicate() -> None:
    """librdkafka#4953."""
    async with cluster(2, topics={"t": 2}) as kafka, Producer(**SERVERS) as producer:
        kafka.move_leader("t", 0, 1)
        kafka.move_leader("t", 1, 2)
        for partition in (0, 1):
            await producer.send("t", b"first", partition=partition)
        kafka.fail(ProduceRequest, Close(), node_id=2)
        kafka.fail(ProduceRequest, Delay(1.0), node_id=2)
        kafka.fail(ProduceRequest, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, partition=TP)
        send_all(producer, texts(3), 0)
        send_all(producer, texts(3), 1)
        await producer.flush()
        send_all(producer, texts(3, 3), 1)
        await producer.flush()
        assert await values(kafka, "t", 0) == [b"first", *texts(3)]
        assert await values(kafka, "t", 1) == [b"first", *texts(6)]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT]
)
async def test_what_may_have_been_written_keeps_its_numbers(code: ErrorCode) -> None:
    """franz-go#1217."""
    async with (
        cluster() as kafka,
        Producer(**SERVERS, delivery_timeout_ms=1_000) as producer,
    ):
        await producer.send("t", b"first")
        written = kafka.fail(ProduceRequest, code, partition=TP, executed=True)
        future = producer.send_nowait("t", b"unknown")
        await anyio.sleep(0.05)
        assert written.hits == 1
        refused = kafka.fail(
            ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, partition=TP, times=None
        )
        with pytest.raises(NotWrittenError) as raised:
            await future
        assert raised.value.is_maybe_written
        assert "may have been written" in str(raised.value)
        refused.stop()
        found = [await producer.send("t", data) for data in texts(3)]
        logged = await values(kafka, "t")
        assert logged == [b"first", b"unknown", *texts(3)]
        assert [logged[one.offset] for one in found] == texts(3)


@pytest.mark.parametrize("is_written", [False, True], ids=["not written", "written"])
async def test_a_code_of_a_newer_broker_does_not_say_that_nothing_was_written(
    is_written: bool,
) -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, 9_999, partition=TP, executed=is_written)
        with pytest.raises(NotWrittenError, match="UNKNOWN_CODE_9999") as raised:
            await producer.send("t", b"unknown")
        assert raised.value.is_maybe_written
        await producer.send("t", b"last")
        unknown = [b"unknown"] if is_written else []
        assert await values(kafka, "t") == [b"first", *unknown, b"last"]


def has_id(producer_id: int) -> Callable[[ProduceRequest], bool]:
    """Return a function that tells whether a request has a batch of this producer id."""
    return lambda request: any(
        int.from_bytes((part.records or b"")[43:51], "big") == producer_id
        for topic in request.topic_data
        for part in topic.partition_data
    )


async def test_an_id_that_the_brokers_do_not_accept_is_replaced() -> None:
    """Azure/azure-event-hubs-for-kafka#261: each record failed until the program was restarted."""
    async with (
        cluster(topics={"t": 2}) as kafka,
        Producer(**SERVERS, delivery_timeout_ms=5_000) as producer,
    ):
        await producer.send("t", b"first", partition=0)
        (state,) = kafka.producers("t", 0)
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        kafka.fail(ProduceRequest, code, when=has_id(state.producer_id), times=None)
        futures = [*send_all(producer, texts(5)), *send_all(producer, texts(5), partition=1)]
        assert [(await future).offset for future in futures] == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
        assert await values(kafka, "t") == [b"first", *texts(5)]


async def test_what_may_have_been_written_is_sent_under_no_other_id() -> None:
    async with cluster() as kafka, Producer(**SERVERS, delivery_timeout_ms=5_000) as producer:
        await producer.send("t", b"first")
        (state,) = kafka.producers("t", 0)
        late = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        kafka.fail(ProduceRequest, late, partition=TP, executed=True)
        maybe = producer.send_nowait("t", b"maybe")
        await anyio.sleep(0.01)
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        kafka.fail(ProduceRequest, code, when=has_id(state.producer_id), times=None)
        await anyio.sleep(2)
        behind = producer.send_nowait("t", b"behind")
        with pytest.raises(NotWrittenError, match="INVALID_PRODUCER_ID_MAPPING") as raised:
            await maybe
        assert raised.value.is_maybe_written
        await behind
        assert await values(kafka, "t") == [b"first", b"maybe", b"behind"]


async def test_one_batch_is_sent_alone_after_a_minute_without_records() -> None:
    """The brokers may have forgotten the producer, and take any first number of it."""
    settings = BrokerSettings(producer_id_expiration=60.0)
    async with (
        cluster(settings=settings) as kafka,
        Producer(**SERVERS, batch_size=1) as producer,
    ):
        await producer.send("t", b"first")
        await anyio.sleep(120)
        kafka.fail(ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, partition=TP)
        send_all(producer, texts(5))
        await producer.flush()
        assert await values(kafka, "t") == [b"first", *texts(5)]


async def test_a_leader_that_has_forgotten_all_but_the_last_batch_gets_no_batch_twice() -> None:
    """As one that was restarted: it refuses the others as out of order (AutoMQ#437)."""
    async with (
        cluster() as kafka,
        Producer(**SERVERS, batch_size=1, delivery_timeout_ms=5_000) as producer,
    ):
        await producer.send("t", b"first")
        written = kafka.fail(
            ProduceRequest,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            times=5,
            partition=TP,
            executed=True,
        )
        futures = send_all(producer, texts(5))
        while written.hits < 5:
            await anyio.sleep(0.001)
        kafka.kill(1)
        for known in kafka._partition("t", 0).log.producers._producers.values():
            while len(known.batches) > 1:
                known.batches.popleft()
        kafka.restart(1)
        failures: list[NotWrittenError] = []
        for future in futures:
            try:
                await future
            except NotWrittenError as error:
                failures.append(error)
        assert all(failure.is_maybe_written for failure in failures)
        await producer.send("t", b"last")
        assert await values(kafka, "t") == [b"first", *texts(5), b"last"]


async def test_what_was_never_sent_uses_no_number() -> None:
    """sarama#1661, aiokafka#1017."""
    async with (
        cluster() as kafka,
        Producer(**SERVERS, delivery_timeout_ms=1_000) as producer,
    ):
        await producer.send("t", b"first")
        kafka.kill(1)
        futures = send_all(producer, texts(10))
        for future in futures:
            with pytest.raises(NotWrittenError):
                await future
        kafka.restart(1)
        for data in texts(10, 10):
            await producer.send("t", data)
        assert await values(kafka, "t") == [b"first", *texts(10, 10)]


async def test_metadata_that_says_less_changes_no_number() -> None:
    """librdkafka#3712."""

    def without_topics(response: object) -> object:
        return attrs.evolve(response, topics=())  # type: ignore[type-var]

    async with (
        cluster(2, topics={"t": 2}) as kafka,
        Producer(**SERVERS, metadata_max_age_ms=1_000) as producer,
    ):
        for data in texts(10):
            await producer.send("t", data, partition=1)
        kafka.fail(MetadataRequest, Change(without_topics), times=2)
        await anyio.sleep(5)
        for data in texts(10, 10):
            await producer.send("t", data, partition=1)
        assert await values(kafka, "t", 1) == texts(20)


async def test_a_batch_refused_for_good_does_not_stop_those_behind_it() -> None:
    async with cluster() as kafka, Producer(**SERVERS, batch_size=1) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
        futures = send_all(producer, texts(5))
        with pytest.raises(NotWrittenError, match="INVALID_RECORD"):
            await futures[0]
        await producer.flush()
        assert await values(kafka, "t") == [b"first", *texts(4, 1)]


async def test_a_lost_response_behind_a_refused_batch_stops_nothing() -> None:
    async with cluster() as kafka, Producer(**SERVERS, batch_size=1) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
        requests: list[object] = []

        def is_third(request: object) -> bool:
            requests.append(request)
            return len(requests) == 3

        kafka.fail(ProduceRequest, Close(), when=is_third)
        began = anyio.current_time()
        futures = send_all(producer, texts(5))
        with pytest.raises(NotWrittenError, match="INVALID_RECORD"):
            await futures[0]
        await producer.flush()
        assert anyio.current_time() - began < 10
        assert await values(kafka, "t") == [b"first", *texts(4, 1)]


async def test_a_batch_that_waits_for_the_old_leader_keeps_its_number() -> None:
    """A later batch got it, and was acknowledged without being written."""
    async with (
        cluster(2) as kafka,
        Producer(bootstrap_servers="kafka-2:9092", batch_size=1) as producer,
    ):
        kafka.move_leader("t", 0, 1)
        await producer.send("t", b"0")
        kafka.fail(ProduceRequest, Delay(1.0), node_id=1)
        producer.send_nowait("t", b"1")
        await anyio.sleep(0.05)
        known = producer._cluster
        assert known is not None
        old, new = (known.broker(known.metadata.nodes[node]) for node in (1, 2))
        old._throttle.on_response(MetadataResponse(throttle_time_ms=3_000, brokers=(), topics=()))
        producer.send_nowait("t", b"2")  # waits for the throttle
        await anyio.sleep(0.05)
        kafka.move_leader("t", 0, 2)
        await known._request_metadata_once(Attempts(), [new])
        producer.send_nowait("t", b"3")
        await anyio.sleep(1.5)
        producer.send_nowait("t", b"4")
        kafka.kill(1)
        await producer.flush()
        async with Consumer(
            bootstrap_servers="kafka-2:9092", auto_offset_reset="earliest"
        ) as consumer:
            await consumer.assign([TP])
            found: list[bytes | None] = []
            while await consumer.position(TP) < kafka.log_end("t", 0):
                for records in (await consumer.getmany(timeout=0.1)).values():
                    found += [record.value for record in records]
        assert found == texts(5)


def naming(response: ProduceResponse, leader: LeaderIdAndEpoch) -> ProduceResponse:
    """Return the response with a refusal of its one batch that names the leader (KIP-951)."""
    (topic,) = response.responses
    (part,) = topic.partition_responses
    part = attrs.evolve(
        part,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        base_offset=-1,
        current_leader=leader,
    )
    return attrs.evolve(response, responses=(attrs.evolve(topic, partition_responses=(part,)),))


async def test_a_leader_that_names_an_earlier_one_is_asked_after_pauses() -> None:
    """It does not know yet that it leads."""

    def lags(response: ProduceResponse) -> ProduceResponse:
        return naming(response, LeaderIdAndEpoch(leader_id=2, leader_epoch=0))

    async with cluster(2) as kafka:
        kafka.move_leader("t", 0, 1)
        async with Producer(**SERVERS) as producer:
            await producer.send("t", b"first")
            refreshes = len(kafka.requests(MetadataRequest))
            lagging = kafka.fail(ProduceRequest, Change(lags), times=None)
            future = producer.send_nowait("t", b"second")
            await anyio.sleep(5)
            assert 2 < lagging.hits < 30
            assert len(kafka.requests(MetadataRequest)) > refreshes
            lagging.stop()
            await future
            assert await values(kafka, "t") == [b"first", b"second"]


async def test_leaders_that_name_each_other_are_asked_after_pauses() -> None:
    epochs = itertools.count(100)

    def names_the_other(response: ProduceResponse) -> ProduceResponse:
        epoch = next(epochs)
        return naming(response, LeaderIdAndEpoch(leader_id=2 - epoch % 2, leader_epoch=epoch))

    async with cluster(2) as kafka, Producer(**SERVERS) as producer:
        kafka.move_leader("t", 0, 1)
        await producer.send("t", b"first")
        fault = kafka.fail(ProduceRequest, Change(names_the_other), times=None)
        future = producer.send_nowait("t", b"second")
        await anyio.sleep(5)
        assert 2 < fault.hits < 30
        fault.stop()
        await future
        assert await values(kafka, "t") == [b"first", b"second"]


async def test_a_moved_leader_is_followed() -> None:
    async with cluster(2) as kafka, Producer(**SERVERS, batch_size=40) as producer:
        for n in range(6):
            send_all(producer, texts(20, 20 * n))
            kafka.move_leader("t", 0, n % 2 + 1)
        await producer.flush()
        assert await values(kafka, "t") == texts(120)
        kafka.kill(kafka.leader("t", 0))
        await producer.send("t", b"last")
        assert (await values(kafka, "t"))[-1] == b"last"


async def test_what_waits_for_a_throttle_is_sent_to_a_new_leader() -> None:
    """It waited until the old leader accepted requests again."""
    async with cluster(2) as kafka, Producer(**SERVERS, metadata_max_age_ms=1_000) as producer:
        kafka.move_leader("t", 0, 1)
        kafka.fail(ProduceRequest, Throttle(30.0))
        await producer.send("t", b"first")
        futures = send_all(producer, texts(3))
        await anyio.sleep(0.1)
        kafka.move_leader("t", 0, 2)
        began = anyio.current_time()
        for future in futures:
            await future
        assert anyio.current_time() - began < 2
        assert await values(kafka, "t") == [b"first", *texts(3)]


async def test_what_waits_for_other_requests_is_sent_to_a_new_leader() -> None:
    """It waited until one of the five requests in flight to the old leader had timed out."""
    async with (
        cluster(2, topics={"t": 2}) as kafka,
        Producer(**SERVERS, batch_size=1, metadata_max_age_ms=1_000) as producer,
    ):
        for partition in (0, 1):
            kafka.move_leader("t", partition, 1)
            await producer.send("t", b"first", partition=partition)
        kafka.fail(ProduceRequest, Delay(20.0), node_id=1, times=5)
        send_all(producer, texts(5), 0)
        await anyio.sleep(0.1)
        future = producer.send_nowait("t", b"second", partition=1)
        await anyio.sleep(0.1)
        kafka.move_leader("t", 1, 2)
        began = anyio.current_time()
        await future
        assert anyio.current_time() - began < 2
        await producer.flush()
        assert await values(kafka, "t", 0) == [b"first", *texts(5)]
        assert await values(kafka, "t", 1) == [b"first", b"second"]

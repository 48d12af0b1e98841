"""Lasting trouble is always reported: a warning after ten seconds and every minute, an event, a
finding of `health()`, and an info line when it ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from struct import pack_into
from typing import Any

import anyio
import pytest
from crc32c import crc32c

from kafkagroup import (
    Admin,
    BrokerError,
    Consumer,
    DeserializationError,
    GroupMember,
    GroupProtocol,
    HealthProblem,
    NotWrittenError,
    Producer,
    TopicPartition,
)
from kafkagroup.errors import CorruptRecordError, ErrorCode
from kafkagroup.events import TroubleEnded, TroubleReported
from kafkagroup.runtime.member.threaded import _TroublesProxy
from kafkagroup.testing.embedded import Close, EmbeddedKafka, Swallow
from kafkagroup.transport.trouble import Problem, Troubles
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])
WORKERS = GroupProtocol("workers", "all", b"", lambda members: dict.fromkeys(members, b""))


# ---------------------------------------------------------------- the recorder


def problem(cause: str = "refused", subject: str = "a:1") -> Problem:
    return Problem(subject=subject, cause=cause, advice="look")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the warnings and the ends of trouble logged since the last call."""
    caplog.set_level(logging.INFO, "kafkagroup.transport.trouble")

    def taken() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.name == "kafkagroup.transport.trouble"]
        caplog.clear()
        return found

    return taken


def test_lasting_trouble_is_warned_about_after_ten_seconds_and_every_minute(lines: Any) -> None:
    events: list[Any] = []
    troubles = Troubles(events.append)
    reported = []
    for tenth in range(1_400):
        troubles.failed("key", tenth / 10, problem())
        if lines():
            reported.append(tenth / 10)
    assert reported == [10.0, 70.0, 130.0]
    troubles.succeeded("key", 140.0)
    assert lines() == ["a:1: works again, after 140 s"]
    assert events == [
        TroubleReported(at=10.0, subject="a:1", cause="refused", advice="look", seconds=10.0),
        TroubleEnded(at=140.0, subject="a:1", seconds=140.0),
    ]
    assert troubles.ongoing == {}


def test_a_recovery_in_time_is_not_reported(lines: Any) -> None:
    events: list[Any] = []
    troubles = Troubles(events.append)
    for start in (0.0, 9.0, 18.0):
        for tenth in range(89):
            troubles.failed("key", start + tenth / 10, problem())
        troubles.succeeded("key", start + 8.9)
    assert (lines(), events, troubles.lasting(27.0)) == ([], [], [])


def test_trouble_starts_when_the_failed_attempt_began(lines: Any) -> None:
    troubles = Troubles()
    troubles.failed("key", 30.0, problem("no answer"), since=20.0)
    assert lines() == ["no progress for 10 s: a:1: no answer; look"]


def test_failures_far_apart_are_not_one_trouble(lines: Any) -> None:
    """A connection used every five minutes fails twice."""
    troubles = Troubles()
    for now in (0.0, 300.0, 600.0):
        troubles.failed("key", now, problem())
        assert troubles.lasting(now + 1.0) == []
    assert lines() == []


def test_a_reported_trouble_ends_although_a_later_failure_counts_as_new(lines: Any) -> None:
    events: list[Any] = []
    troubles = Troubles(events.append)
    for second in range(12):
        troubles.failed("key", second, problem())
    troubles.failed("key", 300.0, problem())
    troubles.succeeded("key", 301.0)
    assert events == [
        TroubleReported(at=10.0, subject="a:1", cause="refused", advice="look", seconds=10.0),
        TroubleEnded(at=301.0, subject="a:1", seconds=1.0),
    ]
    assert lines() == ["no progress for 10 s: a:1: refused; look", "a:1: works again, after 1 s"]


def test_one_cause_is_reported_once_for_all_connections_and_partitions(lines: Any) -> None:
    """The cause may affect four connections to one broker, or a thousand partitions of one
    topic."""
    events: list[Any] = []
    troubles = Troubles(events.append)
    for second in range(100):
        for key in range(50):
            troubles.failed(key, second, problem())
    assert lines() == [f"no progress for {n} s: a:1: refused; look" for n in (10, 70)]
    assert troubles.lasting(99.0) == [(problem(), 99.0)]
    for key in range(50):
        troubles.succeeded(key, 100.0)
    assert lines() == ["a:1: works again, after 100 s"]
    assert [type(event) for event in events] == [TroubleReported, TroubleEnded]


def test_trouble_that_returns_within_a_minute_is_published_again(lines: Any) -> None:
    """It was published as ended, and never again, however long it then lasted: its first warning
    was left out as a repetition, and the later ones were not the first."""
    events: list[Any] = []
    troubles = Troubles(events.append)
    for second in range(200):
        if second == 12:
            troubles.succeeded("a", second)
        else:
            troubles.failed("a", second, problem())
    assert [(type(e).__name__, e.at) for e in events] == [
        ("TroubleReported", 10),
        ("TroubleEnded", 12),
        ("TroubleReported", 23),
    ]
    assert lines() == [
        "no progress for 10 s: a:1: refused; look",
        "a:1: works again, after 12 s",
        "no progress for 70 s: a:1: refused; look",
        "no progress for 130 s: a:1: refused; look",
    ]


def test_the_last_operation_of_one_cause_ends_it() -> None:
    """It had just begun to fail when the first one, whose trouble was published, succeeded."""
    events: list[Any] = []
    troubles = Troubles(events.append)
    for second in range(12):
        troubles.failed("a", second, problem())
    troubles.failed("b", 11, problem())
    troubles.succeeded("a", 12)
    assert [type(e).__name__ for e in events] == ["TroubleReported"]
    troubles.succeeded("b", 13)
    assert [type(e).__name__ for e in events] == ["TroubleReported", "TroubleEnded"]


def test_a_changing_cause_adds_no_warnings(lines: Any) -> None:
    troubles = Troubles()
    for second in range(70):
        troubles.failed("key", second, problem(f"cause {second % 3}"))
    assert lines() == ["no progress for 10 s: a:1: cause 1; look"]


def test_a_single_failure_is_not_reported() -> None:
    """The next request may be a fetch that the broker rightly holds."""
    troubles = Troubles()
    troubles.failed("key", 0.0, problem())
    assert [troubles.lasting(now) for now in (9.0, 11.0, 29.0)] == [[], [], []]


def test_abandoned_requests_are_forgotten() -> None:
    troubles = Troubles()
    for second in range(20):
        troubles.failed("key", second, problem())
    assert troubles.lasting(49.0) == [(problem(), 49.0)]
    assert troubles.lasting(49.1) == []
    troubles.forget("key")
    assert troubles.ongoing == {}


def test_at_most_a_thousand_troubles_are_kept() -> None:
    """A broker may list a million addresses, each tried once."""
    troubles = Troubles()
    for key in range(3_000):
        troubles.failed(key, 0.0, problem())
    assert len(troubles.ongoing) == 1_000


def test_troubles_of_the_heartbeat_thread_are_stored_in_the_applications_loop() -> None:
    calls: list[Callable[[], object]] = []
    ours = Troubles()
    threads = _TroublesProxy(ours, calls.append)
    threads.failed("key", 20.0, problem(), since=0.0)
    assert ours.ongoing == {}
    calls.pop()()
    assert (ours.lasting(20.0), threads.ongoing) == ([(problem(), 20.0)], ours.ongoing)
    threads.succeeded("key", 21.0)
    calls.pop()()
    assert threads.ongoing == {}


# ---------------------------------------------------------------- a consumer's and a member's


class Watch:
    """The reports of a client during trouble."""

    def __init__(self, client: Consumer | GroupMember, lines: Callable[[], list[str]]) -> None:
        self.client = client
        self.lines = lines
        self.events: list[TroubleReported | TroubleEnded] = []

    async def read(self) -> None:
        async for event in self.client.events():
            if isinstance(event, TroubleReported | TroubleEnded):
                self.events.append(event)

    def findings(self) -> list[str]:
        return [
            finding.detail
            for finding in self.client.health().findings
            if finding.problem is HealthProblem.NO_PROGRESS
        ]

    async def lasts(self, *words: str, again: bool = True) -> None:
        """Reported after ten seconds, and again a minute later."""
        self.lines()
        self.events.clear()
        await anyio.sleep(9.5)
        assert (self.lines(), self.events) == ([], [])
        await anyio.sleep(3.5)
        (line,) = self.lines()
        (event,) = self.events
        assert isinstance(event, TroubleReported)
        for word in words:
            assert word in line
            assert any(word in detail for detail in self.findings()), self.findings()
            assert word in f"{event.subject}: {event.cause}; {event.advice}"
        if not again:
            return
        await anyio.sleep(75.0)
        assert [word in line for line in self.lines() for word in words] == [True] * len(words)
        assert self.events == [event]

    async def ends(self) -> None:
        await anyio.sleep(20.0)
        (line,) = self.lines()
        assert "works again, after " in line
        assert isinstance(self.events[-1], TroubleEnded)
        assert self.findings() == []


@pytest.fixture
def watched(network: Any, lines: Any) -> Any:
    """Provide a cluster of two nodes, and a watched client."""

    @asynccontextmanager
    async def opened(
        client: Consumer | GroupMember, *faults: tuple[type[Any], Any], **topics: int
    ) -> AsyncIterator[tuple[EmbeddedKafka, Watch, list[Any]]]:
        async with network, EmbeddedKafka(topics or {"t": 1}, nodes=2, listen=False) as kafka:
            network.serve_embedded(kafka, 2)
            rules = [kafka.fail(api, action, times=None) for api, action in faults]
            watch = Watch(client, lines)
            with anyio.fail_after(5_000):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(watch.read)
                    await anyio.lowlevel.checkpoint()
                    async with client:
                        yield kafka, watch, rules

    return opened


def consumer(*topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, **{"bootstrap_servers": "kafka-1,kafka-2", "group_id": "g", **options})


def member() -> GroupMember:
    return GroupMember("g", WORKERS, bootstrap_servers="kafka-1,kafka-2")


CLIENTS = pytest.mark.parametrize(
    "client",
    [
        pytest.param(lambda: consumer("t"), id="classic"),
        pytest.param(lambda: consumer("t", group_protocol="consumer"), id="consumer"),
        pytest.param(lambda: consumer("t", heartbeat_thread=False, group_id="h"), id="other"),
        pytest.param(member, id="member"),
    ],
)


@CLIENTS
async def test_a_failing_coordinator_lookup_is_reported(
    watched: Any, client: Callable[[], Any]
) -> None:
    fault = FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE
    async with watched(client(), fault) as (_, watch, rules):
        await watch.lasts("membership of group", "COORDINATOR_NOT_AVAILABLE", "__consumer_offsets")
        rules[0].stop()
        await watch.ends()


@CLIENTS
@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
)
async def test_a_coordinator_that_rejects_every_join_is_reported(
    watched: Any, client: Callable[[], Any], code: ErrorCode
) -> None:
    faults = (JoinGroupRequest, code), (ConsumerGroupHeartbeatRequest, code)
    async with watched(client(), *faults) as (_, watch, rules):
        await watch.lasts("membership of group", code.name)
        for rule in rules:
            rule.stop()
        await watch.ends()


@CLIENTS
async def test_an_unreachable_coordinator_is_reported(
    watched: Any, client: Callable[[], Any], network: Any
) -> None:
    """The same for a coordinator advertised under a wrong name."""
    one = client()
    group = one._options.group_id if isinstance(one, Consumer) else "g"
    async with watched(one) as (kafka, watch, _):
        await anyio.sleep(10.0)
        dead = f"kafka-{kafka.coordinator(group)}", 9092
        handler = network.handlers.pop(dead)
        for stream in network.streams:
            await stream.aclose()
        await watch.lasts(f"{dead[0]}:9092: refused", "advertised.listeners")
        network.handlers[dead] = handler
        await watch.ends()


@CLIENTS
async def test_unanswered_requests_are_reported(watched: Any, client: Callable[[], Any]) -> None:
    async with watched(client()) as (kafka, watch, _):
        await anyio.sleep(10.0)
        rules = [
            kafka.fail(api, Swallow(), times=None)
            for api in (HeartbeatRequest, ConsumerGroupHeartbeatRequest)
        ]
        # When its session has expired, a GroupMember joins again, and that is answered.
        again = isinstance(watch.client, Consumer)
        await watch.lasts("no response to ", "HeartbeatRequest", "broker is alive", again=again)
        for rule in rules:
            rule.stop()
        await anyio.sleep(60.0)
        assert watch.findings() == []


async def test_an_unanswered_join_is_reported(watched: Any) -> None:
    """The cause may be other members that do not rejoin: reported after half a minute, and by
    `health()` after the rebalance timeout."""
    async with watched(consumer("t"), (JoinGroupRequest, Swallow())) as (_, watch, _):
        await anyio.sleep(29.0)
        assert watch.lines() == []
        await anyio.sleep(2.0)
        (line,) = watch.lines()
        assert "no response to JoinGroupRequest within 30 s; either the coordinator hangs" in line
        assert watch.findings() == []
        await anyio.sleep(270.0)
        assert [f.problem for f in watch.client.health().findings] == []


async def test_an_unreachable_leader_is_reported(watched: Any, network: Any) -> None:
    one = consumer(group_id=None)
    async with watched(one) as (kafka, watch, _):
        leader = kafka.leader("t", 0)
        handler = network.handlers.pop((f"kafka-{leader}", 9092))
        await one.assign([T0])
        await watch.lasts(f"broker {leader} at kafka-{leader}:9092: refused")
        network.handlers[f"kafka-{leader}", 9092] = handler
        await watch.ends()


async def test_a_leader_that_drops_packets_is_reported(watched: Any, network: Any) -> None:
    """The address neither accepts nor refuses connections."""
    one = consumer(group_id=None)
    async with watched(one) as (kafka, watch, _):
        await one.assign([T0])
        await anyio.sleep(1.0)
        network.handlers[f"kafka-{kafka.leader('t', 0)}", 9092] = None
        for stream in network.streams:
            await stream.aclose()
        await watch.lasts("no connection within 10.0 s", "advertised.listeners")


async def test_unanswered_fetches_are_reported(watched: Any) -> None:
    one = consumer(group_id=None)
    async with watched(one, (FetchRequest, Swallow())) as (_, watch, rules):
        await one.assign([T0])
        await watch.lasts("no response to FetchRequest")
        rules[0].stop()
        await anyio.sleep(60.0)
        assert watch.findings() == []


async def test_a_broker_that_closes_each_connection_is_reported(watched: Any) -> None:
    one = consumer(group_id=None)
    async with watched(one, (FetchRequest, Close())) as (_, watch, rules):
        await one.assign([T0])
        await watch.lasts("closed by the broker")
        rules[0].stop()
        await watch.ends()


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_failing_fetches_are_reported(watched: Any, code: ErrorCode) -> None:
    one = consumer(group_id=None)
    async with watched(one, (FetchRequest, code), t=20) as (kafka, watch, rules):
        for partition in range(20):
            kafka.produce("t", ["v"], partition=partition)
        await one.assign([("t", partition) for partition in range(20)])
        await watch.lasts(f"fetching topic t: {code.name}")
        rules[0].stop()
        await watch.ends()


@pytest.mark.parametrize("group_id", [None, "g"])
async def test_a_missing_partition_is_reported(watched: Any, group_id: str | None) -> None:
    one = consumer(group_id=group_id)
    async with watched(one) as (kafka, watch, _):
        await one.assign([T0, ("t", 6), ("t", 7)])
        await watch.lasts("fetching t/6 (and 1 more): it does not exist: topic t has 1 partitions")
        kafka.add_partitions("t", 8)
        await watch.ends()


async def test_an_assignment_of_missing_partitions_is_reported(watched: Any) -> None:
    """The leader of the group may know another cluster."""

    def wrong(spec: Any) -> Any:
        return {member: (TopicPartition("t", 9),) for member in spec.members}

    async with watched(consumer("t", assignors=[wrong])) as (_, watch, _):
        await watch.lasts("fetching t/9: it does not exist: topic t has 1 partitions")


@pytest.mark.parametrize(
    ("api", "words"),
    [
        (OffsetFetchRequest, "reading offsets of group g: "),
        (ListOffsetsRequest, "looking up where topic t starts and ends: "),
    ],
)
async def test_failing_offset_fetches_are_reported(watched: Any, api: Any, words: str) -> None:
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    if api is ListOffsetsRequest:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    async with watched(consumer("t"), (api, code)) as (_, watch, rules):
        await watch.lasts(words, code.name)
        rules[0].stop()
        await watch.ends()


async def test_refused_partitions_are_reported(watched: Any, lines: Any) -> None:
    """The error was raised and never logged. One warning is for all partitions, as an error for a
    group applies to each of them."""
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    one, partitions = consumer(), [TopicPartition("t", n) for n in range(3)]
    async with watched(one, (OffsetFetchRequest, code), t=3):
        await one.assign(partitions)
        with pytest.raises(BrokerError, match=code.name):
            await one.getone()
        await anyio.sleep(9.0)
        assert lines() == []
        for seconds in (5.0, 61.0):
            await anyio.sleep(seconds)
            (line,) = lines()
            assert f"reading topic t: {code.name}" in line
            assert "allow this principal DESCRIBE on group 'g'; the client asks again" in line
        findings = one.health().findings
        assert [f.problem for f in findings] == [HealthProblem.REFUSED] * 3
        for tp in partitions:
            one.seek(tp, 0)
        await anyio.sleep(6.0)
        (line,) = lines()
        assert "works again" in line


def plain(data: bytes) -> int:
    return int(data)


async def looked_up(data: bytes) -> int:
    return int(data)


@pytest.mark.parametrize("deserializer", [plain, looked_up], ids=["plain", "coroutine"])
@pytest.mark.parametrize("ended_by", ["seek", "success", "loss"])
async def test_a_partition_stopped_by_a_failing_deserializer_is_reported(
    watched: Any, lines: Any, deserializer: Any, ended_by: str
) -> None:
    """The error was raised, without a warning or a finding."""
    bad = True

    def deserialize(data: bytes) -> Any:
        return deserializer(b"x" if data == b"2" and bad else data)

    one = consumer("t", value_deserializer=deserialize)
    async with watched(one) as (kafka, _, _):
        kafka.produce("t", ["1", "2"])
        assert (await one.getone()).value == 1
        assert one.health().healthy
        for _ in range(2):
            with pytest.raises(DeserializationError, match="t/0 at offset 1"):
                await one.getone()
            (finding,) = one.health().findings
            assert (finding.problem, finding.partition) == (HealthProblem.NOT_READ, T0)
            assert "invalid literal for int()" in finding.detail
        await anyio.sleep(9.0)
        assert lines() == []
        for seconds in (5.0, 61.0):
            await anyio.sleep(seconds)
            (line,) = lines()
            assert "reading t/0: " in line
            assert "seek()" in line
        if ended_by == "seek":
            one.seek(T0, 2)
        elif ended_by == "success":
            bad = False
            assert (await one.getone()).value == 2
        else:
            await one.unsubscribe()
        assert HealthProblem.NOT_READ not in {f.problem for f in one.health().findings}
        await anyio.sleep(6.0)
        (line,) = lines()
        assert "works again" in line


async def test_a_partition_stopped_by_damaged_bytes_is_reported(watched: Any, lines: Any) -> None:
    one = consumer()
    async with watched(one) as (kafka, _, _):
        damaged = bytearray(encode_batch([NewRecord(None, b"1")]))
        damaged[61] = 126  # the length of the first record: beyond the batch
        pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
        kafka.append("t", 0, bytes(damaged))
        await one.assign([T0])
        one.seek(T0, 0)
        with pytest.raises(CorruptRecordError, match="t/0 at offset 0"):
            await one.getone()
        await anyio.sleep(14.0)
        (line,) = lines()
        assert "reading t/0: " in line
        assert [f.problem for f in one.health().findings] == [HealthProblem.NOT_READ]


@BOTH
async def test_auto_commit_adds_no_warnings_to_reported_trouble(
    watched: Any, protocol: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """There was one for each commit that failed at the request timeout."""
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    one = consumer("t", group_protocol=protocol, auto_commit_interval_ms=1)
    async with watched(one, (OffsetCommitRequest, code)) as (kafka, watch, rules):
        kafka.produce("t", ["0", "1"], partition=0)
        await one.getone()
        await one.getone()
        await watch.lasts("committing offsets of group g: ", code.name)
        await anyio.sleep(40.0)
        warned = [r.name for r in caplog.records if r.levelname == "WARNING"]
        assert {name for name in warned if name != "kafkagroup.transport.trouble"} == set()
        rules[0].stop()
        await watch.ends()


@BOTH
async def test_failing_commits_are_reported(watched: Any, protocol: Any) -> None:
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    one = consumer("t", group_protocol=protocol, auto_commit_interval_ms=1)
    async with watched(one, (OffsetCommitRequest, code)) as (kafka, watch, rules):
        kafka.produce("t", ["0", "1"], partition=0)
        await one.getone()
        await one.getone()
        await watch.lasts("committing offsets of group g: ", code.name)
        rules[0].stop()
        await watch.ends()


@pytest.fixture
def loggers() -> Iterator[list[str]]:
    """Return the logger of each warning."""
    names: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.append(record.name)

    handler = Kept(logging.WARNING)
    logging.getLogger("kafkagroup").addHandler(handler)
    yield names
    logging.getLogger("kafkagroup").removeHandler(handler)


async def test_responses_with_wrong_correlation_ids_are_reported(
    watched: Any, network: Any, loggers: list[str]
) -> None:
    """Each connection ends at its first response, and the next one opens. Each of them caused a
    warning."""
    one = consumer(group_id=None)
    async with watched(one) as (kafka, watch, _):
        leader = f"kafka-{kafka.leader('t', 0)}", 9092
        serve = network.handlers[leader]

        async def wrong(peer: Any) -> None:
            await peer.handshake()
            incoming = await peer.read()
            await peer.stream.send(b"\0\0\0\x08" + (incoming.correlation_id + 77).to_bytes(4) * 2)
            await anyio.sleep_forever()

        network.handlers[leader] = wrong
        for stream in network.streams:
            await stream.aclose()
        await one.assign([T0])
        await watch.lasts("to a request that was never sent", "no proxy changes what it sends")
        assert loggers == ["kafkagroup.transport.trouble"] * 2
        network.handlers[leader] = serve
        await watch.ends()


async def test_a_failing_admin_call_is_reported(network: Any, lines: Any) -> None:
    """A call is retried for a minute: the trouble is reported before that ends."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=None)
        async with Admin(bootstrap_servers="kafka-1") as admin:
            with pytest.raises(BrokerError):
                await admin.describe_group("g")
    (line,) = lines()
    assert "a request of the client: COORDINATOR_NOT_AVAILABLE (15)" in line


async def test_an_unreachable_broker_of_a_producer_is_reported(network: Any, lines: Any) -> None:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Producer(bootstrap_servers="kafka-1") as producer:
            await producer.send("t", b"0")
            network.handlers.clear()
            for stream in network.streams:
                await stream.aclose()
            with pytest.raises(NotWrittenError):
                await producer.send("t", b"1")
    messages = [line.partition(";")[0] for line in lines()]
    assert messages == [
        f"no progress for {seconds} s: {subject}: refused"
        for seconds in (10, 70)
        for subject in ("broker 1 at kafka-1:9092", "writing to t/0: kafka-1:9092")
    ]


@CLIENTS
async def test_nothing_is_reported_without_failures(
    watched: Any, client: Callable[[], Any]
) -> None:
    """Long polls, joins that wait for another member and hours of idleness are no trouble."""
    async with watched(client()) as (_, watch, _):
        for _ in range(5):
            await anyio.sleep(50.0)
            assert watch.findings() == []
        assert (watch.lines(), watch.events) == ([], [])


@BOTH
async def test_an_unreachable_cluster_is_reported_once_a_minute(
    watched: Any, network: Any, protocol: Any
) -> None:
    """Requests to coordinator and leader and for metadata fail at the same time, each with its own
    retries."""
    async with watched(consumer("t", group_protocol=protocol)) as (_, watch, _):
        await anyio.sleep(10.0)
        handlers, network.handlers = network.handlers, {}
        for stream in network.streams:
            await stream.aclose()
        await anyio.sleep(120.0)
        assert all("refused" in line for line in watch.lines())
        assert sum("refused" in line for line in watch.lines()) <= 2 * 2
        network.handlers = handlers
        await anyio.sleep(30.0)
        assert watch.findings() == []

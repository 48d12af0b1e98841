"""The calls of clients that only make calls: their retries, their deadline, and their errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import repeat
from typing import Any

import anyio
import pytest
from memory_network import network

from kafkagroup.admin import Admin
from kafkagroup.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ClusterChangedError,
    ConfigurationError,
    ConnectionLostError,
    DecodeError,
    ErrorCode,
    IllegalStateError,
    NoBrokersAvailableError,
    NotStartedError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from kafkagroup.events import GroupEvent, TroubleEnded, TroubleReported
from kafkagroup.runtime.client.calls import ChangeAttempts, RetriedCalls, checked_group_ids
from kafkagroup.testing.embedded import EmbeddedKafka, Swallow
from kafkagroup.transport.logins import Logins
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.trouble import Troubles
from kafkagroup.wire.messages.group import DescribeGroupsRequest

__all__ = ["network"]

pytestmark = pytest.mark.anyio

TIMEOUT = 30.0
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class Cluster:
    """A cluster whose calls fail with these errors, and then return 7."""

    def __init__(self, errors: Iterable[Exception] = ()) -> None:
        self.errors = iter(errors)
        self.called_at: list[float] = []
        self.events: list[GroupEvent] = []
        self.troubles = Troubles(self.events.append)
        self.logins = Logins()
        self.cluster_change: ClusterChangedError | None = None

    async def call(self, cluster: Any = None) -> int:
        assert cluster is self
        self.called_at.append(anyio.current_time())
        for error in self.errors:
            raise error
        return 7


def calls_to(cluster: Any, options: ClientOptions | None = None, **check: Any) -> RetriedCalls:
    calls = RetriedCalls(options or ClientOptions(), TIMEOUT)
    calls.open(cluster, **check)
    return calls


@pytest.mark.parametrize(
    "error",
    [BrokerError(LOADING), ConnectionLostError("reset"), RemoteProtocolError("garbage")],
    ids=lambda error: type(error).__name__,
)
async def test_a_call_is_repeated_after_errors_that_may_pass(error: Exception) -> None:
    cluster = Cluster([error] * 3)
    assert await calls_to(cluster).one(cluster.call) == 7
    start, *later = cluster.called_at
    assert [at - start for at in later] == pytest.approx([0.1, 0.3, 0.7], rel=0.21)
    assert cluster.troubles.ongoing == {}


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED),
        DecodeError("cut off"),
        AuthenticationError("no credentials"),
        ZeroDivisionError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_that_a_retry_would_repeat_is_raised_at_once(error: Exception) -> None:
    cluster = Cluster(repeat(error))
    with pytest.raises(type(error)) as caught:
        await calls_to(cluster).one(cluster.call)
    assert (caught.value, len(cluster.called_at)) == (error, 1)


async def test_the_caller_names_codes_that_end_a_call() -> None:
    cluster = Cluster(repeat(BrokerError(LOADING)))
    with pytest.raises(BrokerError):
        await calls_to(cluster).one(cluster.call, final=[LOADING])
    assert len(cluster.called_at) == 1


async def test_a_login_that_has_worked_is_tried_again_unless_it_is_refused() -> None:
    failure, refusal = AuthenticationError("no"), AuthenticationError("no", is_refusal=True)
    cluster = Cluster([failure, refusal])
    cluster.logins.has_worked = True
    with pytest.raises(AuthenticationError) as caught:
        await calls_to(cluster).one(cluster.call)
    assert (caught.value, len(cluster.called_at)) == (refusal, 2)


async def test_another_cluster_ends_a_call() -> None:
    lost = ConnectionLostError("reset")
    cluster = Cluster([lost])
    cluster.cluster_change = ClusterChangedError("another cluster")
    with pytest.raises(ClusterChangedError) as caught:
        await calls_to(cluster).one(cluster.call)
    assert (caught.value, caught.value.__cause__) == (cluster.cluster_change, lost)
    assert len(cluster.called_at) == 1


@pytest.mark.parametrize(("deadline", "took"), [(None, TIMEOUT), (5.0, 5.0), (60.0, TIMEOUT)])
@pytest.mark.parametrize("error", [BrokerError(LOADING), TransportError("no broker")], ids=str)
async def test_the_last_error_is_raised_when_the_time_is_over(
    error: Exception, deadline: float | None, took: float
) -> None:
    cluster, start = Cluster(repeat(error)), anyio.current_time()
    limits = () if deadline is None else (start + deadline,)
    with pytest.raises(type(error)) as caught:
        await calls_to(cluster).one(cluster.call, *limits)
    assert caught.value is error
    assert anyio.current_time() - start == pytest.approx(took)
    assert cluster.troubles.ongoing == {}


async def test_a_call_is_repeated_until_shortly_before_its_deadline() -> None:
    """Its last pause, of almost half of the timeout, ended after the deadline."""
    cluster = Cluster(repeat(BrokerError(LOADING)))

    async def recover() -> None:
        await anyio.sleep(TIMEOUT - 1)
        cluster.errors = iter(())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recover)
        calls = calls_to(cluster, ClientOptions(retry_backoff_max=60.0))
        assert await calls.one(cluster.call) == 7
    assert len(cluster.called_at) < 20


async def test_a_call_without_a_response_times_out() -> None:
    async def hang(_: object) -> None:
        await anyio.sleep_forever()

    with pytest.raises(RequestTimeoutError, match="no response within 30 s"):
        await calls_to(Cluster()).one(hang)


async def test_a_refusal_that_lasts_is_reported_until_the_call_ends() -> None:
    """`health()` and the log then say why a call takes long."""
    cluster = Cluster(repeat(BrokerError(LOADING)))
    lasting: list[str] = []

    async def watch() -> None:
        await anyio.sleep(20)
        lasting.extend(str(p.cause) for p, _ in cluster.troubles.lasting(anyio.current_time()))
        cluster.errors = iter(())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        assert await calls_to(cluster).one(cluster.call) == 7
    assert lasting == [str(BrokerError(LOADING))]
    assert [type(event) for event in cluster.events] == [TroubleReported, TroubleEnded]
    assert cluster.troubles.ongoing == {}


async def test_each_key_has_its_result_or_its_error_in_the_order_of_keys() -> None:
    error = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    started: list[str] = []

    async def call(_: object, key: str) -> str:
        started.append(key)
        await anyio.sleep({"slow": 3, "fast": 1, "bad": 2}[key])
        if key == "bad":
            raise error
        return key.upper()

    start = anyio.current_time()
    found = await calls_to(Cluster()).each(["slow", "bad", "fast", "slow"], call)
    assert [*found.items()] == [("slow", "SLOW"), ("bad", error), ("fast", "FAST")]
    assert (sorted(started), anyio.current_time()) == (["bad", "fast", "slow"], start + 3)


async def test_the_codes_that_end_a_call_end_it_for_each_key() -> None:
    cluster, error = Cluster(), BrokerError(LOADING)
    called: list[str] = []

    async def call(_: object, key: str) -> None:
        called.append(key)
        raise error

    assert await calls_to(cluster).each("ab", call, final=[LOADING]) == {"a": error, "b": error}
    assert sorted(called) == ["a", "b"]


async def test_many_keys_share_one_deadline_and_64_calls_at_a_time() -> None:
    running, most = 0, 0

    async def call(_: object, key: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await anyio.sleep(12)
        finally:
            running -= 1
        return key

    start = anyio.current_time()
    found = await calls_to(Cluster()).each(range(200), call)
    assert anyio.current_time() - start == pytest.approx(TIMEOUT)
    in_time = [key for key, result in found.items() if result == key]
    late = [result for result in found.values() if isinstance(result, RequestTimeoutError)]
    assert (most, len(in_time), len(late)) == (64, 128, 72)


def attempts(calls: RetriedCalls, cluster: Cluster) -> list[Callable[[], Awaitable[object]]]:
    """Return a call of each kind."""

    async def call(_: object, key: str) -> int:
        return await cluster.call(_)

    return [lambda: calls.one(cluster.call), lambda: calls.each(["g"], call)]


async def test_a_client_that_is_not_open_refuses_calls() -> None:
    cluster = Cluster()
    calls = RetriedCalls(ClientOptions(), TIMEOUT)
    for attempt in attempts(calls, cluster):
        with pytest.raises(NotStartedError, match="not started"):
            await attempt()
    calls.open(cluster)  # type: ignore[arg-type]
    assert await calls.one(cluster.call) == 7
    calls.close()
    for attempt in attempts(calls, cluster):
        with pytest.raises(ClosedError, match="is closed"):
            await attempt()
    assert len(cluster.called_at) == 1


async def test_a_call_where_the_client_may_not_be_used_is_refused() -> None:
    def check() -> None:
        raise IllegalStateError("another event loop")

    cluster = Cluster()
    calls = calls_to(cluster, check=check)
    for attempt in attempts(calls, cluster):
        with pytest.raises(IllegalStateError, match="another event loop"):
            await attempt()
    assert cluster.called_at == []


class Sending:
    """A broker whose requests fail with an error, before or after they are sent."""

    def __init__(self, error: Exception | None, *, is_connected: bool) -> None:
        self.error = error
        self.is_connected = is_connected
        self.sent: list[tuple[object, dict[str, Any]]] = []

    async def request(self, request: object, *, on_sent: Callable[[], None], **options: Any) -> str:
        self.sent.append((request, options))
        if self.is_connected:
            on_sent()
        if self.error is not None:
            raise self.error
        return "answer"


@pytest.mark.parametrize(
    ("error", "is_connected", "is_lost"),
    [
        (None, True, False),
        (BrokerError(LOADING), True, False),
        (ConnectionLostError("reset"), True, True),
        (RemoteProtocolError("garbage"), True, True),
        (ConnectionLostError("refused"), False, False),
    ],
    ids=str,
)
async def test_a_change_may_be_made_if_its_response_is_lost(
    error: Exception | None, is_connected: bool, is_lost: bool
) -> None:
    """A retry then finds it made, which is no error."""
    change, broker = ChangeAttempts(), Sending(error, is_connected=is_connected)
    assert not change.is_lost
    if error is None:
        assert await change.send(broker, "delete", timeout=3.0) == "answer"  # type: ignore[arg-type]
    else:
        with pytest.raises(type(error)):
            await change.send(broker, "delete", timeout=3.0)  # type: ignore[arg-type]
    assert (broker.sent, change.is_lost) == ([("delete", {"timeout": 3.0})], is_lost)


def test_group_ids_are_several_and_not_empty() -> None:
    assert checked_group_ids(["a", "b", "a"]) == ["a", "b"]
    with pytest.raises(ConfigurationError, match="expected several group ids, not 'abc' alone"):
        checked_group_ids("abc")
    with pytest.raises(ConfigurationError, match="group_id is empty"):
        checked_group_ids(["a", ""])


@pytest.mark.parametrize(
    ("request_timeout_ms", "call_timeout_ms", "again_after"),
    [(60_000, 60_000, 10.0), (60_000, 20_000, 10 / 3), (60_000, 1_500, 1.1), (6_000, 60_000, 2.0)],
)
async def test_a_call_has_time_for_a_second_attempt(
    network: Any, request_timeout_ms: int, call_timeout_ms: int, again_after: float
) -> None:
    """Half of its time, or a second; a connection that carries nothing is doubted after a third."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        client = Admin(
            bootstrap_servers="kafka-1",
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=call_timeout_ms,
        )
        async with client:
            swallowed = kafka.fail(DescribeGroupsRequest, Swallow())
            start = anyio.current_time()
            await client.describe_groups(["g"])
            assert swallowed.hits == 1
            assert anyio.current_time() - start == pytest.approx(again_after, abs=0.05)


async def test_a_client_connects_as_it_starts_and_leaves_no_connection_open(network: Any) -> None:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        with pytest.raises(NoBrokersAvailableError, match="kafka-1:9092: refused"):
            async with Admin(bootstrap_servers="kafka-1"):
                raise AssertionError
        network.serve_embedded(kafka)
        client = Admin(bootstrap_servers="kafka-1")
        async with client:
            await client.describe_groups(["g"])
            assert network.open > 0
        assert network.open == 0
        with pytest.raises(ClosedError, match="is closed"):
            await client.describe_groups(["g"])

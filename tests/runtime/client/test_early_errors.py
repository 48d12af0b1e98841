"""Errors that name the option, the value and what to do, as early as they can be known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from kafkagroup import (
    Admin,
    BrokerError,
    CommitFailedError,
    ConfigurationError,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    NotAssignedError,
    Producer,
    Shards,
    TopicPartition,
)
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Swallow
from kafkagroup.wire.messages.configs import DescribeConfigsRequest

pytestmark = pytest.mark.anyio

T = TopicPartition("t", 0)


@asynccontextmanager
async def broker(network: Any, **settings: Any) -> AsyncIterator[EmbeddedKafka]:
    kafka = EmbeddedKafka({"t": 1}, listen=False, settings=BrokerSettings(**settings))
    async with network, kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(300):
            yield kafka


def consumer(*topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, bootstrap_servers="kafka-1", group_id="g", **options)


def member(session_timeout_ms: int) -> GroupMember:
    protocol = GroupProtocol("workers", "all", b"", lambda members: dict.fromkeys(members, b""))
    return GroupMember(
        "g", protocol, bootstrap_servers="kafka-1", session_timeout_ms=session_timeout_ms
    )


# ---------------------------------------------------------------- session_timeout_ms

OUTSIDE_LIMITS = (
    "session_timeout_ms=5000 is outside of the limits of broker 1, 7000 to 60000: choose a value"
    " within them, or change group.min.session.timeout.ms and group.max.session.timeout.ms of all"
    " brokers"
)
LIMITS = {"group_min_session_timeout": 7.0, "group_max_session_timeout": 60.0}


async def joined_with(session_timeout_ms: int, kind: str) -> BrokerError:
    """Return the error of a client that joins with this session timeout."""
    with pytest.raises(BrokerError) as caught:
        if kind == "member":
            async with member(session_timeout_ms) as one:
                await anext(one)
        else:
            threaded = kind == "threaded"
            async with consumer(
                "t", session_timeout_ms=session_timeout_ms, heartbeat_thread=threaded
            ) as two:
                await two.getone()
    assert caught.value.code == ErrorCode.INVALID_SESSION_TIMEOUT
    return caught.value


@pytest.mark.parametrize("kind", ["consumer", "member"])
async def test_a_session_timeout_outside_of_the_brokers_limits_names_them(
    network: Any, kind: str
) -> None:
    """The error was the broker's code alone, and the limits are in the broker's configuration."""
    async with broker(network, **LIMITS):
        assert OUTSIDE_LIMITS in str(await joined_with(5_000, kind))
        assert (
            "session_timeout_ms=60001 is outside of the limits of broker 1, 7000 to 60000"
            in str(await joined_with(60_001, kind))
        )


async def test_a_member_that_joins_asks_for_no_limits(network: Any) -> None:
    """Most may not read the configuration of a broker."""
    async with broker(network) as kafka, consumer("t") as joined:
        await joined.wait_assignment()
        assert kafka.requests(DescribeConfigsRequest) == []


CLIENTS = [
    Admin,
    Producer,
    partial(Consumer, "t"),
    partial(Election, "g"),
    partial(Shards, "g", 3),
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"request_timeout_ms": 30}, "request_timeout_ms=30: the option is in milliseconds;"),
        ({"close_timeout": 10_000}, "close_timeout=10000: the option is in seconds;"),
    ],
)
def test_a_duration_in_another_unit_is_asked_about(client: Any, option: Any, text: str) -> None:
    """Every request failed after 30 ms, and a close that hung lasted for hours."""
    with pytest.raises(ConfigurationError) as caught:
        client(**option)
    meant = {"request_timeout_ms": "30000", "close_timeout": "10"}
    assert str(caught.value) == f"{text} did you mean {meant[next(iter(option))]}?"


@pytest.mark.parametrize("client", CLIENTS)
def test_unusual_durations_are_accepted(client: Any) -> None:
    client(request_timeout_ms=100, close_timeout=3_600.0)


@pytest.mark.parametrize("make", [lambda ms: consumer("t", session_timeout_ms=ms), member])
@pytest.mark.parametrize("value", [10, 45, 999])
def test_a_session_timeout_in_seconds_is_asked_about(make: Any, value: int) -> None:
    with pytest.raises(
        ConfigurationError,
        match=f"session_timeout_ms={value}; both are in milliseconds: did you mean"
        rf" session_timeout_ms={value}000\?",
    ):
        make(value)


async def test_a_session_timeout_and_an_interval_in_seconds_are_asked_about(network: Any) -> None:
    async with broker(network):
        with pytest.raises(BrokerError) as caught:
            async with consumer("t", session_timeout_ms=10, heartbeat_interval_ms=3) as one:
                await one.getone()
        assert (
            "session_timeout_ms=10 is outside of the limits of broker 1, 6000 to 1800000: the"
            " option is in milliseconds; did you mean 10000?"
        ) in str(caught.value)


@pytest.mark.parametrize(
    "response", [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR, Swallow()]
)
async def test_limits_that_a_broker_does_not_tell_are_kafkas_defaults(
    network: Any, response: Any
) -> None:
    async with broker(network, **LIMITS) as kafka:
        kafka.fail(DescribeConfigsRequest, response, times=None)
        start = anyio.current_time()
        assert (
            "session_timeout_ms=5000 is outside of the limits of broker 1, which it does not report"
            " (Kafka's defaults are 6000 to 1800000): choose a value within them"
        ) in str(await joined_with(5_000, "consumer"))
        assert anyio.current_time() - start < 10


# ---------------------------------------------------------------- topics


@pytest.mark.parametrize("name", ["my orders", "a/b", "ü", ".", "..", "a" * 250, "t\n", "orders.*"])
async def test_a_name_that_no_topic_can_have_is_refused_at_once(network: Any, name: str) -> None:
    """The consumer waited for its creation, with a warning, for ever."""
    refused = pytest.raises(ConfigurationError, match=r"no topic can have the name .*: names have")
    with refused:
        consumer(name)
    with refused:
        consumer("t", name)
    async with broker(network), consumer("t") as one:
        assert await one.wait_assignment() == {T}
        with refused:
            await one.subscribe("t", name)
        assert await one.wait_assignment() == {T}
        await one.unsubscribe()
        with refused:
            await one.assign([T, (name, 0)])
        await one.subscribe("t")  # the refused calls have changed nothing
        assert await one.wait_assignment() == {T}


# ---------------------------------------------------------------- before the first assignment

CALLS: dict[str, Callable[[Consumer], Any]] = {
    "seek": lambda c: c.seek(T, 1),
    "pause": lambda c: c.pause(T),
    "resume": lambda c: c.resume(T),
}
AWAITED: dict[str, Callable[[Consumer], Any]] = {
    "position": lambda c: c.position(T),
    "seek_to_end": lambda c: c.seek_to_end(T),
    "commit": lambda c: c.commit({T: 1}),
}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("call", [*CALLS, *AWAITED])
async def test_a_call_before_the_first_assignment_names_wait_assignment(
    network: Any, protocol: str, call: str
) -> None:
    """`seek` right after the start said only that the partition is not assigned."""
    async with broker(network), consumer("t", group_protocol=protocol) as one:
        with pytest.raises(
            (NotAssignedError, CommitFailedError), match=r"t/0.*; await wait_assignment\(\) first"
        ):
            if call in CALLS:
                CALLS[call](one)
            else:
                await AWAITED[call](one)
        await one.wait_assignment()
        with pytest.raises(NotAssignedError, match=r"t/1 is not assigned to this consumer$"):
            one.seek(("t", 1), 1)

"""Mistakes of applications that were silent, or whose errors did not say what is wrong."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from kafkagroup import (
    Admin,
    BrokerError,
    ConfigurationError,
    Consumer,
    Election,
    TopicPartition,
)
from kafkagroup.admin import NewTopic
from kafkagroup.errors import ChangesRefusedError
from kafkagroup.testing import EmbeddedKafka

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("offsets", [None, {("t", 0): 1}])
@pytest.mark.parametrize("assigns", [False, True])
async def test_a_commit_without_a_group_says_what_is_missing(
    network: Any, offsets: Any, assigns: bool
) -> None:
    """It raised an AttributeError of an internal object."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["one"])
        async with Consumer(*(() if assigns else "t"), bootstrap_servers="kafka-1") as consumer:
            if assigns:
                await consumer.assign([("t", 0)])
            await consumer.getone()
            with pytest.raises(
                ConfigurationError, match=r"^a consumer without group_id cannot commit; give group_"
            ):
                await consumer.commit(offsets)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_an_error_of_the_listener_at_the_close_is_logged(
    network: Any, caplog: pytest.LogCaptureFixture, protocol: Any
) -> None:
    """No call raised it, and no line reported it."""

    async def save_state(_: object) -> None:
        raise OSError("disk full")

    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            group_protocol=protocol,
            on_partitions_revoked=save_state,
        ) as consumer:
            while TopicPartition("t", 0) not in consumer.assignment():
                await consumer.getmany(timeout=1.0)
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (line.levelname, line.getMessage()) == (
        "ERROR",
        "consumer kafkagroup of group g: closed before a call raised OSError('disk full')",
    )
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], OSError)


async def test_a_group_of_another_type_says_what_does_not_fit(network: Any) -> None:
    """The error named the request, JoinGroup, and not the reason."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Election("g", bootstrap_servers="kafka-1") as election:
            await anext(election)
            async with Consumer("t", bootstrap_servers="kafka-1", group_id="g") as consumer:
                with pytest.raises(BrokerError) as caught:
                    await consumer.getone()
    assert str(caught.value) == (
        "INCONSISTENT_GROUP_PROTOCOL (23): group 'g' has members of another type than 'consumer',"
        " or that do not all support one of this member's protocols, range, cooperative-sticky,"
        " roundrobin: `kafkagroup describe` shows them; join another group, or give all members the"
        " same type and a common protocol (a consumer: `assignors`)"
    )


async def test_an_unknown_remote_assignor_is_named(network: Any) -> None:
    """The error was the code alone."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            group_protocol="consumer",
            group_remote_assignor="sticky",
        ) as consumer:
            with pytest.raises(BrokerError) as caught:
                await consumer.getone()
    assert str(caught.value) == (
        "UNSUPPORTED_ASSIGNOR (112): group_remote_assignor='sticky': the coordinator does not have"
        " it; Kafka's own are 'uniform' and 'range'"
    )


@pytest.mark.parametrize("topics", ["t", NewTopic(name="t"), ["t"], [NewTopic(name="t"), "u"]])
async def test_topics_to_create_are_a_list(network: Any, topics: Any) -> None:
    """The error was an AttributeError or TypeError of internals."""
    async with network, EmbeddedKafka({}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Admin(bootstrap_servers="kafka-1") as admin:
            with pytest.raises(ConfigurationError) as caught:
                await admin.create_topics(topics)
            assert not await admin.list_topics()
    assert str(caught.value) == (
        "create_topics() takes a list: [kafkagroup.admin.NewTopic(name='orders', partitions=6)]"
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        # None stands for the topic's id in the request, which was repeated until the timeout.
        (lambda admin: admin.describe_topics([None]), "topic=None; expected a string"),
        (lambda admin: admin.describe_topics(None), "expected several topics, not None alone"),
        (lambda admin: admin.describe_topics(b"t"), "expected several topics, not b't' alone"),
        (lambda admin: admin.delete_topics([5]), "topic=5; expected a string"),
        (lambda admin: admin.delete_topics([["t"]]), "topic=['t']; expected a string"),
        (lambda admin: admin.partitions(5), "expected several topics, not 5 alone"),
        (lambda admin: admin.create_topics([NewTopic(name=None)]), "topic=None; expected a string"),  # type: ignore[arg-type]
        (
            lambda admin: admin.add_partitions(["t"]),
            "add_partitions() takes the totals by topic: {'orders': 6}",
        ),
        (lambda admin: admin.add_partitions({5: 6}), "topic=5; expected a string"),
        (
            lambda admin: admin.describe_transactions(None),
            "expected several transactional ids, not None alone",
        ),
        (
            lambda admin: admin.list_transactions(producer_ids=5),
            "producer_ids=5; expected several, in a list",
        ),
        (
            lambda admin: admin.list_transactions(states="Ongoing"),
            "expected several states or types, not 'Ongoing' alone",
        ),
        (lambda admin: admin.committed(None), "expected several group ids, not None alone"),
        (lambda admin: admin.describe_group(5), "group_id=5; expected a string"),
    ],
)
async def test_names_of_wrong_types_are_refused(network: Any, call: Any, said: str) -> None:
    """The error was a TypeError, an ExceptionGroup, or that of the encoder."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Admin(bootstrap_servers="kafka-1") as admin:
            with pytest.raises(ConfigurationError) as caught:
                await call(admin)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        (
            {"retention.ms": 5},
            "topic 't': retention.ms=5; expected a string, such as '5'",
        ),
        (
            ["retention.ms=5"],
            (
                "topic 't': configs=['retention.ms=5']; expected a mapping, such as"
                " {'cleanup.policy': 'compact'}"
            ),
        ),
        ({5: "5"}, "topic 't': the config 5 is no string; expected Kafka's name"),
    ],
)
async def test_configs_of_wrong_types_are_refused(network: Any, configs: Any, said: str) -> None:
    """The error was an ExceptionGroup, or that of the encoder."""
    async with network, EmbeddedKafka({}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Admin(bootstrap_servers="kafka-1") as admin:
            with pytest.raises(ChangesRefusedError) as caught:
                await admin.create_topics([NewTopic(name="t", configs=configs)])
    (error,) = caught.value.errors.values()
    assert (type(error), str(error)) == (ConfigurationError, said)


@pytest.mark.parametrize(
    ("topic", "advice"),
    [
        ("orders,payments", "give several topics as arguments, or in a list"),
        ("orders.*", "give pattern= for topics that match"),
    ],
)
def test_an_illegal_topic_name_is_answered_with_what_was_meant(topic: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Consumer(topic)
    assert str(caught.value) == (
        f"no topic can have the name {topic!r}: names have 1 to 249 letters, digits, dots,"
        f" underscores and hyphens; {advice}"
    )


@pytest.mark.parametrize("servers", [("localhost", 9092), [("localhost", 9092)]])
def test_an_address_that_is_no_string_is_named(servers: Any) -> None:
    """The error named the list, which is right."""
    kind = "int" if isinstance(servers, tuple) else "tuple"
    with pytest.raises(ConfigurationError) as caught:
        Consumer("t", bootstrap_servers=servers)
    assert str(caught.value) == (
        f"bootstrap_servers has an item of type {kind}; expected 'host:port'"
    )


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "1:2", "9" * 5_000])
def test_an_address_with_an_impossible_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Consumer("t", bootstrap_servers=f"localhost:{port}")
    assert str(caught.value) == (
        f"bootstrap_servers has 'localhost:{port}'; expected host:port, or [ipv6-address]:port"
    )


@pytest.mark.parametrize("wrong", [5, b"why", None])
async def test_a_note_or_reason_that_is_no_text_is_refused_at_once(
    network: Any, wrong: Any
) -> None:
    """A reason that is none ended the membership, and a note failed while it was encoded."""
    kind = type(wrong).__name__
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Consumer("t", bootstrap_servers="kafka-1", group_id="g") as consumer:
            await consumer.wait_assignment()
            with pytest.raises(ConfigurationError) as of_note:
                await consumer.commit(note=wrong)
            with pytest.raises(ConfigurationError) as of_reason:
                consumer.rejoin(wrong)
            await anyio.sleep(5)
            assert consumer.health()
    assert str(of_note.value) == f"note is of type {kind}; expected a string"
    assert str(of_reason.value) == f"reason is of type {kind}; expected a string"

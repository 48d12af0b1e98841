"""docs/migrating.md: names on the left exist in the other client, those on the right here."""

from __future__ import annotations

import asyncio
import inspect
import re
import warnings
from collections.abc import Callable, Iterator

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest
from doc_blocks import ROOT

from kafkagroup import ClosedError, Consumer
from kafkagroup.compat.kiel import GroupedConsumer
from kafkagroup.compat.pykafka import ManagedBalancedConsumer
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire import NewRecord, encode_batch
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import JoinGroupRequest
from kafkagroup.wire.messages.metadata import MetadataRequest

with warnings.catch_warnings():
    # Reads its schemas by a function that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PAGE = (ROOT / "docs" / "migrating.md").read_text("utf-8")


def takes(kind: type) -> Callable[[str], bool]:
    """Whether the constructor has an option of that name, or the class a method or property."""
    options = inspect.signature(kind.__init__).parameters

    def has(name: str) -> bool:
        if name.endswith("()"):
            return callable(getattr(kind, name[:-2], None))
        return name in options or isinstance(getattr(kind, name, None), property)

    return has


def of_kafka_python(name: str) -> bool:
    if name.endswith("()"):
        return callable(getattr(kafka.KafkaConsumer, name[:-2], None))
    return name in kafka.KafkaConsumer.DEFAULT_CONFIG


def of_confluent(name: str) -> bool:
    if name.endswith("()"):
        return callable(getattr(confluent_kafka.Consumer, name[:-2], None))
    try:
        confluent_kafka.Consumer({"group.id": "x", name: object()})
    except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
        return "No such configuration property" not in str(error)
    return True


# pykafka and kiel are of Pythons that are gone: `compat` has their names, which docs/parity.md
# compares with their documents.
CLIENTS = {
    "aiokafka": takes(aiokafka.AIOKafkaConsumer),
    "confluent-kafka": of_confluent,
    "kafka-python": of_kafka_python,
    "pykafka": takes(ManagedBalancedConsumer),
    "kiel": takes(GroupedConsumer),
}


def rows(client: str) -> list[tuple[str, str]]:
    table = PAGE.partition(f"| {client} | here | what differs |\n")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)`|none) \|(?= .*\|$)", table, re.MULTILINE)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_names_on_the_page_exist(client: str) -> None:
    table = PAGE.partition(f"| {client} | here | what differs |\n")[2].partition("\n\n")[0]
    found = rows(client)
    assert len(found) == table.count("\n") > 10  # every row but the rule above them
    assert [theirs for theirs, _ in found if not CLIENTS[client](theirs)] == []
    assert [ours for _, ours in found if ours and not takes(Consumer)(ours)] == []
    assert "| none | |" not in table  # what to do instead


@pytest.mark.parametrize("client", ["aiokafka", "confluent-kafka", "kafka-python"])
def test_an_option_on_the_page_is_explained_by_its_error(client: str) -> None:
    ours = inspect.signature(Consumer).parameters
    options = [name for name, _ in rows(client) if not name.endswith("()") and name not in ours]
    unexplained = []
    for name in options:
        with pytest.raises(TypeError) as caught:
            Consumer(**{name: 1})
        if "; " not in str(caught.value):
            unexplained.append(name)
    assert unexplained == []


def methods(kind: type) -> set[str]:
    return {f"{n}()" for n in dir(kind) if n[0] != "_" and callable(getattr(kind, n))}


AIOKAFKA = set(inspect.signature(aiokafka.AIOKafkaConsumer).parameters) - {"topics"}


@pytest.mark.parametrize(
    ("client", "names"),
    [
        ("aiokafka", AIOKAFKA | methods(aiokafka.AIOKafkaConsumer)),
        ("kafka-python", set(kafka.KafkaConsumer.DEFAULT_CONFIG) | methods(kafka.KafkaConsumer)),
        ("confluent-kafka", methods(confluent_kafka.Consumer)),
    ],
)
def test_no_option_and_no_method_is_missing(client: str, names: set[str]) -> None:
    listed = [theirs for theirs, _ in rows(client)]
    assert len(listed) == len(set(listed))
    assert names - set(listed) == set()


def test_an_unknown_name_is_detected() -> None:
    for client, has in CLIENTS.items():
        assert not has("no_such_option"), client
        assert not has("no_such_method()"), client


def test_the_defaults_on_the_page_are_right() -> None:
    theirs = inspect.signature(aiokafka.AIOKafkaConsumer.__init__).parameters
    assert theirs["auto_offset_reset"].default == "latest"
    assert theirs["session_timeout_ms"].default == 10_000
    assert theirs["heartbeat_interval_ms"].default == 3_000
    assert kafka.KafkaConsumer.DEFAULT_CONFIG["auto_offset_reset"] == "latest"


# ---------------------------------------------------------------- what behaves differently


class Sent:
    """What a client that joins a group asks the broker for."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.creates: set[bool] = set()
        self.timeouts: set[tuple[float, float]] = set()
        self.isolation: set[int] = set()
        for api, note in (
            (MetadataRequest, self._metadata),
            (JoinGroupRequest, self._join),
            (FetchRequest, self._fetch),
        ):
            kafka.fail(api, ErrorCode.NONE, times=None, when=note)

    def _metadata(self, request: MetadataRequest) -> bool:
        self.creates.add(request.allow_auto_topic_creation)
        return False

    def _join(self, request: JoinGroupRequest) -> bool:
        self.timeouts.add((request.session_timeout_ms / 1000, request.rebalance_timeout_ms / 1000))
        return False

    def _fetch(self, request: FetchRequest) -> bool:
        self.isolation.add(request.isolation_level)
        return False


@pytest.fixture
def kafka_() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"orders": 1}) as running:
        running.produce("orders", ["one"])
        batch = encode_batch([NewRecord(None, None)])
        running.append("orders", 0, batch)
        yield running


def test_how_aiokafka_behaves(kafka_: EmbeddedKafka) -> None:
    sent, given = Sent(kafka_), []

    def deserialize(value: bytes | None) -> bytes | None:
        given.append(value)
        return value

    async def consume() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            "orders",
            bootstrap_servers=kafka_.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            value_deserializer=deserialize,
        )
        await consumer.start()
        assert consumer.assignment()  # it has waited
        await consumer.getmany(timeout_ms=10_000)
        await consumer.stop()
        with pytest.raises(aiokafka.errors.ConsumerStoppedError):
            await consumer.getone()

    asyncio.run(consume())
    assert sent.timeouts == {(10, 10)}
    assert True in sent.creates
    assert given == [b"one", None]
    assert kafka_.committed("g", "orders") == {0: 2}  # delivered, and not yet processed


def test_how_confluent_kafka_behaves(kafka_: EmbeddedKafka) -> None:
    sent = Sent(kafka_)
    settings = {"bootstrap.servers": kafka_.bootstrap_servers, "group.id": "g"}
    consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"one"
    consumer.close()
    assert sent.timeouts == {(45, 300)}
    assert sent.isolation == {1}
    assert sent.creates == {False}
    assert kafka_.committed("g", "orders") == {0: 1}  # delivered, and not yet processed
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        confluent_kafka.Consumer({"bootstrap.servers": kafka_.bootstrap_servers})


def test_how_this_client_behaves(kafka_: EmbeddedKafka) -> None:
    sent, given = Sent(kafka_), []

    async def consume() -> None:
        consumer = Consumer(
            "orders",
            bootstrap_servers=kafka_.bootstrap_servers,
            group_id="g",
            value_deserializer=given.append,
        )
        await consumer.start()
        assert not consumer.assignment()
        await consumer.wait_assignment()
        assert await consumer.getmany(timeout=10)
        await consumer.stop()
        with pytest.raises(ClosedError):
            await consumer.getone()

    asyncio.run(consume())
    assert sent.timeouts == {(45, 300)}
    assert sent.isolation == {0}
    assert sent.creates == {False}
    assert given == [b"one"]
    assert kafka_.committed("g", "orders") == {0: 0}

"""Attributes, keywords and imports of other clients: the error says what to write instead."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka.admin
import confluent_kafka.aio
import confluent_kafka.serialization
import pytest

import kafkagroup
import kafkagroup.admin
import kafkagroup.broker
import kafkagroup.errors
import kafkagroup.types
import kafkagroup.wire
from kafkagroup import (
    Admin,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    Producer,
    Record,
    Security,
    Shards,
    Transaction,
    ZooKeeperMembership,
)
from kafkagroup._foreign_names import _ATTRIBUTES, _CODES_OF_RECORDS, _KEYWORDS, _NAMES, _path
from kafkagroup.broker import Broker
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.runtime.produce.record_future import RecordFuture
from kafkagroup.types import TimestampType, TopicPartition

with warnings.catch_warnings():
    # Reads its schemas by a function that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.partitioner
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.producer.future import FutureRecordMetadata

RECORD = Record("t", 0, 5, 9, TimestampType.CREATE_TIME, b"k", b"v", (), 1)
BATCH = ProduceBatch(TopicPartition("t", 0), 0.0, 9.0, 1)
BATCH.append(None, b"", 1, (), 50)
PROTOCOL = GroupProtocol("t", "n", b"", lambda members: {})
OURS = {
    "Consumer": Consumer("t"),
    "Producer": Producer(),
    "Transaction": Producer(transactional_id="t").transaction(),
    "Admin": Admin(),
    "Record": RECORD,
    "RecordFuture": RecordFuture(BATCH, None),
    "GroupMember": GroupMember("g", PROTOCOL),
    "Election": Election("g"),
    "Shards": Shards("g", 3),
}
VALUES = ("Record", "RecordFuture")
CLIENTS = [name for name in OURS if name not in (*VALUES, "Transaction")]
THEIRS: dict[str, tuple[Any, ...]] = {
    "Consumer": (
        aiokafka.AIOKafkaConsumer,
        kafka.KafkaConsumer,
        confluent_kafka.DeserializingConsumer,
    ),
    "Producer": (
        aiokafka.AIOKafkaProducer,
        kafka.KafkaProducer,
        confluent_kafka.SerializingProducer,
    ),
    "Admin": (
        aiokafka.admin.AIOKafkaAdminClient,
        kafka.admin.KafkaAdminClient,
        confluent_kafka.admin.AdminClient,
    ),
    "Record": (aiokafka.ConsumerRecord, ConsumerRecord, confluent_kafka.Message),
    "RecordFuture": (asyncio.Future, FutureRecordMetadata),
}
needs_compiled = pytest.mark.skipif(
    not kafkagroup.__compiled__, reason="in the pure form attributes of records are not explained"
)


def public(cls: Any) -> set[str]:
    return {name for name in dir(cls) if name.islower() and not name.startswith("_")}


def attribute_error(found_on: object, name: str) -> AttributeError:
    with pytest.raises(AttributeError) as caught:
        getattr(found_on, name)
    return caught.value


@pytest.mark.parametrize(
    ("client", "name", "answer"),
    [
        ("Consumer", "highwater", "await end_offsets(), or lag(); metrics().lag sends no request"),
        ("Consumer", "commit_sync", "it is commit()"),
        ("Producer", "send_and_wait", "it is send()"),
        ("Producer", "write", "await send() or send_many(), or send_nowait() and flush()"),
        ("Transaction", "commit", "the end of the block commits"),
        ("Transaction", "send_offsets_to_transaction", "await send_offsets(consumer)"),
        ("Admin", "create_partitions", "it is add_partitions()"),
        *((client, "close", "await stop(), or use `async with`") for client in CLIENTS),
        *(
            pytest.param(client, name, _ATTRIBUTES[client][name], marks=needs_compiled)
            for client, name in (("Record", "tp"), ("RecordFuture", "add_done_callback"))
        ),
    ],
)
def test_an_attribute_of_another_client_is_explained(client: str, name: str, answer: str) -> None:
    error = attribute_error(OURS[client], name)
    assert str(error) == f"{client!r} object has no attribute {name!r}; {answer}"
    assert (error.name, error.obj) == (name, OURS[client])


@pytest.mark.parametrize("name", OURS)
def test_an_unknown_attribute_is_an_ordinary_error(name: str) -> None:
    found_on = OURS[name]
    error = attribute_error(found_on, "xyzzy")
    assert str(error) == f"{name!r} object has no attribute 'xyzzy'"
    assert (error.name, error.obj) == ("xyzzy", found_on)
    assert not hasattr(found_on, "xyzzy")
    assert getattr(found_on, "highwater", 5) == 5
    assert "highwater" not in dir(found_on)


@pytest.mark.parametrize("name", CLIENTS)
def test_all_clients_are_opened_and_closed_by_the_same_names(name: str) -> None:
    """`Consumer` alone had `close`, and none `aclose`."""
    wanted = {"start", "stop", "aclose", "__aenter__", "__aexit__", "run", "closed"}
    assert wanted - set(dir(OURS[name])) == set()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python suggests names of attributes later")
def test_python_still_suggests_the_most_similar_name() -> None:
    program = "from kafkagroup import Consumer\nConsumer('t').wait_assignmen\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Did you mean: 'wait_assignment'?" in done.stderr


def test_objects_are_copied_and_pickled_as_before() -> None:
    """Both look for optional methods on an object, also before it has any attribute."""
    assert (
        copy.copy(RECORD) == copy.deepcopy(RECORD) == pickle.loads(pickle.dumps(RECORD)) == RECORD
    )
    blank = Consumer.__new__(Consumer)
    assert str(attribute_error(blank, "_reader")) == "'Consumer' object has no attribute '_reader'"


def missing() -> Iterator[tuple[str, str]]:
    """Return the attributes of other Python clients that ours lack."""
    for client, others in THEIRS.items():
        found = set().union(*map(public, others)) - public(type(OURS[client]))
        if client == "Record":
            found -= public(tuple)  # kafka-python's is one
        if client == "RecordFuture":
            found -= {"args", "rebind"}  # internal to kafka-python
        yield from ((client, name) for name in sorted(found))


@pytest.mark.parametrize(("client", "name"), list(missing()))
def test_each_attribute_of_the_other_python_clients_is_explained(client: str, name: str) -> None:
    if client in VALUES and not kafkagroup.__compiled__:
        pytest.skip("in the pure form attributes of records are not explained")
    assert "; " in str(attribute_error(OURS[client], name))


# ---------------------------------------------------------------- keywords of methods


async def type_error(call: Any) -> str:
    with pytest.raises(TypeError) as caught:
        found = call()
        if inspect.isawaitable(found):
            await found
    return str(caught.value)


CONSUMER, ADMIN = OURS["Consumer"], OURS["Admin"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: CONSUMER.getmany(timeout_ms=5),
            (
                "Consumer.getmany() got an unexpected keyword argument 'timeout_ms'; timeout_ms is"
                " timeout here, in seconds"
            ),
        ),
        (
            lambda: CONSUMER.subscribe("t", listener=1),
            (
                "Consumer.subscribe() got an unexpected keyword argument 'listener'; listener: give"
                " Consumer() on_partitions_assigned, on_partitions_revoked, on_partitions_lost"
            ),
        ),
        (
            lambda: CONSUMER.subscribe(topics=["t"]),
            (
                "Consumer.subscribe() got an unexpected keyword argument 'topics'; topics is a"
                " positional argument"
            ),
        ),
        (
            lambda: CONSUMER.position(("t", 0), timeout_ms=5),
            (
                "Consumer.position() got an unexpected keyword argument 'timeout_ms'; timeout_ms:"
                " call it within anyio.fail_after(seconds)"
            ),
        ),
        (
            lambda: CONSUMER.pause(partitions=[("t", 0)]),
            (
                "Consumer.pause() got an unexpected keyword argument 'partitions'; partitions is a"
                " positional argument"
            ),
        ),
        (
            lambda: CONSUMER.getmany(max_record=5, xyzzy=1),
            (
                "Consumer.getmany() got an unexpected keyword arguments 'max_record', 'xyzzy'; did"
                " you mean max_records?"
            ),
        ),
        (
            lambda: ADMIN.list_groups(states_filter=[]),
            (
                "Admin.list_groups() got an unexpected keyword argument 'states_filter';"
                " states_filter is states here"
            ),
        ),
        (
            lambda: OURS["Producer"].send("t", b"", timestamp_ms=5),
            (
                "Producer.send() got an unexpected keyword argument 'timestamp_ms';"
                " timestamp_ms is timestamp here"
            ),
        ),
        (
            lambda: OURS["Producer"].flush(timeout=5),
            (
                "Producer.flush() got an unexpected keyword argument 'timeout'; timeout: call it"
                " within anyio.fail_after(seconds)"
            ),
        ),
        (
            lambda: OURS["Producer"].stop(timeout=5),
            (
                "Producer.stop() got an unexpected keyword argument 'timeout'; timeout: give"
                " close_timeout to the constructor"
            ),
        ),
        (
            lambda: OURS["Transaction"].send_offsets(offsets={}, group_id="g"),
            (
                "Transaction.send_offsets() got an unexpected keyword arguments 'offsets',"
                " 'group_id'; offsets: pass the consumer, which has its offsets and its group;"
                " group_id: pass the consumer, which has its offsets and its group"
            ),
        ),
        (
            lambda: Broker.open("h", 9092, security=None),
            (
                "Broker.open() got an unexpected keyword argument 'security'; security:"
                " options=kafkagroup.broker.ClientOptions(security=...)"
            ),
        ),
    ],
)
async def test_a_keyword_of_another_client_is_explained(call: Any, said: str) -> None:
    assert await type_error(call) == said


@pytest.mark.parametrize("client", ["Consumer", "Producer", "Admin"])
def test_each_keyword_of_the_other_python_clients_is_explained(client: str) -> None:
    unexplained = set()
    for name in sorted(public(type(OURS[client]))):
        ours = getattr(type(OURS[client]), name)
        for other in THEIRS[client][:2]:  # those of confluent-kafka have no signature
            theirs = getattr(other, name, None)
            if inspect.isfunction(ours) and inspect.isfunction(theirs):
                keywords = inspect.signature(theirs).parameters.keys()
                for keyword in keywords - inspect.signature(ours).parameters.keys():
                    with pytest.raises(TypeError) as caught:
                        found = ours(OURS[client], **{keyword: 1})
                        found.send(None)
                    if "; " not in str(caught.value):
                        unexplained.add((name, keyword))
    # They take no arguments here, and getone() is called for each record. Python checks first that
    # send() has a topic and a value.
    assert unexplained <= {("getone", "partitions"), ("metrics", "raw"), ("send", "timestamp_ms")}


def test_methods_are_what_they_were_for_tools() -> None:
    assert inspect.iscoroutinefunction(Consumer.getmany)
    assert not inspect.iscoroutinefunction(Consumer.pause)
    assert list(inspect.signature(Consumer.getmany).parameters) == [
        "self",
        "max_records",
        "timeout",
    ]
    assert not hasattr(Consumer.getone, "__wrapped__")  # it is called for each record


def test_the_methods_of_an_application_stay_as_they_are() -> None:
    class Mine(Consumer[bytes, bytes]):
        def handle(self, record: object) -> None: ...

    assert not hasattr(Mine.handle, "__wrapped__")


# ---------------------------------------------------------------- constructors


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: Security(sasl_plain_username="me"),
            (
                "Security() has no option sasl_plain_username; sasl_plain_username is sasl_username"
                " here"
            ),
        ),
        (
            lambda: Security(**{"ssl.ca.location": "ca", "bootstrap_servers": "h"}),
            (
                "Security() has no option ssl.ca.location, bootstrap_servers; ssl.ca.location is"
                " ssl_ca_location"
            ),
        ),
        (
            lambda: Election("g", session_timeout=3),
            "Election() has no option session_timeout; did you mean session_timeout_ms?",
        ),
        (
            lambda: Shards("g", 3, sasl_plain_password="secret"),
            (
                "Shards() has no option sasl_plain_password; sasl_plain_password is"
                " security=kafkagroup.Security(sasl_password=...)"
            ),
        ),
        (
            lambda: kafkagroup.admin.NewTopic(name="t", num_partitions=3),  # type: ignore[call-arg]
            "NewTopic() has no option num_partitions; did you mean partitions?",
        ),
        (
            lambda: ZooKeeperMembership("zk:2181", usrname="me"),
            "ZooKeeperMembership() has no option usrname; did you mean username?",
        ),
    ],
)
@pytest.mark.anyio
async def test_an_option_of_another_client_is_explained(call: Any, said: str) -> None:
    assert await type_error(call) == said


# ---------------------------------------------------------------- imports


MODULES = tuple(
    f"kafkagroup{part}" for part in ("", ".admin", ".assign", ".errors", ".events", ".wire")
)


@pytest.mark.parametrize(
    ("module", "name", "answer"),
    [
        ("kafkagroup", "AIOKafkaConsumer", "it is kafkagroup.Consumer"),
        ("kafkagroup", "ConsumerRecord", "it is kafkagroup.Record"),
        ("kafkagroup", "range_assignor", "it is kafkagroup.assign.range_assignor"),
        ("kafkagroup", "NewTopic", "it is kafkagroup.admin.NewTopic"),
        ("kafkagroup.errors", "PartitionLag", "it is kafkagroup.admin.PartitionLag"),
        ("kafkagroup", "KafkaProducer", "it is kafkagroup.Producer"),
        ("kafkagroup", "AIOProducer", "it is kafkagroup.Producer"),
        ("kafkagroup", "Rebalanced", "it is kafkagroup.events.Rebalanced"),
        ("kafkagroup", "DecodeError", "it is kafkagroup.errors.DecodeError"),
        ("kafkagroup", "NoBrokersAvailable", "it is kafkagroup.errors.NoBrokersAvailableError"),
        ("kafkagroup", "BrokerConnection", "it is kafkagroup.broker.Broker"),
        ("kafkagroup", "decode_records", "it is kafkagroup.wire.decode_records"),
        ("kafkagroup", "TimestampType", "it is kafkagroup.types.TimestampType"),
        ("kafkagroup", "MemberOptions", "it is kafkagroup.coordination.MemberOptions"),
        ("kafkagroup.errors", "Rebalanced", "it is kafkagroup.events.Rebalanced"),
        ("kafkagroup.events", "Consumer", "it is kafkagroup.Consumer"),
        ("kafkagroup.wire", "Record", "it is kafkagroup.Record"),
        ("kafkagroup.compat.kafka_python", "KafkaProducer", "it is kafkagroup.Producer"),
        ("kafkagroup.compat.pykafka", "Producer", "it is kafkagroup.Producer"),
        (
            "kafkagroup.assign",
            "RoundRobinPartitionAssignor",
            "it is kafkagroup.assign.roundrobin_assignor",
        ),
        (
            "kafkagroup.assign",
            "round_robin_assignor",
            "it is kafkagroup.assign.roundrobin_assignor",
        ),
        ("kafkagroup.errors", "KafkaError", "it is kafkagroup.KafkaGroupError"),
        ("kafkagroup", "ConsumerClosedError", "it is kafkagroup.ClosedError"),
        ("kafkagroup.errors", "ConsumerClosedError", "it is kafkagroup.ClosedError"),
        ("kafkagroup.errors", "CommitFailed", "it is kafkagroup.CommitFailedError"),
        (
            "kafkagroup.errors",
            "UnknownTopicOrPartitionError",
            "catch BrokerError, and compare its code with ErrorCode.UNKNOWN_TOPIC_OR_PARTITION",
        ),
        (
            "kafkagroup.errors",
            "MessageSizeTooLargeError",
            (
                "catch NotWrittenError, and compare the code of its why with"
                " ErrorCode.MESSAGE_TOO_LARGE"
            ),
        ),
        ("kafkagroup.errors", "ProduceError", "it is kafkagroup.NotWrittenError"),
        ("kafkagroup.errors", "ValueSerializationError", "send() raises what a serializer raises"),
        ("kafkagroup.admin", "NewPartitions", "Admin.add_partitions() takes topic -> count"),
    ],
)
def test_an_import_of_another_client_is_explained(module: str, name: str, answer: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {name}")
    assert (str(caught.value), caught.value.name) == (
        f"cannot import name {name!r} from {module!r}; {answer}",
        module,
    )
    found_on = import_module(module)
    assert str(attribute_error(found_on, name)) == (
        f"module {module!r} has no attribute {name!r}; {answer}"
    )
    assert not hasattr(found_on, name)


@pytest.mark.parametrize("module", MODULES)
def test_another_unknown_name_is_an_ordinary_error(module: str) -> None:
    with pytest.raises(ImportError, match=r"^cannot import name 'Konsumer' from 'kafkagroup.* \("):
        exec(f"from {module} import Konsumer")
    found_on = import_module(module)
    error = attribute_error(found_on, "Konsumer")
    assert str(error) == f"module {module!r} has no attribute 'Konsumer'"
    assert (error.name, error.obj) == ("Konsumer", found_on)
    assert not hasattr(found_on, "")


def exported() -> set[str]:
    """Return the names that the other Python clients export, and this package does not."""
    found: set[str] = set()
    for module in (aiokafka, aiokafka.errors, aiokafka.admin, aiokafka.abc, kafka, kafka.errors):
        found |= set(getattr(module, "__all__", ())) or {
            name for name, value in vars(module).items() if isinstance(value, type)
        }
    for module in (kafka.admin, confluent_kafka, confluent_kafka.admin):
        found |= {
            name for name in vars(module) if name.startswith(("Kafka", "Consumer", "TIMESTAMP"))
        }
        found |= {"AdminClient", "DeserializingConsumer", "Message", "Producer", "OFFSET_END"}
    found |= {"ThrottleEvent", *confluent_kafka.aio.__all__}
    for module in (confluent_kafka, confluent_kafka.serialization, kafka.partitioner):
        found |= {name for name in vars(module) if name.endswith(KINDS)}
    ours = {*kafkagroup.__all__, *kafkagroup.admin.__all__}
    return {name for name in found if name[0].isupper()} - ours - INTERNAL


KINDS = ("Consumer", "Partitioner", "Producer", "Deserializer", "Serializer")
INTERNAL = {
    *("Any", "NoError", "TopicPartitionReplica", "TypeVar"),
    *("InvalidMetadataError", "StaleMetadata", "TooManyInFlightRequests"),
}
"""Exported, but of no use to applications that consume."""


@pytest.mark.parametrize("name", sorted(exported()))
def test_each_export_of_the_other_python_clients_is_explained(name: str) -> None:
    assert "; " in str(attribute_error(kafkagroup, name))


def test_the_explanations_are_imported_with_the_first_wrong_name() -> None:
    program = (
        "import sys\nfrom kafkagroup import Admin, Consumer, Security\n"
        "from kafkagroup.errors import *\n"
        "consumer = Consumer('t')\nprint('kafkagroup._foreign_names' in sys.modules)\n"
        "hasattr(consumer, 'poll')\nprint('kafkagroup._foreign_names' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\nTrue\n"


# ---------------------------------------------------------------- the tables


def test_the_explanations_name_what_exists() -> None:
    assert set(kafkagroup.errors.ErrorCode.__members__) >= _CODES_OF_RECORDS
    for answer in _NAMES.values():
        if " " not in answer:
            path = answer if "." in answer else _path(answer)
            assert path is not None, answer
            module, _, name = path.replace("TimestampType.", "").rpartition(".")
            found = kafkagroup.types.TimestampType if "TimestampType" in path else None
            assert hasattr(found or import_module(module), name), path
    answers = [*_NAMES.values()]
    answers += [a for table in (*_ATTRIBUTES.values(), *_KEYWORDS.values()) for a in table.values()]
    named = set(re.findall(r"(\w+)\(", " ".join(answers)))
    known = set(kafkagroup.__all__) | {"len", "fail_after", "_replace", "ensure_future"}
    known |= {*kafkagroup.broker.__all__, *kafkagroup.wire.__all__}
    known |= set().union(*map(dir, (Consumer, Admin, Producer, Broker, Transaction, RecordFuture)))
    assert named - known == set()
    for client in _ATTRIBUTES.keys() & OURS.keys():
        assert not _ATTRIBUTES[client].keys() & set(dir(OURS[client]))

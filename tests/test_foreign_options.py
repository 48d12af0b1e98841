"""Unknown keywords of a constructor: the error suggests what to write instead."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

import aiokafka
import pytest

from kafkagroup import Admin, Consumer, GroupMember, GroupProtocol, Producer, Security
from kafkagroup._foreign_options import _ANSWERS, _RENAMED, _SECURITY

with warnings.catch_warnings():
    # Reads its schemas by a function that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

CLIENTS: Any = [Consumer, GroupMember, Admin, Producer]


def options_of(client: Any) -> set[str]:
    return set(inspect.signature(client).parameters) - {"topics"}


def answer(client: Any, /, *args: Any, **options: Any) -> str:
    with pytest.raises(TypeError) as caught:
        client(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "security_protocol",
            "security_protocol is security=kafkagroup.Security(security_protocol=...)",
        ),
        ("sasl_mechanism", "sasl_mechanism is security=kafkagroup.Security(sasl_mechanism=...)"),
        (
            "sasl_plain_username",
            "sasl_plain_username is security=kafkagroup.Security(sasl_username=...)",
        ),
        (
            "ssl.ca.location",
            "ssl.ca.location is security=kafkagroup.Security(ssl_ca_location=...)",
        ),
        ("max_poll_records", "max_poll_records: pass max_records to getmany() or batches()"),
        (
            "partition_assignment_strategy",
            "partition_assignment_strategy is assignors here",
        ),
        ("session.timeout.ms", "session.timeout.ms is session_timeout_ms"),
        ("group.id", "group.id is group_id"),
        ("GROUP_ID", "GROUP_ID is group_id"),
        ("gropu_id", "did you mean group_id?"),
        ("loop", "loop: the running event loop is used"),
        (
            "num_consumer_fetchers",
            (
                "num_consumer_fetchers: one connection to each broker fetches, and a second one at"
                " need"
            ),
        ),
        (
            "queued_max_records",
            "queued_max_records: fetch_max_bytes limits what is buffered, in bytes",
        ),
        ("offsets_channel_backoff_ms", "offsets_channel_backoff_ms is retry_backoff_ms here"),
        (
            "offsets_commit_max_retries",
            "offsets_commit_max_retries: a commit is retried until request_timeout_ms expires",
        ),
        ("rebalance_backoff_ms", "rebalance_backoff_ms is retry_backoff_ms here"),
        (
            "rebalance_max_retries",
            (
                "rebalance_max_retries: joining is retried without limit, and health() tells why it"
                " fails"
            ),
        ),
        ("topics", "topics: topics are positional arguments"),
    ],
)
def test_an_option_of_another_client_is_explained(option: str, said: str) -> None:
    assert answer(Consumer, **{option: 1}) == f"Consumer() has no option {option}; {said}"


def test_an_unknown_option_without_a_similar_one() -> None:
    assert answer(Consumer, xyzzy=1) == "Consumer() has no option xyzzy"


def test_several_options_are_explained_together_without_values() -> None:
    said = answer(Consumer, "t", sasl_plain_password="secret", api_version=(0, 9))
    assert said == (
        "Consumer() has no option sasl_plain_password, api_version; sasl_plain_password is"
        " security=kafkagroup.Security(sasl_password=...); api_version: there is nothing to set:"
        " versions are negotiated with each broker"
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_a_mapping_of_options_as_for_confluent_kafka_is_explained(client: Any) -> None:
    given = {"bootstrap.servers": "h:9092", "sasl.password": "secret"}
    assert answer(client, given) == (
        f"{client.__name__}() takes options as keyword arguments, not as a mapping;"
        " bootstrap.servers is bootstrap_servers;"
        " sasl.password is security=kafkagroup.Security(sasl_password=...)"
    )


@pytest.mark.parametrize("client", [Admin, Producer])
def test_addresses_without_a_name_are_explained(client: Any) -> None:
    name = client.__name__
    assert answer(client, "h:9092") == (
        f"{name}() takes arguments by name only: {name}(bootstrap_servers='localhost:9092')"
    )


def test_each_client_suggests_its_own_options() -> None:
    protocol = GroupProtocol("t", "n", b"", lambda members: {})
    said = answer(GroupMember, "g", protocol, session_timeout=1)
    assert said == "GroupMember() has no option session_timeout; did you mean session_timeout_ms?"
    assert answer(Admin, sesion_timeout_ms=1) == "Admin() has no option sesion_timeout_ms"
    assert answer(Producer, compression="gzip").endswith("compression is compression_type here")


@pytest.mark.parametrize(
    ("client", "option"),
    [
        (Producer, "allow_auto_create_topics"),  # a producer may create its topics
        (Producer, "topic"),
        (Admin, "topics"),
        (Admin, "metric_reporters"),
    ],
)
def test_an_answer_is_given_only_where_it_is_true(client: Any, option: str) -> None:
    assert answer(client, **{option: 1}) == f"{client.__name__}() has no option {option}"


def theirs() -> set[str]:
    """Return all options of the other Python clients that Consumer lacks."""
    found = set(inspect.signature(aiokafka.AIOKafkaConsumer).parameters)
    found |= set(kafka.KafkaConsumer.DEFAULT_CONFIG)
    return found - options_of(Consumer)


@pytest.mark.parametrize("option", sorted(theirs()))
def test_every_option_of_the_other_python_clients_is_explained(option: str) -> None:
    assert f"; {option}" in answer(Consumer, **{option: 1})


def theirs_of_producers() -> set[str]:
    """Return all options of the producers of other Python clients that Producer lacks."""
    found = set(inspect.signature(aiokafka.AIOKafkaProducer).parameters)
    found |= set(kafka.KafkaProducer.DEFAULT_CONFIG)
    # librdkafka's
    found |= {"dr_cb", "on_delivery", "partitioner", "queue.buffering.max.messages"}
    found |= {"request.required.acks", "sticky.partitioning.linger.ms", "batch.num.messages"}
    found |= {"debug", "log_level", "oauth_cb", "queue.buffering.backpressure.threshold"}
    found |= {"enable.ssl.certificate.verification", "socket.keepalive.enable", "throttle_cb"}
    found |= {"api.version.request", "socket.nagle.disable", "socket.send.buffer.bytes"}
    return found - options_of(Producer) - {"allow_auto_create_topics"}


@pytest.mark.parametrize("option", sorted(theirs_of_producers()))
def test_every_option_of_their_producers_is_explained(option: str) -> None:
    assert f"; {option}" in answer(Producer, **{option: 1})


def test_the_explanations_name_existing_options() -> None:
    known = set().union(*map(options_of, CLIENTS))
    assert set(_RENAMED.values()) <= known
    assert not (_RENAMED.keys() | _ANSWERS.keys() | _SECURITY.keys()) & options_of(Consumer)
    assert set(_SECURITY.values()) <= options_of(Security)
    words = set(re.findall(r"(\w+)\(\)", " ".join(_ANSWERS.values())))
    named = words - {"flush", "send", "send_nowait", "fail_after"}
    assert {name for name in named if not callable(getattr(Consumer, name, None))} == set()


@pytest.mark.parametrize("client", CLIENTS)
def test_the_signature_stays_as_written(client: Any) -> None:
    """help(), editors and other tools inspect it."""
    kinds = {parameter.kind for parameter in inspect.signature(client).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert client.__init__.__doc__

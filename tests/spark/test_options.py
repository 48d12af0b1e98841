"""The options as strings, and their parsed values; without Spark."""

from __future__ import annotations

import pytest

from kafkagroup import ConfigurationError, Security, TopicPartition
from kafkagroup.spark.options import Bound, SourceOptions, parse_options

LEAST = {"bootstrap.servers": "k:9092", "subscribe": "a"}


def test_given_options_and_defaults() -> None:
    assert parse_options(LEAST) == SourceOptions(bootstrap_servers="k:9092", subscribe=("a",))
    # Spark hands over names in small letters.
    assert parse_options(
        {
            "bootstrap_servers": "k:9092",
            "subscribe": "b, a,,b",
            "group.id": "g",
            "startingoffsets": "group",
            "maxrowsperbatch": "10",
            "minpartitions": "3",
            "failondataloss": "FALSE",
            "columns": "value, key",
            "commit": "listener",
            "rewind": "true",
            "isolation.level": "read_committed",
            "request.timeout.ms": "1500",
        }
    ) == SourceOptions(
        bootstrap_servers="k:9092",
        subscribe=("b", "a"),
        group_id="g",
        starting_offsets=Bound("group"),
        max_rows_per_batch=10,
        min_partitions=3,
        fail_on_data_loss=False,
        columns=("value", "key"),
        commit="listener",
        rewind=True,
        isolation="read_committed",
        request_timeout=1.5,
    )


def test_explicitly_assigned_partitions() -> None:
    options = parse_options({"bootstrap.servers": "k", "assign": '{"b": [1, 0], "a": [2]}'})
    assert options.assign == (
        TopicPartition("a", 2),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    )
    assert options.topics == ("a", "b")


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound("earliest")),
        ("1700000000000", Bound("timestamp", 1_700_000_000_000)),
        ("2023-11-14T22:13:20.005Z", Bound("timestamp", 1_700_000_000_005)),
        ("2023-11-14T23:13:20+01:00", Bound("timestamp", 1_700_000_000_000)),
        (
            '{"a": {"0": 5, "1": -2}}',
            Bound("offsets", offsets={TopicPartition("a", 0): 5, TopicPartition("a", 1): -2}),
        ),
    ],
)
def test_starting_offsets(text: str, bound: Bound) -> None:
    assert parse_options({**LEAST, "startingOffsets": text}).starting_offsets == bound


def test_tls_and_sasl_options_become_a_security() -> None:
    options = parse_options(
        {
            **LEAST,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "me",
            "sasl.password": "secret",
            "allow.plaintext.credentials": "true",
        }
    )
    assert options.security == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "me",
        "sasl_password": "secret",
        "allow_plaintext_credentials": True,
    }
    Security(**options.security)
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a"}, "option bootstrap.servers is missing"),
        (
            {"bootstrap.servers": "k"},
            "give one of the options subscribe, subscribePattern and assign",
        ),
        ({**LEAST, "subscribePattern": "a"}, "give one of the options"),
        ({"bootstrap.servers": "k", "subscribePattern": "("}, "no regular expression"),
        (
            {**LEAST, "assign": '{"a": [0]}'},
            "give one of the options subscribe, subscribePattern and assign",
        ),
        ({**LEAST, "startingOffset": "x"}, "unknown options: startingoffset; expected bootstrap"),
        ({**LEAST, "startingOffsets": "group"}, "startingOffsets=group needs the option group.id"),
        ({**LEAST, "startingOffsets": "2023-11-14T22:13:20"}, "a time needs its zone"),
        ({**LEAST, "startingOffsets": '{"a": {"0": -3}}'}, "no offsets: a/0: -3"),
        ({**LEAST, "endingOffsets": "earliest"}, "endingOffsets=earliest: expected latest"),
        ({**LEAST, "maxRowsPerBatch": "0"}, "option maxRowsPerBatch='0': expected 1 or more"),
        ({**LEAST, "commit": "always"}, "option commit='always': expected one of source, listener"),
        ({**LEAST, "columns": "value,x"}, "no columns x; there are topic, topic_id"),
        ({**LEAST, "rewind": "yes"}, "option rewind='yes': expected true or false"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_options(options)

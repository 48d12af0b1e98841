"""The options as strings, and their parsed values; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkagroup import ConfigurationError, Security, TopicPartition
from kafkagroup.spark.option_values import CONNECTOR_COLUMNS, OWN_COLUMNS, Bound
from kafkagroup.spark.options import _NO_EFFECT, _SINK, _SOURCE, SourceOptions, parse_options

MINIMAL = {"bootstrap.servers": "k:9092", "subscribe": "a"}


def test_given_options_and_defaults() -> None:
    assert parse_options(MINIMAL) == SourceOptions(bootstrap_servers="k:9092", subscribe=("a",))
    # Spark passes names in small letters; underscores may stand for dots.
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
        columns_given=True,
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
    assert parse_options({**MINIMAL, "startingOffsets": text}).starting_offsets == bound


def test_options_of_sparks_own_connector_are_accepted() -> None:
    """The options of a query that reads `format("kafka")` work unchanged, and so do its columns."""
    options = parse_options(
        {
            "kafka.bootstrap.servers": "k:9092",
            "subscribe": "a",
            "startingoffsetsbytimestamp": '{"a": {"0": 1000, "1": 2000}}',
            "endingtimestamp": "3000",
            "maxoffsetspertrigger": "500",
            "minoffsetspertrigger": "100",
            "maxtriggerdelay": "2m",
            "groupidprefix": "mine",
            "kafkaconsumer.polltimeoutms": "512",
            "fetchoffset.numretries": "3",
            "kafka.group.id": "g",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule"
            ' required username="me" password="it\\"s=;";',
        }
    )
    assert options == SourceOptions(
        bootstrap_servers="k:9092",
        subscribe=("a",),
        group_id="g",
        starting_offsets=Bound(
            "timestamps",
            timestamps={TopicPartition("a", 0): 1000, TopicPartition("a", 1): 2000},
        ),
        timestamp_strategy="error",
        ending_offsets=Bound("timestamp", 3000),
        max_rows_per_batch=500,
        min_rows_per_batch=100,
        max_trigger_delay=120.0,
        columns=("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        connector_rows=True,
        security={
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "me",
            "sasl_password": 'it"s=;',
        },
    )


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        (MINIMAL, OWN_COLUMNS),
        ({**MINIMAL, "includeHeaders": "true"}, (*CONNECTOR_COLUMNS, "headers")),
        ({**MINIMAL, "includeHeaders": "false"}, CONNECTOR_COLUMNS),
        ({"kafka.bootstrap.servers": "k", "subscribe": "a"}, CONNECTOR_COLUMNS),
        (
            {**MINIMAL, "kafka.client.id": "me", "columns": "timestampType"},
            ("timestampType",),
        ),
        ({**MINIMAL, "columns": ""}, OWN_COLUMNS),
        ({**MINIMAL, "parse": "json"}, ()),
        ({**MINIMAL, "parse": "json", "includeHeaders": "true"}, ()),
        (
            {**MINIMAL, "parse": "json", "columns": "offset", "on.error": "null"},
            ("offset",),
        ),
    ],
)
def test_default_columns_depend_on_whether_options_of_sparks_own_connector_are_used(
    options: dict[str, str], columns: tuple[str, ...]
) -> None:
    assert parse_options(options).columns == columns


TIMES = '{"a": {"0": 1000}}'


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        ({"startingTimestamp": "1000"}, "error"),
        ({"startingOffsetsByTimestamp": TIMES}, "error"),
        ({"startingtimestamp": "1000", "includeHeaders": "true"}, "error"),
        ({"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}, "latest"),
        ({"startingOffsets": "1000"}, "latest"),
        ({"startingOffsets": "2023-11-14T22:13:20Z", "includeHeaders": "true"}, "latest"),
        ({"startingOffsets": "1000", "startingOffsetsByTimestampStrategy": "error"}, "error"),
        ({"endingTimestamp": "1000"}, "latest"),
    ],
)
def test_a_start_in_time_without_a_record_is_an_error_where_it_is_one_in_sparks_own_connector(
    given: dict[str, str], strategy: str
) -> None:
    """The query that was moved here started at the log's end, where it had failed before."""
    assert parse_options({**MINIMAL, **given}).timestamp_strategy == strategy


@pytest.mark.parametrize(
    ("given", "commits"),
    [
        ({}, (False, False)),
        ({"group.id": "g"}, (True, True)),
        ({"group.id": "g", "commit": "source"}, (True, False)),
        ({"group.id": "g", "commit": "listener"}, (False, True)),
        ({"group.id": "g", "commit": "off"}, (False, False)),
    ],
)
def test_who_commits(given: dict[str, str], commits: tuple[bool, bool]) -> None:
    options = parse_options({**MINIMAL, **given})
    assert (options.source_commits, options.listener_commits) == commits


@pytest.mark.parametrize(
    "jaas",
    [
        'a.KerberosLoginModule required username="u" password="hidden";',
        'org.x.PlainLoginModule required username="u";',
        'org.x.PlainLoginModule optional username="u" password="hidden";',
        "hidden",
    ],
)
def test_a_login_that_cannot_be_read_is_not_shown(jaas: str) -> None:
    with pytest.raises(ConfigurationError, match="expected PlainLoginModule or Scram") as raised:
        parse_options({**MINIMAL, "kafka.sasl.jaas.config": jaas})
    assert "hidden" not in str(raised.value)


def test_every_option_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8").lower()
    assert [name for name in (*_SOURCE, *_SINK, *_NO_EFFECT) if name.lower() not in guide] == []


def test_sasl_options_become_security_arguments_and_the_password_is_not_shown() -> None:
    options = parse_options(
        {
            **MINIMAL,
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
        ({**MINIMAL, "subscribePattern": "a"}, "give one of the options"),
        ({"bootstrap.servers": "k", "subscribePattern": "("}, "no regular expression"),
        (
            {**MINIMAL, "assign": '{"a": [0]}'},
            "give one of the options subscribe, subscribePattern and assign",
        ),
        (
            {**MINIMAL, "startingOffset": "x"},
            "unknown options: startingoffset; expected bootstrap",
        ),
        (
            {**MINIMAL, "startingOffsets": "group"},
            "startingOffsets=group needs the option group.id",
        ),
        ({**MINIMAL, "startingOffsets": "2023-11-14T22:13:20"}, "a time needs its zone"),
        (
            {**MINIMAL, "startingOffsets": '{"a": {"0": -3}}'},
            "found -3; expected a whole number from -2 to",
        ),
        (
            {**MINIMAL, "endingOffsets": "earliest"},
            "endingOffsets=earliest: expected latest",
        ),
        (
            {**MINIMAL, "maxRowsPerBatch": "0"},
            "option maxRowsPerBatch='0': found 0; expected a whole number from 1 to 92233720368",
        ),
        (
            {**MINIMAL, "commit": "always"},
            "option commit='always': expected one of source, listener, both, off",
        ),
        ({**MINIMAL, "columns": "value,x"}, "no columns x; there are topic, topic_id"),
        (
            {**MINIMAL, "maxTriggerDelay": "15"},
            "option maxTriggerDelay='15': expected a number and",
        ),
        (
            {**MINIMAL, "maxTriggerDelay": "2w"},
            "expected one of the units ms, s, m, min, h, d",
        ),
        (
            {**MINIMAL, "startingOffsets": "latest", "startingTimestamp": "1"},
            "give one of the options startingOffsets and startingTimestamp",
        ),
        (
            {**MINIMAL, "kafka.bootstrap.servers": "k"},
            "option bootstrap.servers is given twice, with and without kafka.",
        ),
        (
            {**MINIMAL, "minOffsetsPerTrigger": "3", "maxRowsPerBatch": "2"},
            "minOffsetsPerTrigger=3 exceeds the most of a batch, 2",
        ),
        ({**MINIMAL, "parse": "avro"}, "option parse='avro': expected one of json"),
        ({**MINIMAL, "parse": "json", "on_error": "x"}, "expected one of fail, null, skip"),
        ({**MINIMAL, "on_error": "null"}, "on_error needs the option parse"),
        ({**MINIMAL, "rewind": "yes"}, "option rewind='yes': expected true or false"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_options(options)

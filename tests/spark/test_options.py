"""The options as strings, and their parsed values; without Spark."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from kafkagroup import ConfigurationError, Producer, Security, TopicPartition
from kafkagroup.spark.client_options import REFUSED_BY_SINK, REFUSED_BY_SOURCE, WITHOUT_EFFECT
from kafkagroup.spark.option_values import CONNECTOR_COLUMNS, OWN_COLUMNS, Bound
from kafkagroup.spark.options import (
    _SINK,
    _SOURCE,
    SourceOptions,
    parse_options,
    parse_sink_options,
)
from kafkagroup.wire.compression import Codec

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
        has_columns_option=True,
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
        has_connector_rows=True,
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
    assert [name for name in (*_SOURCE, *_SINK) if name.lower() not in guide] == []


CLIENT_OPTIONS = (Path(__file__).parent / "kafka_client_options.txt").read_text("utf-8").split()
"""The names in `ConsumerConfig`, `ProducerConfig` and `AdminClientConfig` of Kafka 2.4, 3.9 and
4.3."""

VALUES = {
    "acks": "all",
    "bootstrap.servers": "k",
    "check.crcs": "false",
    "compression.type": "LZ4",
    "enable.idempotence": "true",
    "isolation.level": "READ_COMMITTED",
    "sasl.jaas.config": 'a.PlainLoginModule required username="u" password="p";',
}


@pytest.mark.parametrize(
    ("parse", "needed", "refused"),
    [
        (parse_options, {"subscribe": "a"}, REFUSED_BY_SOURCE),
        (parse_sink_options, {}, REFUSED_BY_SINK),
    ],
)
@pytest.mark.parametrize("name", CLIENT_OPTIONS)
def test_every_option_of_kafkas_clients_is_known(
    name: str, parse: Any, needed: dict[str, str], refused: dict[str, str]
) -> None:
    """`kafka.retries` and `kafka.max.poll.records` were unknown options, which failed the query."""
    given = {"kafka.bootstrap.servers": "k", **needed, f"kafka.{name}": VALUES.get(name, "5")}
    reason = refused.get("sasl.oauthbearer." if "oauthbearer" in name else name)
    if reason is not None:
        with pytest.raises(ConfigurationError) as raised:
            parse(given)
        assert str(raised.value) == f"option kafka.{name} is not supported: {reason}"
    else:
        ignored = parse(given).ignored
        assert name not in WITHOUT_EFFECT or ignored == {f"kafka.{name}": WITHOUT_EFFECT[name]}


@pytest.mark.parametrize("off", ["", " ", "false", "False"])
def test_a_refused_option_that_is_turned_off_has_no_effect(off: str) -> None:
    given = {"kafka.interceptor.classes": off, "kafka.enable.auto.commit": off}
    assert parse_options({**MINIMAL, **given}).ignored == dict.fromkeys(given, "")


def test_options_of_the_source_have_no_effect_on_the_sink_and_the_other_way_round() -> None:
    """Spark's own connector ignores them, and some programs have one set of options for both."""
    of_source = {"subscribe": "a", "startingOffsets": "x", "includeHeaders": "true", "group.id": ""}
    assert parse_sink_options({"bootstrap.servers": "k", **of_source}).ignored == {
        "subscribe": "",
        "startingOffsets": "",
        "includeHeaders": "the sink writes the column headers if there is one",
        "group.id": "",
    }
    of_sink = {"topic": "b", "kafka.compression.type": "x"}
    assert parse_options({**MINIMAL, **of_sink}).ignored == dict.fromkeys(of_sink, "")


def test_words_may_be_in_any_case() -> None:
    """`startingOffsets=EARLIEST` was taken for a time, and `READ_COMMITTED` was refused."""
    source = parse_options(
        {
            **MINIMAL,
            "startingOffsets": " EARLIEST ",
            "endingOffsets": "Latest",
            "startingOffsetsByTimestampStrategy": "ERROR",
            "failOnDataLoss": "True",
            "includeHeaders": "FALSE",
            "kafka.isolation.level": "READ_COMMITTED",
            "kafka.security.protocol": "sasl_ssl",
            "kafka.ssl.endpoint.identification.algorithm": "HTTPS",
            "commit": "Off",
            "parse": "JSON",
            "on_error": "Skip",
            "columns": "Topic,TIMESTAMPTYPE",
        }
    )
    assert source == SourceOptions(
        bootstrap_servers="k:9092",
        subscribe=("a",),
        timestamp_strategy="error",
        isolation="read_committed",
        security={
            "security_protocol": "SASL_SSL",
            "ssl_endpoint_identification_algorithm": "https",
        },
        commit="off",
        parse="json",
        on_error="skip",
        columns=("topic", "timestampType"),
        has_columns_option=True,
        has_connector_rows=True,
    )
    sink = {"bootstrap.servers": "k", "compression.type": "LZ4", "topic": " a "}
    assert parse_sink_options(sink).compression == Codec.LZ4
    assert parse_sink_options(sink).topic == "a"


def test_values_that_kafkas_clients_take_are_taken() -> None:
    sink = parse_sink_options(
        {
            "kafka.bootstrap.servers": "k",
            "kafka.batch.size": "0",
            "kafka.delivery.timeout.ms": "90000",
            "kafka.connections.max.idle.ms": "-1",
            "kafka.compression.gzip.level": "-1",
            "kafka.compression.type": "gzip",
            "kafka.retry.backoff.ms": "0",
            "kafka.acks": "-1",
        }
    )
    assert (sink.batch_bytes, sink.delivery_timeout) == (1, 90.0)
    assert sink.connections_max_idle > 24 * 86_400
    assert (sink.compression_level, sink.acks, sink.idempotence) == (None, -1, True)
    producer = Producer(**sink.producer_arguments())
    assert producer._options.retry_backoff == 0.001
    given = {"kafka.group.id": "", "maxTriggerDelay": "1500", "maxRecordsPerPartition": "7"}
    source = parse_options({**MINIMAL, **given})
    assert (source.group_id, source.max_trigger_delay) == (None, 1.5)
    assert source.max_records_per_partition == 7


def test_the_producer_of_the_sink_has_the_options_of_kafkas() -> None:
    given = {
        "bootstrap.servers": "a:1,b:2",
        "kafka.client.id": "c",
        "kafka.compression.type": "zstd",
        "kafka.compression.zstd.level": "7",
        "kafka.compression.lz4.level": "3",
        "kafka.buffer.memory": "1000000",
        "kafka.max.request.size": "2000000",
        "kafka.delivery.timeout.ms": "50000",
        "kafka.request.timeout.ms": "40000",
        "kafka.retry.backoff.ms": "7",
        "kafka.retry.backoff.max.ms": "5",
        "kafka.metadata.max.age.ms": "60000",
        "kafka.metadata.recovery.rebootstrap.trigger.ms": "70000",
        "kafka.connections.max.idle.ms": "80000",
    }
    options = Producer(**parse_sink_options(given).producer_arguments())._options
    assert (options.bootstrap_servers, options.client_id) == ("a:1,b:2", "c")
    assert (options.compression_type, options.compression_level) == (Codec.ZSTD, 7)
    assert (options.buffer_memory, options.max_request_size) == (1_000_000, 2_000_000)
    assert (options.delivery_timeout, options.request_timeout) == (50, 25)
    assert (options.retry_backoff, options.retry_backoff_max) == (0.007, 0.007)
    assert options.metadata_max_age == 60
    assert options.metadata_recovery_rebootstrap_trigger == 70
    assert options.connections_max_idle == 80
    assert (options.acks, options.enable_idempotence) == (-1, True)


def test_acks_turn_idempotence_off_as_with_javas_producer() -> None:
    given = {"bootstrap.servers": "k", "kafka.acks": "1"}
    options = parse_sink_options(given)
    assert (options.acks, options.idempotence) == (1, False)
    with pytest.raises(ConfigurationError, match=r"enable\.idempotence=true needs acks=all, not 1"):
        parse_sink_options({**given, "kafka.enable.idempotence": "true"})
    with pytest.raises(ConfigurationError, match="option acks='2': expected one of all, -1, 0, 1"):
        parse_sink_options({**given, "kafka.acks": "2"})


def test_of_several_starts_that_of_sparks_own_connector_is_taken() -> None:
    """It prefers timestamps to offsets. Two of the options were an error."""
    options = parse_options(
        {
            **MINIMAL,
            "startingOffsets": "earliest",
            "startingTimestamp": "1",
            "endingOffsets": "latest",
            "endingOffsetsByTimestamp": '{"a": {"0": 2}}',
        }
    )
    assert options.starting_offsets == Bound("timestamp", 1)
    assert options.ending_offsets == Bound("timestamps", timestamps={TopicPartition("a", 0): 2})
    assert options.ignored == {
        "startingOffsets": "startingTimestamp is given",
        "endingOffsets": "endingOffsetsByTimestamp is given",
    }


def test_key_stores_of_java_in_pem_are_read() -> None:
    options = parse_options(
        {
            **MINIMAL,
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "pem",
            "kafka.ssl.truststore.location": "ca.pem",
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.location": "me.pem",
            "kafka.ssl.key.password": "p",
            "kafka.ssl.endpoint.identification.algorithm": "",
        }
    )
    assert options.security == {
        "security_protocol": "SSL",
        "ssl_ca_location": "ca.pem",
        "ssl_certificate_location": "me.pem",
        "ssl_key_password": "p",
        "ssl_endpoint_identification_algorithm": "none",
    }
    assert options.ignored == {}
    with pytest.raises(ConfigurationError, match=r"option kafka\.ssl\.truststore\.location is not"):
        parse_options({**MINIMAL, "kafka.ssl.truststore.location": "ca.jks"})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("startingoffset", "startingOffsets"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("bootstrap_server", "bootstrap_servers"),
        ("FAIL_ON_DATALOS", "FAILONDATALOSS"),
        ("kafka.max.pol.records", "kafka.max.poll.records"),
        ("kafka.sasl.mechanisms", "kafka.sasl.mechanism"),
        ("sasl_user_name", "sasl_username"),
        ("max_offsets_pertriger", "maxOffsetsPerTrigger"),
    ],
)
def test_a_misspelt_option_is_answered_as_it_was_written(written: str, meant: str) -> None:
    """The message had neither the prefix nor a name to write instead."""
    with pytest.raises(ConfigurationError) as raised:
        parse_options({**MINIMAL, "kafka.client.id": "c", written: "1"})
    assert str(raised.value) == f"unknown options: {written} (did you mean {meant}?)"


def test_each_option_without_effect_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")
    from pyspark.sql.types import BinaryType, StructType

    from kafkagroup.spark import source

    given = {"kafka.bootstrap.servers": "k", "kafka.retries": "1", "kafka.max.poll.records": "5"}
    schema = StructType().add("value", BinaryType())
    monkeypatch.setattr(source, "_warned", set())
    reading = source.KafkaGroupSource({**given, "subscribe": "a"})
    with caplog.at_level(logging.WARNING, "kafkagroup"):
        reading.schema()
        for _ in range(2):  # Spark creates readers from pickled copies
            monkeypatch.setattr(source, "_warned", set())  # as in another process
            pickle.loads(pickle.dumps(reading)).reader(schema)
        for _ in range(2):  # a stream creates one for each batch, and a copy elsewhere
            writing = source.KafkaGroupSource({**given, "topic": "a"})
            copied = pickle.loads(pickle.dumps(writing))
            writing.streamWriter(schema, overwrite=False)
        monkeypatch.setattr(copied, "_process_id", 0)
        monkeypatch.setattr(source, "_warned", set())
        copied.streamWriter(schema, overwrite=False)
    of_source = [
        "option kafka.retries has no effect: see delivery.timeout.ms",
        "option kafka.max.poll.records has no effect: the source has no consumer of Kafka's",
    ]
    assert [record.getMessage() for record in caplog.records] == of_source * 2


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
            {"bootstrap.servers": "k", "assign": '{"orders": "12"}'},
            "expected topics with lists of partitions",
        ),
        ({**MINIMAL, "path": "x"}, "unknown options: path; expected bootstrap"),
        # An object in Python, which a connection would refuse later.
        ({**MINIMAL, "ssl.context": "x"}, "unknown options: ssl.context"),
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
            {**MINIMAL, "maxTriggerDelay": "soon"},
            "option maxTriggerDelay='soon': expected a number and",
        ),
        (
            {**MINIMAL, "maxTriggerDelay": "2w"},
            "expected one of the units us, ms, s, m, min, h, d",
        ),
        (
            {**MINIMAL, "maxRowsPerBatch": "1", "maxOffsetsPerTrigger": "1"},
            "give one of the options maxRowsPerBatch and maxOffsetsPerTrigger",
        ),
        (
            {**MINIMAL, "kafka.bootstrap.servers": "k"},
            "option bootstrap.servers is given twice, as bootstrap.servers and kafka.bootstrap",
        ),
        (
            {**MINIMAL, "client.id": "a", "client_id": "b"},
            "option client.id is given twice, as client.id and client_id",
        ),
        (
            {**MINIMAL, "minOffsetsPerTrigger": "3", "maxRowsPerBatch": "2"},
            "minOffsetsPerTrigger=3 exceeds the most of a batch, 2",
        ),
        ({**MINIMAL, "parse": "avro"}, "option parse='avro': expected one of json"),
        ({**MINIMAL, "parse": "json", "on_error": "x"}, "expected one of fail, null, skip"),
        ({**MINIMAL, "on_error": "null"}, "on_error needs the option parse"),
        ({**MINIMAL, "rewind": "yes"}, "option rewind='yes': expected one of true, false"),
        (
            {**MINIMAL, "kafka.enable.ssl.certificate.verification": "maybe"},
            "option kafka.enable.ssl.certificate.verification='maybe': expected one of true, false",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_options(options)


def test_a_stream_with_the_options_of_sparks_own_connector_starts_at_the_end() -> None:
    """As there; a query that was moved by one word read the whole topic instead."""
    own = {"bootstrap.servers": "k", "subscribe": "t"}
    moved = {"kafka.bootstrap.servers": "k", "subscribe": "t"}

    def kind(given: dict[str, str], *, is_stream: bool) -> str:
        return parse_options(given, is_stream=is_stream).starting_offsets.kind

    assert kind(moved, is_stream=True) == "latest"
    assert kind(moved, is_stream=False) == "earliest"
    assert kind(own, is_stream=True) == "earliest"
    assert kind({**moved, "startingOffsets": "earliest"}, is_stream=True) == "earliest"

"""`kafkagroup produce`: each line becomes a record in the partition of its key, or an error names
the line."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from aiokafka.partitioner import DefaultPartitioner
from cli.programs import KAFKAGROUP, TIMEOUT, environment, run, running
from click.testing import CliRunner

from kafkagroup.cli._app import app
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Close, Delay, Swallow
from kafkagroup.wire import NewRecord
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.transactions import InitProducerIdRequest


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 7}, settings=BrokerSettings(max_message_bytes=10_000)) as kafka:
        yield kafka


def produce(
    kafka: EmbeddedKafka, given: bytes, *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    return run(
        "produce", "t", "--bootstrap-servers", kafka.bootstrap_servers, *arguments, given=given
    )


def written(kafka: EmbeddedKafka) -> list[dict[str, object]]:
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    done = run("consume", "t", *servers, "--from-beginning", "--exit-at-end", "--json")
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def values(kafka: EmbeddedKafka) -> list[object]:
    return sorted((one["value"] for one in written(kafka)), key=str)


def test_each_line_becomes_a_value(kafka: EmbeddedKafka) -> None:
    """Only the end of the line has a meaning; the last line may lack it."""
    done = produce(kafka, b"a\r\n\n\xff\0\nlast", "--partition", "3")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"kafkagroup: 4 records written to t\n"
    found = [(one["partition"], one["key"], one["value"]) for one in written(kafka)]
    assert found == [(3, None, v) for v in ("a\r", "", {"base64": "/wA="}, "last")]


def test_what_consume_printed_is_written_unchanged(kafka: EmbeddedKafka) -> None:
    """A header name that is not UTF-8 ended the command."""
    odd = "\udcc3(id"
    record = NewRecord(b"k\xff", None, 5_000, ((odd, b"\xff"), ("h\xe9", None)))
    kafka.produce("t", [record], partition=0)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    lines = run("consume", "t", *servers, "--from-beginning", "--exit-at-end", "--json").stdout
    done = produce(kafka, lines, "--json", "--partition", "1")
    assert (done.returncode, done.stderr) == (0, b"kafkagroup: 1 record written to t\n")
    first, second = (one | {"partition": None} for one in written(kafka))
    assert first == second
    assert first["headers"] == [[odd, {"base64": "/w=="}], ["h\xe9", None]]
    assert first["timestamp"] == 5_000


def test_a_timestamp_that_stops_compaction_is_refused(kafka: EmbeddedKafka) -> None:
    """The broker takes it; its log cleaner then fails at it for ever."""
    kafka.produce("t", [NewRecord(b"k", b"v", -5_000)], partition=0)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    lines = run("consume", "t", *servers, "--from-beginning", "--exit-at-end", "--json").stdout
    assert b'"timestamp": -5000,' in lines
    done = produce(kafka, lines, "--json", "--partition", "1")
    assert done.returncode == 1
    assert b"line 1" in done.stderr
    assert b"the timestamp -5000 is not valid" in done.stderr
    assert b"not compact the partition" in done.stderr
    assert len(written(kafka)) == 1


def test_a_header_of_any_bytes_is_added(kafka: EmbeddedKafka) -> None:
    produce(kafka, b"v\n", "--header", "\udcc3(id=\udcff")
    (one,) = written(kafka)
    assert one["headers"] == [["\udcc3(id", {"base64": "/w=="}]]


def test_keys_go_to_the_partitions_that_other_clients_choose(kafka: EmbeddedKafka) -> None:
    keys = [f"key-{n}" for n in range(200)] + [""]
    given = "".join(f"{key}:{n}:x\n" for n, key in enumerate(keys)).encode()
    done = produce(kafka, given, "--key-separator", ":")
    assert done.returncode == 0
    partitions = list(range(7))
    place = DefaultPartitioner()
    found = {one["key"]: (one["partition"], one["value"]) for one in written(kafka)}
    assert found == {
        key: (place(key.encode(), partitions, partitions), f"{n}:x") for n, key in enumerate(keys)
    }


def test_several_batches_keep_their_order(kafka: EmbeddedKafka) -> None:
    """The broker's `max.message.bytes` is far below the size of all records."""
    lines = [f"{n:06}" for n in range(20_000)]
    done = produce(kafka, "\n".join(lines).encode(), "--partition", "0")
    assert done.stderr == b"kafkagroup: 20000 records written to t\n"
    assert [one["value"] for one in written(kafka)] == lines


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_are_compressed(kafka: EmbeddedKafka, codec: str) -> None:
    sent: list[ProduceRequest] = []
    kafka.fail(ProduceRequest, Close(), when=lambda request: bool(sent.append(request)))
    done = produce(kafka, b"x" * 9_000 + b"\n", "--compression", codec)
    assert done.returncode == 0
    assert values(kafka) == ["x" * 9_000]
    assert len(sent[0].topic_data[0].partition_data[0].records) < 2_000


def test_the_options_of_a_producer_may_be_given(kafka: EmbeddedKafka) -> None:
    """Without IDEMPOTENT_WRITE a broker before 2.8 took no line."""
    kafka.fail(InitProducerIdRequest, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=None)
    refused = produce(kafka, b"1\n")
    assert refused.returncode == 1
    assert b"or set -X enable.idempotence=false" in refused.stderr
    led = kafka.fail(ProduceRequest, Delay(0.0), when=lambda request: bool(request.acks == 1))
    chosen = ("-X", "enable.idempotence=false", "-X", "acks=1", "-X", "compression.type=lz4")
    assert produce(kafka, b"1\n", *chosen).stderr == b"kafkagroup: 1 record written to t\n"
    assert led.hits == 1
    began = time.monotonic()
    kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
    late = produce(kafka, b"1\n", *chosen[:2], "-X", "delivery.timeout.ms=1000")
    assert b"NOT_ENOUGH_REPLICAS" in late.stderr
    assert time.monotonic() - began < 60
    transactional = produce(kafka, b"", "-X", "transactional.id=tx")
    assert b"this command writes without transactions" in transactional.stderr


def test_headers_are_added_to_every_record(kafka: EmbeddedKafka) -> None:
    given = b'{"value": "v", "headers": [["own", null]]}\n'
    produce(kafka, given, "--json", "--headers", "a=b=c", "--headers", "d=")
    (record,) = written(kafka)
    assert record["headers"] == [["own", None], ["a", "b=c"], ["d", ""]]


@pytest.mark.parametrize(
    ("given", "arguments", "line", "before"),
    [
        (b"a=1\nb\nc=2\n", ("--key-separator", "="), "line 2: it has no --key-separator", 1),
        (b'{"value": ""}\n{}\n', ("--json",), 'line 2: expected an object with a "value"', 1),
        (b'{"value": ""}\n', ("--json", "--keep-partitions"), "line 1: it has no partition", 0),
        (b"a\n" + b"b" * 10_000 + b"\nc", (), "line 2: MESSAGE_TOO_LARGE (10): writing to t/", 2),
        (b"a\n", ("--partition", "7"), "line 1: partition=7; topic 't' has partitions 0 to 6", 0),
    ],
)
def test_an_error_names_the_line(
    kafka: EmbeddedKafka, given: bytes, arguments: tuple[str, ...], line: str, before: int
) -> None:
    done = produce(kafka, given, *arguments)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"kafkagroup: {line}")
    assert done.stderr.count(b"\n") == 1
    assert len(written(kafka)) == before


def test_an_error_is_reported_while_stdin_is_open(kafka: EmbeddedKafka) -> None:
    """The error does not wait for the next line or the end of stdin."""
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("produce", "t", *servers, "--key-separator", "=") as process:
        process.stdin.write(b"a=1\nb\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT) == 1
        assert process.stderr.read().startswith(b"kafkagroup: line 2: it has no")


def test_a_moved_leader_is_followed(kafka: EmbeddedKafka) -> None:
    fault = kafka.fail(ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    assert produce(kafka, b"a\n").returncode == 0
    assert values(kafka) == ["a"]
    fault.stop()


def test_a_topic_without_write_permission_is_an_error(kafka: EmbeddedKafka) -> None:
    kafka.fail(ProduceRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    done = produce(kafka, b"a\n", "--partition", "0")
    assert done.returncode == 1
    assert done.stderr == (
        b"kafkagroup: line 1: TOPIC_AUTHORIZATION_FAILED (29): WRITE on topic 't' is not allowed:"
        b" writing to t/0\n"
    )


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command(kafka: EmbeddedKafka, ending: signal.Signals) -> None:
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("produce", "t", *servers) as process:
        process.stdin.write(b"a\n")
        process.stdin.flush()
        while not sum(kafka.log_end("t", partition) for partition in range(7)):
            assert process.poll() is None
        process.send_signal(ending)
        assert process.wait(TIMEOUT) == 128 + ending
        assert process.stderr.read() == b"kafkagroup: 1 record written to t\n"


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (Delay(0.5), b"1 record written to t"),
        (Swallow(), b"0 records written to t; the outcome of 1 more is unknown"),
    ],
    ids=["late", "none"],
)
def test_a_signal_during_an_unacknowledged_write_is_reported(
    kafka: EmbeddedKafka, response: Delay | Swallow, message: bytes
) -> None:
    """`message` has the number of records that were written, and of those whose outcome is
    unknown."""
    kafka.fail(ProduceRequest, response)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("produce", "t", *servers) as process:
        process.stdin.write(b"a\n")
        process.stdin.flush()
        while not kafka.requests(ProduceRequest):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 128 + signal.SIGTERM
        assert process.stderr.read() == b"kafkagroup: " + message + b"\n"


def test_the_wait_after_a_signal_can_be_chosen(kafka: EmbeddedKafka) -> None:
    """`close.timeout` was overridden without a word."""
    kafka.fail(ProduceRequest, Swallow())
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("produce", "t", *servers, "-X", "close.timeout=0.1") as process:
        process.stdin.write(b"a\n")
        process.stdin.flush()
        while not kafka.requests(ProduceRequest):
            assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 2.5  # without the option it waits for 2.7 s
        assert b"the outcome of 1 more is unknown" in process.stderr.read()


def test_a_line_that_is_rejected_after_a_signal_is_reported(kafka: EmbeddedKafka) -> None:
    """The command ended as if only the signal had stopped it."""

    def interrupt(_: ProduceRequest) -> bool:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # the command handles it before the response
        return True

    kafka.fail(ProduceRequest, ErrorCode.MESSAGE_TOO_LARGE, when=interrupt)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("produce", "t", *servers) as process:
        process.stdin.write(b"a\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT) == 1
        assert process.stderr.read().startswith(b"kafkagroup: line 1: MESSAGE_TOO_LARGE")


def test_a_missing_topic_is_reported_before_stdin_is_read(kafka: EmbeddedKafka) -> None:
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("produce", "none", *servers) as process:
        assert process.wait(TIMEOUT) == 1
        message = b"kafkagroup: UNKNOWN_TOPIC_OR_PARTITION (3): there is no topic none\n"
        assert process.stderr.read() == message


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "produce: Missing argument 'TOPIC'."),
        (("t", "--key-separator", ""), "produce: --key-separator is empty"),
        (("t", "--key-separator", ":", "--json"), "produce: --key-separator does not work wi"),
        (("t", "--keep-partitions"), "produce: --keep-partitions needs --json, and excludes"),
        (("t", "--headers", "a"), "produce: Invalid value for '--headers' / '--header': expect"),
        (("t", "--compression", "zip"), "produce: Invalid value for '--compression': 'zip' is n"),
        (("t", "--partition", "-1"), "produce: Invalid value for '--partition': -1 is not in th"),
    ],
)
def test_invalid_arguments_are_an_error(arguments: tuple[str, ...], line: str) -> None:
    found = CliRunner().invoke(app, ["produce", *arguments])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"kafkagroup: {line}")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["2>&-", "<&-"])
def test_lines_are_written_with_a_closed_stream(kafka: EmbeddedKafka, closed: str) -> None:
    """stderr is a terminal if it is open."""
    ours, theirs = pty.openpty()
    command = f'"$@" {closed}'
    arguments = [*KAFKAGROUP, "produce", "t", "-b", kafka.bootstrap_servers]
    done = subprocess.run(
        ["sh", "-c", command, "sh", *arguments],
        input=b"a\n",
        stderr=theirs,
        env=environment(),
        timeout=TIMEOUT,
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0
    assert values(kafka) == (["a"] if closed == "2>&-" else [])


def test_progress_is_shown_on_a_terminal(kafka: EmbeddedKafka) -> None:
    """stdin is a pipe that stays open, and stderr a terminal."""
    ours, theirs = pty.openpty()
    command = [*KAFKAGROUP, "produce", "t", "-b", kafka.bootstrap_servers]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=theirs, env=environment()) as process:
        os.close(theirs)
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        shown = b""
        while b"2 records written to t" not in shown:
            shown += os.read(ours, 1000)
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0
    rest = b""
    with suppress(OSError):  # the terminal has no other end any more
        while data := os.read(ours, 1000):
            rest += data
    os.close(ours)
    assert shown == b"\r\x1b[K2 records written to t"
    # The last line replaces it.
    assert rest.endswith(b"\r\x1b[Kkafkagroup: 2 records written to t\r\n")

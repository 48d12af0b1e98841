"""`kafkagroup consume`: its output, its end, and its commits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anyio
import pytest
from cli.programs import KAFKAGROUP, TIMEOUT, environment, run, running
from click.testing import CliRunner
from old_messages import stored

from kafkagroup import TopicPartition
from kafkagroup.cli._app import app
from kafkagroup.cli._log_ends import LogEnds
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire import NewRecord
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 2}) as kafka:
        yield kafka


def consume(kafka: EmbeddedKafka, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run("consume", "t", "--bootstrap-servers", kafka.bootstrap_servers, *arguments)


Here = Callable[..., tuple[str, str]]


@pytest.fixture
def consume_here(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Return `consume` in this process, which saves two seconds; it returns stdout and stderr."""

    def consume_here(*arguments: str) -> tuple[str, str]:
        out = b""

        async def write(data: bytes) -> None:
            nonlocal out
            out += data

        monkeypatch.setattr("kafkagroup.cli.consume.write_stdout", write)
        done = CliRunner().invoke(app, ["consume", "-b", kafka.bootstrap_servers, *arguments])
        assert (done.exit_code, done.stdout) == (0, "")
        return out.decode(), done.stderr

    return consume_here


ALL = ("--from-beginning", "--exit-at-end")


def test_consumes_to_the_end_of_all_partitions(kafka: EmbeddedKafka) -> None:
    """There are more records than one write contains."""
    values = [f"{n}" for n in range(3_000)]
    kafka.produce("t", values)
    done = consume(kafka, *ALL)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.decode().splitlines(), key=int) == values
    assert kafka.group_state("t") == "Dead"


def test_fields_and_bytes_are_printed_as_requested(kafka: EmbeddedKafka) -> None:
    record = NewRecord(b"k", b"\xff", 1_000, (("h", None),))
    kafka.produce("t", [record, NewRecord(None, None, 2_000)], partition=1)
    form = r"{topic} {partition} {offset} {time} {timestamp} {key}={value} {headers}\n"
    done = consume(kafka, *ALL, "--format", form)
    assert done.stdout.decode().splitlines() == [
        r"t 1 0 1970-01-01T00:00:01.000Z 1000 k=\xff h=null",
        "t 1 1 1970-01-01T00:00:02.000Z 2000 null=null ",
    ]
    lines = consume(kafka, *ALL, "--json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == [{"base64": "/w=="}, None]


def test_old_formats_and_any_header_names_are_printed(kafka: EmbeddedKafka) -> None:
    """Each of them once ended the command with an error."""
    kafka.append("t", 0, stored(0, Codec.GZIP, 0, [b"a", b"b"]))
    kafka.append("t", 0, stored(1, Codec.NONE, 2, [b"c"]))
    kafka.produce("t", [NewRecord(None, b"d", 1_000, (("\udcc3(id", b"7"),))], partition=0)
    done = consume(kafka, *ALL, "--format", r"{offset} {timestamp} {value} {headers}\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        "0 -1 a ",
        "1 -1 b ",
        "2 1002 c ",
        r"3 1000 d \xc3(id=7",
    ]
    lines = consume(kafka, *ALL, "--json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["a", "b", "c", "d"]


def test_consumes_at_most_the_requested_number_of_records(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ["a", "b", "c"], partition=0)
    done = consume(kafka, "--from-beginning", "--max-records", "2", "--group", "g")
    assert (done.returncode, done.stdout) == (0, b"a\nb\n")
    assert kafka.committed("g", "t").get(0) == 2
    assert kafka.group_state("g") == "Empty"
    assert consume(kafka, "--exit-at-end", "--group", "g").stdout == b"c\n"
    assert kafka.committed("g", "t").get(0) == 3


def test_a_partition_lost_before_its_commit_is_warned_about(kafka: EmbeddedKafka) -> None:
    """The record is printed, and printed again by the partition's new owner."""
    kafka.produce("t", ["a"], partition=0)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    refused = kafka.fail(OffsetCommitRequest, unknown, times=None)
    # Not before: on a busy machine the first heartbeat may come before the record is delivered, and
    # the coordinator would let the next member wait for the previous one.
    kafka.fail(HeartbeatRequest, unknown, times=None, when=lambda _: refused.hits > 0)
    done = consume(kafka, "--from-beginning", "--max-records", "1", "--group", "g")
    assert (done.returncode, done.stdout) == (0, b"a\n")
    assert b"kafkagroup: warning: commit of t/0 failed: lost before" in done.stderr
    assert kafka.committed("g", "t") == {}


def test_without_from_beginning_only_new_records_are_printed(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ["old"], partition=0)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("consume", "t", *servers, "--max-records", "1") as process:
        while process.poll() is None:
            # Until it has found the end, it cannot know what is new.
            kafka.produce("t", ["new"], partition=0)
            time.sleep(0.05)
        assert process.communicate() == (b"new\n", b"")
    assert process.returncode == 0


def test_an_end_without_a_record_says_where_reading_began(kafka: EmbeddedKafka) -> None:
    """It looked as if the topic was empty."""
    kafka.produce("t", ["old"])
    hint = (
        b"kafkagroup: no record: reading began at the end; --from-beginning, --tail N and"
        b" --since 10m start earlier\n"
    )
    for options, shown in (((), hint), (("-g", "g"), b""), (("--tail", "5", "-k", "k"), b"")):
        done = consume(kafka, "--exit-at-end", *options)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", shown)


def test_ends_after_the_idle_timeout(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ["a"])
    done = consume(kafka, "--from-beginning", "--timeout", "0.7")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\n", b"")


def test_partitions(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ["a"], partition=0)
    kafka.produce("t", ["b"], partition=1)
    assert consume(kafka, *ALL, "--partition", "1").stdout == b"b\n"
    both = consume(kafka, *ALL, "--partition", "0", "--partition", "1", "--group", "g")
    assert sorted(both.stdout) == sorted(b"a\nb\n")
    assert kafka.committed("g", "t") == {0: 1, 1: 1}


@pytest.fixture
def ten(kafka: EmbeddedKafka) -> EmbeddedKafka:
    """Provide ten records in partition 0, one a minute until now, whose offsets begin with 2."""
    now = time.time() * 1000
    kafka.produce("t", ["lost", "lost"], partition=0)
    for n in range(2, 12):
        at = round(now - (11 - n) * 60_000)
        kafka.produce("t", [NewRecord(b"ab"[n % 2 :][:1], b"%d" % n, at)], partition=0)
    kafka.delete_records("t", 0, before=2)
    return kafka


@pytest.mark.usefixtures("ten")
@pytest.mark.parametrize(
    ("start", "first"),
    [
        (("--offset", "5"), 5),
        (("-o", "-3"), 9),
        (("-o", "beginning"), 2),
        (("--offset", "latest"), 12),
        (("--tail", "4"), 8),
        (("--tail", "99"), 2),
        (("--since", "150s"), 9),
        (("--since", "2030-01-01T00:00:00Z"), 12),
        (("--since", "2020-01-01T00:00:00Z"), 2),
    ],
)
def test_starts_where_an_option_says(
    consume_here: Here, start: tuple[str, ...], first: int
) -> None:
    out, err = consume_here("-t", "t", "-p", "0", *start, "-e", "-f", r"{offset}\n")
    assert (out.split(), err) == ([str(n) for n in range(first, 12)], "")


@pytest.mark.usefixtures("ten")
@pytest.mark.parametrize(("offset", "nearest"), [("0", 2), ("77", 12)])
def test_an_offset_outside_of_the_log_is_replaced_and_reported(
    consume_here: Here, offset: str, nearest: int
) -> None:
    form = ("--format", r"{offset}\n")
    out, err = consume_here("t", "-p", "0", "--offset", offset, "-e", *form)
    assert out.split() == [str(n) for n in range(nearest, 12)]
    assert err == (
        f"kafkagroup: warning: t/0 has the offsets 2 to 12, not {offset}: starting at {nearest}\n"
    )


def test_only_records_with_a_key_are_printed_and_counted(
    ten: EmbeddedKafka, consume_here: Here
) -> None:
    options = ("t", "--from-beginning", "-k", "b", "-c", "3")
    assert consume_here(*options) == ("3\n5\n7\n", "")
    # In a group the records between are processed, and those after the last are not.
    assert consume_here(*options, "-g", "g") == ("3\n5\n7\n", "")
    assert ten.committed("g", "t")[0] == 8


def test_ends_while_others_keep_writing(kafka: EmbeddedKafka) -> None:
    """It once ended only when a fetch found nothing. What came later stays with the group."""
    kafka.produce("t", ["old"] * 3, partition=0)
    servers = ("-b", kafka.bootstrap_servers)
    with running("consume", "t", *servers, *ALL, "-g", "g") as process:
        end = time.monotonic() + TIMEOUT
        while process.poll() is None and time.monotonic() < end:
            # Fewer than a pipe holds, and always some that are not fetched yet.
            kafka.produce("t", ["new"] * 5, partition=0)
            time.sleep(0.02)
        out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    committed = kafka.committed("g", "t")[0]
    assert len(out.split()) == committed < kafka.log_end("t", 0)
    assert out.split()[:3] == [b"old"] * 3


def test_ends_where_the_last_offsets_have_no_batch(
    kafka: EmbeddedKafka, consume_here: Here
) -> None:
    """Compaction leaves such a log: no fetch moves the position to its end."""
    for partition in (0, 1):
        kafka.produce("t", ["kept"], partition=partition)
        kafka.produce("t", ["compacted", "compacted"], partition=partition)
        kafka._partition("t", partition).log._batches.pop()
    assert consume_here("t", *ALL) == ("kept\nkept\n", "")


def test_an_empty_topic_ends_at_once(kafka: EmbeddedKafka) -> None:
    assert (done := consume(kafka, *ALL)).stdout == b""
    assert done.returncode == 0


@pytest.mark.parametrize("group", [(), ("--group", "g")])
def test_ends_quietly_when_the_reader_closes_the_pipe(
    kafka: EmbeddedKafka, group: tuple[str, ...]
) -> None:
    """As with `| head -1`, with more records than a pipe can hold."""
    kafka.produce("t", ["x" * 1_000] * 2_000, partition=0)
    options = ("--bootstrap-servers", kafka.bootstrap_servers, "--from-beginning", *group)
    with running("consume", "t", *options) as process:
        assert process.stdout.readline() == b"x" * 1_000 + b"\n"
        process.stdout.close()
        assert process.wait(TIMEOUT) == 0
        assert process.stderr.read() == b""
    if group:
        # Unread output is not committed: a pipe holds 64 KiB, of 500 KB in all.
        assert kafka.committed("g", "t").get(0, 0) < 2_000


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_commits_printed_records(
    kafka: EmbeddedKafka, ending: signal.Signals
) -> None:
    kafka.produce("t", ["a"], partition=0)
    options = ("--bootstrap-servers", kafka.bootstrap_servers, "--from-beginning", "--group", "g")
    with running("consume", "t", *options) as process:
        assert process.stdout.readline() == b"a\n"
        process.send_signal(ending)
        assert process.communicate(timeout=TIMEOUT) == (b"", b"")
    assert process.returncode == 0
    assert kafka.committed("g", "t").get(0) == 1
    assert kafka.group_state("g") == "Empty"


def test_a_record_being_printed_at_the_signal_is_committed(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was printed, and printed again by the next consumer."""

    async def just_printed(data: bytes) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await anyio.sleep(0.2)

    monkeypatch.setattr("kafkagroup.cli.consume.write_stdout", just_printed)
    kafka.produce("t", ["a"], partition=0)
    options = ("--bootstrap-servers", kafka.bootstrap_servers, "--from-beginning", "--group", "g")
    assert CliRunner().invoke(app, ["consume", "t", *options]).exit_code == 0
    assert kafka.committed("g", "t").get(0) == 1


def test_a_signal_ends_the_command_while_the_pipe_is_full(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ["x" * 1_000] * 2_000, partition=0)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    with running("consume", "t", *servers, "--from-beginning") as process:
        # The pipe is full: the command blocks in a write.
        os.set_blocking(process.stdout.fileno(), False)
        end = time.monotonic() + TIMEOUT
        while not (first := process.stdout.read(10)):
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    assert first == b"x" * 10


def test_a_missing_topic_is_an_error(kafka: EmbeddedKafka) -> None:
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    found = CliRunner().invoke(app, ["consume", "none", *servers])
    message = "kafkagroup: UNKNOWN_TOPIC_OR_PARTITION (3): there is no topic none\n"
    assert (found.exit_code, found.stderr) == (1, message)
    found = CliRunner().invoke(app, ["consume", "t", "--partition", "2", *servers])
    message = "UNKNOWN_TOPIC_OR_PARTITION (3): topic t has partitions 0 to 1, but not 2\n"
    assert (found.exit_code, found.stderr) == (1, f"kafkagroup: {message}")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "consume: Missing argument 'TOPIC...'."),
        (("a", "b", "--partition", "0"), "consume: --partition is for one topic"),
        (("a", "--format", "{x}"), "--format '{x}': expected {topic}, {partition}, {offset}, "),
        (
            ("a", "--format", r"%k: %s\n"),
            r"--format '%k: %s\\n': it has no field; kcat's %s is {va",
        ),
        (("a", "--timeout", "0"), "consume: Invalid value for '--timeout': 0.0 is not in the r"),
        (("a", "--max-records", "0"), "consume: Invalid value for '--max-records': 0 is not in"),
        (("a", "--group", ""), "--group is empty; give a name"),
        (
            ("a", "-o", "x"),
            "consume: Invalid value for '--offset': 'x' is not an offset, such as 4",
        ),
        (("a", "--since", "ago"), "consume: Invalid value for '--since': 'ago' is not a duration"),
        (("a", "--tail", "1", "-o", "2"), "consume: --offset and --tail exclude each other"),
        (("a", "--tail", "1", "-g", "g"), "consume: --tail is without --group: `reset-offsets`"),
    ],
)
def test_invalid_arguments_are_an_error(arguments: tuple[str, ...], line: str) -> None:
    found = CliRunner().invoke(app, ["consume", *arguments])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"kafkagroup: {line}")
    assert found.stderr.count("\n") == 1


def test_its_output_can_be_piped_into_produce(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("copy", 2)
    records = [
        NewRecord(b"a", b"\xff\x00\n", 1_000, (("h", b"\xfe"), ("h", None))),
        NewRecord(None, "é\r".encode(), 2_000),
        NewRecord(b"", None, 3_000),
    ]
    kafka.produce("t", records, partition=1)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    lines = consume(kafka, *ALL, "--json").stdout
    done = run("produce", "copy", "--json", "--keep-partitions", *servers, given=lines)
    assert (done.returncode, done.stderr) == (0, b"kafkagroup: 3 records written to copy\n")
    copied = subprocess.run(
        [*KAFKAGROUP, "consume", "copy", *servers, *ALL, "--json"],
        capture_output=True,
        env=environment(),
        timeout=TIMEOUT,
    ).stdout
    assert copied == lines.replace(b'"topic": "t"', b'"topic": "copy"')


class Growing:
    """A consumer that is assigned another partition while the end of the first is looked up."""

    def __init__(self) -> None:
        self._assigned = [TopicPartition("t", 0)]

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if len(self._assigned) == 1:
            self._assigned.append(TopicPartition("t", 1))
        return dict.fromkeys(partitions, 5)

    async def position(self, tp: TopicPartition) -> int:
        return 5


def test_a_rebalance_while_the_ends_are_looked_up_is_survived() -> None:
    connection: Any = None  # it is used only where a partition is unread
    assert anyio.run(LogEnds(connection).are_reached, Growing())

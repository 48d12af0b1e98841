"""`kafkagroup produce`: write the lines of stdin as records of a topic."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import anyio
import anyio.lowlevel
import click
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from kafkagroup import Codec, NewRecord, Producer
from kafkagroup._signals import open_signal_receiver
from kafkagroup._text import printable
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._first import first
from kafkagroup.cli._live import ticks
from kafkagroup.cli._pipes import read_stdin
from kafkagroup.cli._record_json import Placed, record_from_json
from kafkagroup.cli._view import count, print_message
from kafkagroup.errors import KafkaGroupError, NotWrittenError
from kafkagroup.types import Headers

__all__ = ["command"]

_READ_BYTES = 1 << 18
"""Most bytes of one read of stdin."""

_CHUNKS_AHEAD = 4
"""Most reads of stdin ahead of the write in progress."""

_MAX_LINE = 16 << 20
"""Most bytes of one line; brokers accept a megabyte by default."""

_PROGRESS_INTERVAL = 0.5
"""Seconds between two updates of the progress on a terminal."""

_GRACE = 3.0
"""Seconds after a signal in which brokers may still acknowledge the records in flight."""

_SIGNAL_EXIT_BASE = 128
"""The exit code after a signal is this plus the signal's number, as in shells."""


class _Header(click.ParamType[tuple[str, bytes]]):
    name = "header"

    def convert(
        self,
        value: str | tuple[str, bytes],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, bytes]:
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not (name and equals):
            self.fail("expected NAME=VALUE", param, ctx)
        return name, content.encode(errors="surrogateescape")


@click.command("produce", short_help="Write lines of stdin to a topic.")
@click.argument("topic", required=False)
@click.option("-t", "--topic", "same", hidden=True)
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    help="The part of a line before it is the key. Default: no keys.",
)
@click.option(
    "-H",
    "--headers",
    "--header",
    "headers",
    type=_Header(),
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of every record; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(0),
    metavar="N",
    help="The partition of all records. Default: by their keys.",
)
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="With --json: use the partitions in the lines, not the keys.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    default="none",
    show_default=True,
    help="The compression of batches.",
)
@click.option(
    "-J", "--json", "as_json", is_flag=True, help="Read lines as `consume --json` prints them."
)
@connected
def command(
    topic: str | None,
    same: str | None,
    key_separator: str | None,
    headers: tuple[tuple[str, bytes], ...],
    partition: int | None,
    keep_partitions: bool,
    compression: str,
    as_json: bool,
    connection: Connection,
) -> None:
    """Write each line of stdin, any bytes without the line end, as a record of TOPIC.

    The command ends when all in-sync replicas have every record. An error names the line that was
    rejected, or not acknowledged in time; earlier lines of the same partition are written. A line
    may be written twice if a response is lost. Keys are partitioned as by Kafka's own producers;
    lines without a key that are read together go to one partition. The topic must exist. After
    SIGINT or SIGTERM, the command waits up to 3 s for acknowledgements.

    With --json a line is an object with a "value", and optionally "key", "headers" and "timestamp".
    Keys and values are strings, null, or {"base64": "..."}. "topic", "partition" and "offset" are
    ignored.
    """
    if (topic is None) == (same is None):
        raise click.UsageError("Missing argument 'TOPIC'." if same is None else "one TOPIC only")
    topic = topic or same or ""
    if key_separator == "":
        raise click.UsageError("--key-separator is empty")
    if as_json and key_separator is not None:
        raise click.UsageError("--key-separator does not work with --json, which has a key field")
    if keep_partitions and (partition is not None or not as_json):
        raise click.UsageError("--keep-partitions needs --json, and excludes --partition")
    if as_json:
        parse: Callable[[bytes], Placed] = partial(_from_json, headers, keep_partitions)
    else:
        separator = None if key_separator is None else key_separator.encode()
        parse = partial(_from_text, separator, headers)
    producer = Producer(compression=Codec[compression.upper()], **connection.options(Producer))
    writer = _Writer(producer, topic, partition, parse)
    code = anyio.run(writer.run)
    unknown = f"; the outcome of {n} more is unknown" if (n := writer.unknown_count) else ""
    print_message(f"{count(writer.written_count, 'record')} written to {topic}{unknown}")
    raise click.exceptions.Exit(code)


def _from_text(separator: bytes | None, headers: Headers, line: bytes) -> Placed:
    if separator is None:
        return Placed(NewRecord(None, line, headers=headers), None)
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError("it has no --key-separator")
    return Placed(NewRecord(key, value, headers=headers), None)


def _from_json(headers: Headers, keep_partitions: bool, line: bytes) -> Placed:
    record, partition = record_from_json(line)
    if keep_partitions and partition is None:
        raise ValueError("it has no partition")
    record = record._replace(headers=record.headers + headers)
    return Placed(record, partition if keep_partitions else None)


class _Writer:
    """Writes the lines of stdin to the topic."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partition: int | None,
        parse: Callable[[bytes], Placed],
    ) -> None:
        self.written_count = 0
        """How many records, and so lines, were written."""
        self.unknown_count = 0
        """How many sent records were not acknowledged in time after a signal."""
        self._progress_shown = False
        self._failure: KafkaGroupError | None = None
        """Why lines were not written."""
        self._sending: anyio.CancelScope | None = None
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._parse = parse

    async def run(self) -> int:
        """Return the exit code. Raises: KafkaGroupError that names the line."""
        sender, receiver = anyio.create_memory_object_stream[bytes](_CHUNKS_AHEAD)
        with open_signal_receiver() as signals:
            async with self._producer:
                # An unknown topic is reported at once, not after the first line of input.
                await self._producer.partition_count(self._topic)
                works: list[Callable[[], Awaitable[int]]] = [
                    partial(self._wait_for_signal, signals),
                    partial(self._copy_stdin, sender, receiver),
                ]
                if sys.stderr.isatty() and not sys.stdin.isatty():
                    works.append(self._show_progress)
                try:
                    code = await first(*works)
                finally:
                    if self._progress_shown:
                        click.echo("\r\x1b[K", nl=False, err=True)
                if self._failure is not None:
                    raise self._failure
                return code

    async def _show_progress(self) -> int:
        """Write the count over itself, until cancelled."""
        async for _ in ticks(_PROGRESS_INTERVAL):
            if self.written_count:
                self._progress_shown = True
                text = f"{count(self.written_count, 'record')} written to {self._topic}"
                click.echo(f"\r\x1b[K{printable(text)}", nl=False, err=True)
        raise AssertionError("ticks never end")

    async def _wait_for_signal(self, signals: AsyncIterator[signal.Signals]) -> int:
        """Wait for a signal, limit the write in progress, and return the exit code."""
        ending = await anext(signals)
        if self._sending is not None:
            self._sending.deadline = anyio.current_time() + _GRACE
        return _SIGNAL_EXIT_BASE + ending

    async def _copy_stdin(
        self, sender: MemoryObjectSendStream[bytes], receiver: MemoryObjectReceiveStream[bytes]
    ) -> int:
        async def write() -> None:
            try:
                async with receiver:
                    await self._write_all(receiver)
            except KafkaGroupError as error:
                # Raised by `run`: the task group would wrap it in an ExceptionGroup, or, after a
                # signal has cancelled it, drop it.
                self._failure = error
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            async with sender:
                while chunk := await read_stdin(_READ_BYTES):
                    await sender.send(chunk)
        return 0

    async def _write_all(self, chunks: MemoryObjectReceiveStream[bytes]) -> None:
        rest = b""
        async for chunk in chunks:
            data = [rest, chunk]
            # All that was read meanwhile: fewer requests when brokers are slower than stdin.
            while chunks.statistics().current_buffer_used:
                data.append(chunks.receive_nowait())
            *lines, rest = b"".join(data).split(b"\n")
            await self._write(lines)
            if len(rest) > _MAX_LINE:
                raise self._failed(0, f"it has more than {_MAX_LINE} bytes")
        if rest:
            await self._write([rest])

    async def _write(self, lines: Sequence[bytes]) -> None:
        """Write the lines, up to the first one that is invalid."""
        records: list[Placed] = []
        parse_error: ValueError | None = None
        for line in lines:
            try:
                records.append(self._parse(line))
            except ValueError as error:
                parse_error = error
                break
        for partition, run in _runs(records):
            await self._send(run, self._partition if partition is None else partition)
        if parse_error is not None:
            raise self._failed(0, str(parse_error))

    async def _send(self, records: Sequence[NewRecord], partition: int | None) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        # A signal does not interrupt the write: the reported count would be too low.
        with anyio.CancelScope(shield=True) as self._sending:
            try:
                await self._producer.write(self._topic, records, partition=partition)
            except NotWrittenError as error:
                raise self._failed(error.index, str(error.why)) from error
            except KafkaGroupError as error:
                raise self._failed(0, str(error)) from error
            self.written_count += len(records)
        if self._sending.cancelled_caught:
            self.unknown_count = len(records)

    def _failed(self, index: int, why: str) -> KafkaGroupError:
        return KafkaGroupError(f"line {self.written_count + index + 1}: {why}")


def _runs(placed: Sequence[Placed]) -> Iterator[tuple[int | None, list[NewRecord]]]:
    """Group adjacent records of the same partition."""
    for partition, run in groupby(placed, key=lambda one: one.partition):
        yield partition, [record for record, _ in run]

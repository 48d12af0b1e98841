"""`kafkagroup consume`: print the records of topics, as text or as JSON."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from functools import partial

import anyio
import click

from kafkagroup import Admin, CommitFailedError, Consumer, Record, TopicPartition
from kafkagroup._signals import open_signal_receiver
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._first import first
from kafkagroup.cli._log_ends import LogEnds
from kafkagroup.cli._pipes import write_stdout
from kafkagroup.cli._record_json import record_to_json
from kafkagroup.cli._record_text import FIELDS, formatter
from kafkagroup.cli._starts import Start, offset_or_end, since
from kafkagroup.errors import BrokerError, ErrorCode

__all__ = ["command"]

_MAX_BATCH = 500
"""Most records that are fetched together, written together, and then count as processed."""

_WRITE_GRACE = 1.0
"""Seconds after a signal in which the write in progress may complete."""

_END_CHECK_INTERVAL = 0.1
"""Seconds without a record after which the positions are compared with the logs' ends: positions
also move past transaction markers, which are no records."""


_START_HINT = (
    "kafkagroup: no record: reading began at the end; --from-beginning, --tail N and --since 10m"
    " start earlier"
)


@click.command("consume", short_help="Print the records of topics.")
@click.argument("topics", nargs=-1, metavar="TOPIC...")
@click.option("-t", "--topic", "more_topics", metavar="TOPIC", multiple=True, hidden=True)
@click.option(
    "-G", "-g", "--group", metavar="GROUP", help="Join this group, and commit the printed records."
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    metavar="N",
    multiple=True,
    help="Only this partition, without membership; repeatable.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the oldest record; in a group, only without a committed offset. Default: start"
    " at the next record.",
)
@click.option(
    "-o",
    "--offset",
    callback=offset_or_end,
    metavar="N",
    help="Start at this offset of each partition: N, -N for N before the end, earliest or latest.",
)
@click.option(
    "--tail",
    type=click.IntRange(1),
    metavar="N",
    help="Start N offsets before the end of each partition; with --exit-at-end, print only these.",
)
@click.option(
    "--since",
    "at",
    callback=since,
    metavar="WHEN",
    help="Start at the first record of the last 90s, 10m, 2h or 7d, or since a time such as"
    " 2026-01-31T12:00:00Z.",
)
@click.option("-k", "--key", metavar="TEXT", help="Print only records with this key.")
@click.option(
    "-c",
    "-n",
    "--max-records",
    type=click.IntRange(1),
    metavar="N",
    help="End after N records.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.0, min_open=True),
    metavar="SECONDS",
    help="End after this time without a record.",
)
@click.option(
    "-e",
    "--exit-at-end",
    is_flag=True,
    help="End at the log ends of the time when reading began.",
)
@click.option(
    "-f",
    "--format",
    "form",
    metavar="FORMAT",
    default="{value}\\n",
    show_default=True,
    help=f"The format of a record: {', '.join(f'{{{name}}}' for name in FIELDS)}, \\n, \\t, \\0 and"
    " other text.",
)
@click.option(
    "-J", "--json", "as_json", is_flag=True, help="Print lines of JSON, as `produce` reads it."
)
@connected
def command(
    topics: tuple[str, ...],
    more_topics: tuple[str, ...],
    group: str | None,
    partitions: tuple[int, ...],
    from_beginning: bool,
    offset: int | str | None,
    tail: int | None,
    at: datetime | None,
    key: str | None,
    max_records: int | None,
    timeout: float | None,
    exit_at_end: bool,
    form: str,
    as_json: bool,
    connection: Connection,
) -> None:
    """Print the records of TOPICs, until Ctrl-C, SIGTERM, or the end that an option sets.

    With --group, records are committed after they were written to stdout; the reader of a pipe may
    still lose them. Without --group, nothing is committed.

    In text, bytes that are not UTF-8 are printed as \\xNN, and null as "null"; on a terminal,
    control characters are escaped. In JSON, UTF-8 is a string, other bytes {"base64": "..."}; in
    names of headers they are \\udcNN.
    """
    topics += more_topics
    if not topics:
        raise click.UsageError("Missing argument 'TOPIC...'.")
    # None: not given.
    starts: dict[str, object] = {
        "--from-beginning": from_beginning or None,
        "--offset": offset,
        "--tail": tail,
        "--since": at,
    }
    given = [name for name, value in starts.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other; give one")
    start = Start(offset if tail is None else -tail, at)
    # --from-beginning is possible in a group: it only applies where no offset is committed.
    if start.is_given and group is not None:
        raise click.UsageError(
            f"{given[0]} is without --group: `reset-offsets` moves a group, while it has no members"
        )
    if partitions and len(topics) > 1:
        raise click.UsageError("--partition is for one topic")
    text_form = formatter(form, for_terminal=bool(sys.stdout and sys.stdout.isatty()))
    options = {
        **connection.options(Consumer),
        "group_id": group,  # never the profile's: without --group, nothing is committed
        "auto_offset_reset": "earliest" if from_beginning else "latest",
    }
    printer = _Printer(
        (lambda record: record_to_json(record) + "\n") if as_json else text_form,
        start=start,
        key=None if key is None else key.encode(errors="surrogateescape"),
        has_group=group is not None,
        max_records=max_records,
        timeout=timeout,
        ends=LogEnds(connection) if exit_at_end else None,
        hint=_START_HINT if exit_at_end and not given and group is None else "",
    )

    async def run() -> None:
        # Created first: wrong options are reported before the cluster is asked.
        consumer = Consumer(*(() if partitions else topics), **options)
        await _require_topics(topics, partitions, connection)
        if partitions:
            await consumer.assign(TopicPartition(topics[0], number) for number in partitions)
        await printer.run(consumer)

    anyio.run(run)


async def _require_topics(
    topics: tuple[str, ...], partitions: tuple[int, ...], connection: Connection
) -> None:
    """Check that the topics exist, and that the partitions, if given, exist in the single topic: a
    consumer would wait for a missing one. Raises: BrokerError."""
    async with Admin(**connection.options(Admin)) as admin:
        # Raises for a topic that does not exist.
        existing = {tp.partition for tp in await admin.partitions(topics)}
    if missing := [number for number in partitions if number not in existing]:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topics[0]} has partitions 0 to {max(existing)}, but not {missing[0]}",
        )


class _Printer:
    """Fetches records and writes them. In a group, the consumer's auto-commit covers what was
    written before the last fetch; `run` commits the rest."""

    def __init__(
        self,
        form: Callable[[Record], str],
        *,
        start: Start,
        key: bytes | None,
        has_group: bool,
        max_records: int | None,
        timeout: float | None,
        ends: LogEnds | None,
        hint: str,
    ) -> None:
        """`form` returns the text of a record. `key`: print only records with this key; None for
        all. `timeout`: end after these seconds without a record; None for no limit. `ends`: end
        there; None for no end. `hint`: the text for stderr if the end is reached without a record;
        "" for none."""
        self._format = form
        self._start = start
        self._key = key
        self._has_group = has_group
        self._remaining = max_records
        """The number of records that may still be printed; None for no limit."""
        self._timeout = timeout
        self._ends = ends
        self._hint = hint
        self._is_writing = False
        """Whether records are being written."""
        self._write_completed = anyio.Event()
        """Set when the write in progress is complete."""

    async def run(self, consumer: Consumer) -> None:
        """Print records until the requested end, a signal, or the reader closes the pipe."""
        with open_signal_receiver() as signals:
            async with consumer:
                try:
                    await first(
                        partial(self._wait_for_signal, signals), partial(self._print_all, consumer)
                    )
                except BrokenPipeError:
                    # The reader closed the pipe, as `head` does: not a failure.
                    return
                # Records of a write that a signal has interrupted stay uncommitted.
                if self._has_group and not self._is_writing:
                    await self._commit(consumer)

    async def _commit(self, consumer: Consumer) -> None:
        try:
            await consumer.commit()
        except CommitFailedError as error:
            # The records are printed, and the new owner prints them again: not a failure.
            click.echo(f"kafkagroup: warning: {error}", err=True)

    async def _wait_for_signal(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Wait for a signal, and then, for `_WRITE_GRACE` at most, for the write in progress."""
        await anext(signals)
        if self._is_writing:
            # Records that are printed and not committed would be printed again by the next owner.
            with anyio.move_on_after(_WRITE_GRACE):
                await self._write_completed.wait()

    async def _print_all(self, consumer: Consumer) -> None:
        """Print records, and return at the requested end."""
        await consumer.wait_assignment()
        if self._start.is_given:
            await self._start.seek(consumer)
        last_record_at = anyio.current_time()
        while self._remaining is None or self._remaining > 0:
            if self._ends is not None and await self._ends.are_reached(consumer):
                if self._hint:
                    click.echo(self._hint, err=True)
                break
            records = await self._fetch(consumer, last_record_at)
            if records:
                await self._write(records)
                last_record_at = anyio.current_time()
                continue
            elapsed = anyio.current_time() - last_record_at
            if self._timeout is not None and elapsed >= self._timeout:
                break

    async def _fetch(self, consumer: Consumer, last_record_at: float) -> list[Record]:
        """Return the next records to print, at most `_MAX_BATCH`; none if none arrive in time, or
        if all have another key or are above the requested end."""
        timeout = float("inf")
        if self._timeout is not None:
            timeout = max(0.0, last_record_at + self._timeout - anyio.current_time())
        if self._ends is not None:
            timeout = min(timeout, _END_CHECK_INTERVAL)
        most = _MAX_BATCH
        if self._remaining is not None and (self._has_group or self._key is None):
            # In a group, fetched records are committed: do not fetch more than may be printed.
            # Without one, records with another key may be fetched and dropped.
            most = min(most, self._remaining)
        found = await consumer.getmany(most, timeout)
        if self._ends is not None and found:
            records = await self._ends.cut(consumer, found)
        else:
            records = [record for records in found.values() for record in records]
        if self._key is not None:
            records = [record for record in records if record.key == self._key][: self._remaining]
        return records

    async def _write(self, records: list[Record]) -> None:
        self._hint = ""  # it is for an end without a record
        self._is_writing, self._write_completed = True, anyio.Event()
        text = "".join(map(self._format, records))
        # Formats may contain surrogates, which UTF-8 cannot encode.
        await write_stdout(text.encode(errors="backslashreplace"))
        self._is_writing = False
        self._write_completed.set()
        if self._remaining is not None:
            self._remaining -= len(records)

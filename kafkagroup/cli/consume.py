"""`kafkagroup consume`: the records of topics on stdout, as text or as JSON."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial

import anyio
import click

from kafkagroup import Admin, CommitFailedError, Consumer, Record, TopicPartition
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._first import first
from kafkagroup.cli._pipes import write_stdout
from kafkagroup.cli._record_json import record_to_json
from kafkagroup.cli._record_text import FIELDS, formatter
from kafkagroup.errors import BrokerError, ErrorCode, NotAssignedError

__all__ = ["command"]

_MOST = 500
"""Records that are written, and in a group committed, together."""

_LAST_WORDS = 1.0
"""Seconds that what is being written has, once there was a signal."""

_LOOK = 0.1
"""Seconds without a record after which it is looked at whether the ends are reached: positions
also move over what is no record."""


@click.command("consume", short_help="Print the records of topics.")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--group", metavar="GROUP", help="Be a member of this group, and commit what was printed."
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    metavar="N",
    multiple=True,
    help="Of this partition alone, as no member; several times for several.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Begin with the oldest record, in a group where it has committed nothing. Default: with"
    " the next one.",
)
@click.option("--max-records", type=click.IntRange(1), metavar="N", help="End after so many.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.0, min_open=True),
    metavar="SECONDS",
    help="End when no record has come for so long.",
)
@click.option(
    "--exit-at-end", is_flag=True, help="End where the logs ended when their reading began."
)
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    default="{value}\\n",
    show_default=True,
    help=f"Of each record: {', '.join(f'{{{name}}}' for name in FIELDS)}, \\n, \\t, \\0 and other"
    " text.",
)
@click.option("--json", "as_json", is_flag=True, help="One object a line, as `produce` reads it.")
@connected
def command(
    topics: tuple[str, ...],
    group: str | None,
    partitions: tuple[int, ...],
    from_beginning: bool,
    max_records: int | None,
    timeout: float | None,
    exit_at_end: bool,
    form: str,
    as_json: bool,
    connection: Connection,
) -> None:
    """Print the records of TOPICs, until Ctrl-C, SIGTERM, or as told below.

    Without --group nothing is committed. With it, what was printed is, when it has been written;
    who reads it may still lose it.

    In text, bytes that are not UTF-8 are printed as \\xNN, and what is null as null; on a terminal,
    what does not print is escaped. In JSON, texts are strings, other bytes {"base64": "..."}.
    """
    if partitions and len(topics) > 1:
        raise click.UsageError("--partition is for one topic")
    form_one = formatter(form, for_terminal=sys.stdout.isatty())
    options = {
        **connection.options(Consumer),
        "group_id": group,
        "auto_offset_reset": "earliest" if from_beginning else "latest",
    }
    printer = _Printer(
        (lambda record: record_to_json(record) + "\n") if as_json else form_one,
        commits=group is not None,
        max_records=max_records,
        timeout=timeout,
        exit_at_end=exit_at_end,
    )

    async def run() -> None:
        consumer = Consumer(*(() if partitions else topics), **options)
        await _require(topics, partitions, connection)
        if partitions:
            await consumer.assign(TopicPartition(topics[0], number) for number in partitions)
        await printer.run(consumer)

    anyio.run(run)


async def _require(
    topics: tuple[str, ...], partitions: tuple[int, ...], connection: Connection
) -> None:
    """Raises: BrokerError for a topic or partition that does not exist: a consumer would wait."""
    async with Admin(**connection.options(Admin)) as admin:
        there = {tp.partition for tp in await admin.partitions(topics)}
    if missing := [number for number in partitions if number not in there]:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topics[0]} has partitions 0 to {max(there)}, and not {missing[0]}",
        )


class _Printer:
    """Takes records, and writes them."""

    def __init__(
        self,
        form: Callable[[Record], str],
        *,
        commits: bool,
        max_records: int | None,
        timeout: float | None,
        exit_at_end: bool,
    ) -> None:
        self._form = form
        self._commits = commits
        self._left = max_records
        self._timeout = timeout
        self._exit_at_end = exit_at_end
        self._ends: dict[TopicPartition, int] = {}
        """Where the log of each partition ended when it came."""
        self._in_hand = False
        """Whether there are records that are not written yet."""
        self._written = anyio.Event()
        """While there are: set once they are."""

    async def run(self, consumer: Consumer) -> None:
        """Until the end that was asked for, a signal, or nobody reads any more."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with consumer:
                try:
                    await first(partial(self._signalled, signals), partial(self._all, consumer))
                except BrokenPipeError:
                    # The reader closed the pipe, as `head` does: not a failure.
                    return
                if self._commits and not self._in_hand:
                    await self._commit(consumer)

    async def _commit(self, consumer: Consumer) -> None:
        try:
            await consumer.commit()
        except CommitFailedError as error:
            # The records are printed, and the new owner prints them again: not a failure.
            click.echo(f"kafkagroup: warning: {error}", err=True)

    async def _signalled(self, signals: AsyncIterator[signal.Signals]) -> None:
        await anext(signals)
        if self._in_hand:
            # The records may be printed but not committed: the next owner would print them again.
            with anyio.move_on_after(_LAST_WORDS):
                await self._written.wait()

    async def _all(self, consumer: Consumer) -> None:
        """Return at the end that was asked for."""
        await consumer.wait_assignment()
        silent_since = anyio.current_time()
        while self._left is None or self._left > 0:
            records = await self._take(consumer, silent_since)
            if records:
                await self._write(records)
                silent_since = anyio.current_time()
                continue
            silent = anyio.current_time() - silent_since
            if self._timeout is not None and silent >= self._timeout:
                break
            if self._exit_at_end and await self._at_end(consumer):
                break

    async def _take(self, consumer: Consumer, silent_since: float) -> list[Record]:
        patience = float("inf")
        if self._timeout:
            patience = max(0.0, silent_since + self._timeout - anyio.current_time())
        if self._exit_at_end:
            patience = min(patience, _LOOK)
        most = _MOST if self._left is None else min(_MOST, self._left)
        found = await consumer.getmany(most, patience)
        return [record for records in found.values() for record in records]

    async def _write(self, records: list[Record]) -> None:
        self._in_hand, self._written = True, anyio.Event()
        text = "".join(map(self._form, records))
        # Header names and formats may contain surrogates, which UTF-8 cannot encode.
        await write_stdout(text.encode(errors="backslashreplace"))
        self._in_hand = False
        self._written.set()
        if self._left is not None:
            self._left -= len(records)

    async def _at_end(self, consumer: Consumer) -> bool:
        assigned = consumer.assignment()
        if new := assigned - self._ends.keys():
            self._ends |= await consumer.end_offsets(new)
        try:
            for tp in assigned:
                if await consumer.position(tp) < self._ends[tp]:
                    return False
        except NotAssignedError:
            return False  # a rebalance revoked a partition in the meantime
        return True

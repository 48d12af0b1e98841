"""`kafkagroup transactions`: list and describe transactions and producers; abort one that hangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import attrs
import click

from kafkagroup import TopicPartition
from kafkagroup.admin import (
    Admin,
    OpenTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionList,
    TransactionListing,
    TransactionState,
)
from kafkagroup.cli._confirmation import confirm_or_exit, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import matches, split_results
from kafkagroup.cli._selection import Selection, selecting
from kafkagroup.cli._suggestions import SuggestingGroup
from kafkagroup.cli._view import (
    add_row,
    broker,
    broker_errors,
    broker_value,
    console,
    count,
    exit_with,
    new_table,
    print_json,
    print_line,
    ranges,
)
from kafkagroup.cli._when import duration
from kafkagroup.errors import KafkaGroupError
from kafkagroup.types import by_topic

__all__ = ["command"]

T = TypeVar("T")

_STATES = [state.value for state in TransactionState if state is not TransactionState.UNKNOWN]

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_ByPartition = Mapping[TopicPartition, tuple[T, ...] | KafkaGroupError]
"""Partition -> its producers or open transactions, or why they cannot be read."""


@click.group(
    "transactions",
    cls=SuggestingGroup,
    short_help="List and describe transactions; abort one that hangs.",
)
def command() -> None:
    """List and describe transactions and producers, and abort a transaction that hangs.

    What cannot be described is named on stderr, and the exit code is 1.
    """


# ------------------------------------------------------------ at the coordinators


@command.command("list", short_help="List transactional ids with their states.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES, case_sensitive=False),
    multiple=True,
    help="Only ids in this state; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    metavar="N",
    type=click.IntRange(0),
    multiple=True,
    help="Only the id that has this producer id; repeatable.",
)
@click.option(
    "--longer-than",
    "longer_than",
    metavar="DURATION",
    callback=duration,
    help="Only those whose transaction has been open for longer than this, such as 10m.",
)
@_json_option
@connected
def list_command(
    patterns: tuple[str, ...],
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than: timedelta | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """List the transactional ids of all brokers, or those that match a PATTERN, such as
    'orders-*'; a PATTERN without * ? [ is a part of the id.

    If a broker does not answer, its ids are missing: it is named on stderr, and the exit code is 1.
    """
    found = connection.run(
        lambda admin: admin.list_transactions(
            states=[TransactionState(state) for state in states],
            producer_ids=producer_ids,
            open_longer_than=longer_than,
        )
    )
    if patterns:
        chosen = [one for one in found.transactions if matches(one.transactional_id, patterns)]
        found = attrs.evolve(found, transactions=tuple(chosen))
    if as_json:
        print_json(_list_value(found))
    else:
        _show_list(found.transactions)
    exit_with(f"broker {broker(node)}: {error}" for node, error in found.errors.items())


@command.command("describe", short_help="Show the transactions of transactional ids.")
@click.argument("transactional_ids", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@_json_option
@connected
def describe_command(
    transactional_ids: tuple[str, ...], as_json: bool, connection: Connection
) -> None:
    """Show the state, the timeout, the start and the partitions of each id's transaction."""
    found, errors = split_results(
        connection.run(lambda admin: admin.describe_transactions(transactional_ids))
    )
    if as_json:
        values = [_transaction_value(one) for one in found.values()]
        print_json({"transactions": values, "errors": errors})
    elif found:
        _show_transactions(tuple(found.values()))
    exit_with(f"transactional id {name!r}: {error}" for name, error in errors.items())


# ------------------------------------------------------------ in the partitions


@command.command("producers", short_help="Show the producers that write to partitions.")
@selecting
@_json_option
@connected
def producers_command(selection: Selection, as_json: bool, connection: Connection) -> None:
    """Show the idempotent and transactional producers that partitions know.

    The start offset is where the producer's open transaction begins.
    """
    if not selection:
        raise click.UsageError("give --topic")

    async def describe(admin: Admin) -> _ByPartition[ProducerDescription]:
        return await admin.describe_producers(await selection.resolve(admin))

    found, errors = _split(connection.run(describe))
    rows = [(tp, one) for tp, producers in found.items() for one in producers]
    if as_json:
        print_json({"producers": [_producer_value(tp, one) for tp, one in rows], "errors": errors})
    else:
        _show_producers(rows)
    exit_with(f"{name}: {error}" for name, error in errors.items())


@command.command("find-hanging", short_help="Find transactions that nothing will end.")
@selecting
@click.option("--all", "show_all", is_flag=True, help="Show all open transactions.")
@_json_option
@connected
def find_hanging_command(
    selection: Selection, show_all: bool, as_json: bool, connection: Connection
) -> None:
    """Find transactions that are open in a partition, and that no coordinator knows, so that
    nothing will end them. Consumers with read_committed get nothing after them. Without --topic,
    all topics are searched.

    A transaction whose transactional id this user may not describe seems to hang.
    """

    async def find(admin: Admin) -> _ByPartition[OpenTransaction]:
        if selection:
            return await admin.open_transactions(await selection.resolve(admin))
        topics = [topic.name for topic in await admin.list_topics()]
        return await admin.open_transactions(await admin.partitions(topics))

    found, errors = _split(connection.run(find))
    opened = [one for several in found.values() for one in several if show_all or one.is_hanging]
    if as_json:
        print_json({"transactions": [_open_value(one) for one in opened], "errors": errors})
    else:
        _show_open(opened, "open transaction" if show_all else "hanging transaction")
    exit_with(f"{name}: {error}" for name, error in errors.items())


@command.command("abort", short_help="Abort a transaction that hangs.")
@click.option("--topic", metavar="NAME", required=True, help="The topic.")
@click.option(
    "--partition", metavar="N", type=click.IntRange(0), required=True, help="The partition."
)
@click.option(
    "--start-offset",
    metavar="N",
    type=click.IntRange(0),
    required=True,
    help="Where the transaction begins, as find-hanging shows it.",
)
@click.option(
    "--force", is_flag=True, help="Also a transaction that its coordinator would end itself."
)
@yes_option
@_json_option
@connected
def abort_command(
    topic: str,
    partition: int,
    start_offset: int,
    force: bool,
    yes: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Abort a transaction in one partition, by a marker in its log. Its records are then never
    delivered to consumers with read_committed.

    A transaction that does not hang is refused without --force: its coordinator may commit what it
    has in other partitions.
    """
    tp = TopicPartition(topic, partition)
    confirm_or_exit(f"Abort the transaction that begins at offset {start_offset} of {tp}?", yes)
    connection.run(lambda admin: admin.abort_transaction(tp, start_offset, force=force))
    if as_json:
        print_json({"aborted": {"topic": topic, "partition": partition, "offset": start_offset}})
    else:
        print_line(f"{tp}: aborted the transaction that began at offset {start_offset}")


# ------------------------------------------------------------ tables and JSON


def _split(results: _ByPartition[T]) -> tuple[dict[TopicPartition, tuple[T, ...]], dict[str, str]]:
    """Return the values by partition, and the errors, as texts, by "TOPIC/NUMBER"."""
    return (
        {tp: one for tp, one in results.items() if not isinstance(one, KafkaGroupError)},
        {str(tp): str(one) for tp, one in results.items() if isinstance(one, KafkaGroupError)},
    )


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(" ", "seconds").replace("+00:00", "Z")


def _show_list(transactions: Sequence[TransactionListing]) -> None:
    table = new_table(
        count(len(transactions), "transactional id"),
        *("transactional id", "state", "producer id", "coordinator"),
        right=("producer id",),
        drop=("coordinator", "producer id"),
    )
    for one in transactions:
        cells = (one.state.value, one.producer_id, broker(one.coordinator))
        add_row(table, one.transactional_id, *cells)
    console().print(table)


def _show_transactions(transactions: Sequence[TransactionDescription]) -> None:
    numbers = ("producer id", "epoch", "timeout")
    table = new_table(
        count(len(transactions), "transactional id"),
        *("transactional id", "state", "started", "partitions", *numbers, "coordinator"),
        right=numbers,
        drop=("coordinator", "epoch", "producer id", "timeout"),
    )
    for one in transactions:
        add_row(
            table,
            one.transactional_id,
            one.state.value,
            _time(one.started_at),
            ranges(one.partitions),
            one.producer_id,
            one.producer_epoch,
            f"{one.timeout:g} s",
            broker(one.coordinator),
        )
    console().print(table)


def _show_producers(rows: Sequence[tuple[TopicPartition, ProducerDescription]]) -> None:
    numbers = ("producer id", "epoch", "sequence", "start offset")
    table = new_table(
        count(len(rows), "producer"),
        *("partition", *numbers, "last written"),
        right=numbers,
        drop=("sequence", "epoch"),
    )
    for tp, one in rows:
        add_row(
            table,
            tp,
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.transaction_start_offset,
            _time(one.last_written_at),
        )
    console().print(table)


def _show_open(opened: Sequence[OpenTransaction], noun: str) -> None:
    numbers = ("start offset", "producer id")
    table = new_table(
        count(len(opened), noun),
        *("partition", *numbers, "transactional id", "state", "last written"),
        right=numbers,
        drop=("last written", "producer id"),
    )
    for one in opened:
        add_row(
            table,
            one.partition,
            one.start_offset,
            one.producer.producer_id,
            None if one.transaction is None else one.transaction.transactional_id,
            _state(one),
            _time(one.producer.last_written_at),
        )
    console().print(table)


def _state(one: OpenTransaction) -> str:
    if one.is_hanging:
        return "hanging"
    assert one.transaction is not None  # without one it would hang
    return one.transaction.state.value


def _list_value(found: TransactionList) -> dict[str, object]:
    return {
        "transactions": [
            {
                "transactional_id": one.transactional_id,
                "state": one.state.value,
                "producer_id": one.producer_id,
                "coordinator": broker_value(one.coordinator),
            }
            for one in found.transactions
        ],
        "errors": broker_errors(found.errors),
    }


def _transaction_value(one: TransactionDescription) -> dict[str, object]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state.value,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_seconds": one.timeout,
        "started_at": _time(one.started_at),
        "partitions": by_topic(one.partitions),
        "coordinator": broker_value(one.coordinator),
    }


def _producer_value(tp: TopicPartition, one: ProducerDescription) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "last_sequence": one.last_sequence,
        "last_written_at": _time(one.last_written_at),
        "coordinator_epoch": one.coordinator_epoch,
        "transaction_start_offset": one.transaction_start_offset,
    }


def _open_value(one: OpenTransaction) -> dict[str, object]:
    return {
        **_producer_value(one.partition, one.producer),
        "hanging": one.is_hanging,
        "transaction": None if one.transaction is None else _transaction_value(one.transaction),
    }

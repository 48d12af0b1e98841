"""Descriptions of groups on a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from kafkagroup import TopicPartition
from kafkagroup.admin import GroupDescription, MemberDescription, PartitionLag
from kafkagroup.cli._lag_view import COLUMNS, DROP, Lags, cells, partition_value, rounded, total
from kafkagroup.cli._table import Table
from kafkagroup.cli._view import (
    add_row,
    broker,
    broker_value,
    count,
    member_name,
    new_table,
    plain,
    plain_line,
    ranges,
)
from kafkagroup.types import by_topic

__all__ = ["describe_value", "print_description"]


def print_description(console: Console, group: GroupDescription, lags: Lags | None) -> None:
    """Print a group's facts, members and partitions; `lags` is None for a share group, or if the
    lags could not be read."""
    console.print(plain(f"Group {group.group_id}"))
    for name, value in _facts(group):
        console.print(plain(f"  {name:<12} {value}"))
    console.print()
    console.print(_members(group) if group.members else plain_line("No members."))
    if lags:
        console.print(_partitions(group, lags))
    elif lags is not None:
        console.print(plain_line("Nothing is committed."))


def _facts(group: GroupDescription) -> Iterator[tuple[str, object]]:
    yield "type", group.type.value
    yield "state", group.state.value
    yield "protocol", " ".join(filter(None, (group.protocol_type, group.protocol_name))) or "-"
    yield "coordinator", broker(group.coordinator)
    if group.group_epoch is not None:
        yield "epoch", f"{group.group_epoch}, assignment of epoch {group.assignment_epoch}"


def _members(group: GroupDescription) -> Table:
    epochs = [] if group.group_epoch is None else ["epoch"]
    columns = ("member", "client", "host", *epochs, "partitions", "assigned")
    table = new_table(
        count(len(group.members), "member"),
        *columns,
        right=("epoch", "partitions"),
        # A narrow terminal first loses the client: most member ids begin with its id.
        drop=("client", "host", "epoch"),
    )
    for m in group.members:
        epoch = [] if group.group_epoch is None else [m.member_epoch]
        # Unknown in a classic group that is rebalancing, or is not of consumers.
        owned = "?" if m.partitions is None else len(m.partitions)
        assigned = ranges(m.partitions or ())
        if m.target is not None and m.target != m.partitions:
            assigned = f"{assigned or 'nothing'} -> {ranges(m.target) or 'nothing'}"
        add_row(table, member_name(m), m.client_id, m.host, *epoch, owned, assigned)
    return table


def _partitions(group: GroupDescription, lags: Lags) -> Table:
    columns = ("partition", *COLUMNS, "member", "")
    table = new_table("Partitions", *columns, right=COLUMNS, drop=DROP)
    owners = {tp: member_name(m) for m in group.members for tp in m.partitions or ()}
    for tp in sorted(lags.keys() | owners.keys()):
        lag: PartitionLag | None = lags.get(tp)
        owner = owners.get(tp, "-")
        if lag is None:
            add_row(table, tp, None, None, None, None, owner, "nothing is committed")
        else:
            add_row(table, tp, *cells(lag), owner, lag.reason)
    table.add_section()
    lag_sum, max_seconds = total(lags)
    add_row(table, "total", None, None, lag_sum, rounded(max_seconds), None, None)
    return table


# ---------------------------------------------------------------- JSON


def describe_value(group: GroupDescription, lags: Lags | None) -> dict[str, object]:
    """Return the group as a JSON value; `lag`, `seconds` and `offsets` are null if `lags` is None,
    as in `print_description`."""
    return {
        "group_id": group.group_id,
        "type": group.type.value,
        "state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "coordinator": broker_value(group.coordinator),
        "members": [_member_value(member) for member in group.members],
        "lag": None if lags is None else total(lags)[0],
        "seconds": None if lags is None else total(lags)[1],
        "offsets": None if lags is None else [partition_value(tp, lag) for tp, lag in lags.items()],
    }


def _member_value(member: MemberDescription) -> dict[str, object]:
    topics = None if member.subscription is None else sorted(member.subscription.topics)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "member_epoch": member.member_epoch,
        "topics": topics,
        "topic_pattern": member.topic_pattern,
        "partitions": _by_topic_or_none(member.partitions),
        "target": _by_topic_or_none(member.target),
    }


def _by_topic_or_none(partitions: tuple[TopicPartition, ...] | None) -> dict[str, list[int]] | None:
    return None if partitions is None else by_topic(partitions)

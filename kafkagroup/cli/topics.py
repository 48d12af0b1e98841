"""`kafkagroup topics`: list, describe, create and delete topics, and add partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from kafkagroup.admin import NewTopic, PartitionDescription, TopicDescription
from kafkagroup.cli._confirmation import confirm_or_exit, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import apply_changes, split_results
from kafkagroup.cli._suggestions import SuggestingGroup
from kafkagroup.cli._view import (
    add_row,
    broker,
    broker_value,
    console,
    count,
    exit_with,
    new_table,
    print_json,
    print_line,
)

__all__ = ["command"]


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only let the controller check the change."
)
_topics_argument = click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)


class _Config(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "config"

    def convert(
        self,
        value: str | tuple[str, str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, str]:
        if isinstance(value, tuple):  # click may convert a value again
            return value
        name, equals, setting = value.partition("=")
        if not (name and equals):
            self.fail(f"{value!r}; expected NAME=VALUE, as retention.ms=3600000", param, ctx)
        return name, setting


@click.group(
    "topics",
    cls=SuggestingGroup,
    short_help="List, describe, create and delete topics; add partitions.",
)
def command() -> None:
    """List, describe, create and delete topics, and add partitions to them.

    A topic that cannot be described or changed is named on stderr, and the exit code is 1.
    """


@command.command("list", short_help="List topics.")
@click.option("--internal", is_flag=True, help="Include Kafka's own, such as __consumer_offsets.")
@_json_option
@connected
def list_command(internal: bool, as_json: bool, connection: Connection) -> None:
    """List the topics that this user may describe."""
    found = [
        topic
        for topic in connection.run(lambda admin: admin.list_topics())
        if internal or not topic.internal
    ]
    if as_json:
        print_json({"topics": [_summary(topic) for topic in found]})
        return
    numbers = ("partitions", "replicas")
    table = new_table(
        count(len(found), "topic"), "topic", *numbers, right=numbers, drop=("replicas",)
    )
    for topic in found:
        add_row(table, topic.name, len(topic.partitions), topic.replication_factor)
    console().print(table)


@command.command("describe", short_help="Show the leaders and replicas of partitions.")
@_topics_argument
@_json_option
@connected
def describe_command(topics: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """Show for each partition its leader, its replicas, and which of them are in sync."""
    found, errors = split_results(connection.run(lambda admin: admin.describe_topics(topics)))
    if as_json:
        values = [
            {**_summary(topic), "partitions": [_partition(one) for one in topic.partitions]}
            for topic in found.values()
        ]
        print_json({"topics": values, "errors": errors})
    else:
        for topic in found.values():
            _show(topic)
    exit_with(f"topic {topic!r}: {error}" for topic, error in errors.items())


@command.command("create", short_help="Create topics.")
@_topics_argument
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Partitions of each topic.  [default: the cluster's num.partitions]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    metavar="N",
    help="Replicas of each partition.  [default: the cluster's default.replication.factor]",
)
@click.option(
    "--topic-config",
    "configs",
    type=_Config(),
    metavar="NAME=VALUE",
    multiple=True,
    help="A topic setting, such as cleanup.policy=compact; repeatable.",
)
@_dry_run_option
@_json_option
@connected
def create_command(
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    dry_run: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Create topics. A topic that exists is an error, and is not changed."""
    wanted = [
        NewTopic(
            name=topic,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(configs),
        )
        for topic in topics
    ]

    def create() -> tuple[str, ...]:
        return connection.run(lambda admin: admin.create_topics(wanted, validate_only=dry_run))

    _change("created", create, as_json, dry_run=dry_run)


@command.command("delete", short_help="Delete topics, with all their records.")
@_topics_argument
@yes_option
@_json_option
@connected
def delete_command(
    topics: tuple[str, ...], yes: bool, as_json: bool, connection: Connection
) -> None:
    """Delete topics, with all their records and the groups' committed offsets."""
    names = ", ".join(map(repr, dict.fromkeys(topics)))
    confirm_or_exit(f"Delete {names} with all records?", yes)

    def delete() -> tuple[str, ...]:
        return connection.run(lambda admin: admin.delete_topics(topics))

    _change("deleted", delete, as_json)


@command.command("add-partitions", short_help="Add partitions to topics.")
@_topics_argument
@click.option(
    "--to", "total", type=click.IntRange(1), metavar="N", required=True, help="The new total."
)
@_dry_run_option
@_json_option
@connected
def add_partitions_command(
    topics: tuple[str, ...], total: int, dry_run: bool, as_json: bool, connection: Connection
) -> None:
    """Add partitions to topics, up to N in total.

    Producers then assign keys to other partitions: the records of a key before and after the change
    may be in different partitions.
    """
    counts = dict.fromkeys(topics, total)

    def add() -> tuple[str, ...]:
        return connection.run(lambda admin: admin.add_partitions(counts, validate_only=dry_run))

    _change("changed", add, as_json, dry_run=dry_run)


def _change(
    done: str,
    change: Callable[[], Iterable[str]],
    as_json: bool,
    *,
    dry_run: bool = False,
) -> None:
    """Make a change, and print its result; `done` is the past participle for it: "created"."""
    names, errors = apply_changes(change)
    if as_json:
        print_json({done: names, "dry_run": dry_run, "errors": errors})
    else:
        for topic in names:
            print_line(f"{topic}: would be {done}" if dry_run else f"{topic}: {done}")
    exit_with(f"{topic}: not {done}: {error}" for topic, error in errors.items())


def _show(topic: TopicDescription) -> None:
    title = f"{topic.name}: {count(len(topic.partitions), 'partition')}"
    columns = ("partition", "leader", "replicas", "in sync", "offline")
    table = new_table(title, *columns, drop=("offline", "leader"))
    for one in topic.partitions:
        add_row(
            table,
            one.partition,
            None if one.leader is None else broker(one.leader),
            _ids(one.replicas),
            _ids(one.in_sync_replicas),
            _ids(one.offline_replicas),
        )
    console().print(table)


def _ids(nodes: tuple[int, ...]) -> str:
    return " ".join(map(str, nodes))


def _summary(topic: TopicDescription) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "internal": topic.internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


def _partition(one: PartitionDescription) -> dict[str, object]:
    return {
        "partition": one.partition,
        "leader": None if one.leader is None else broker_value(one.leader),
        "leader_epoch": one.leader_epoch,
        "replicas": list(one.replicas),
        "in_sync_replicas": list(one.in_sync_replicas),
        "offline_replicas": list(one.offline_replicas),
    }

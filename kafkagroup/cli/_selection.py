"""The partitions that a command selects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import click

from kafkagroup import TopicPartition
from kafkagroup.admin import Admin

__all__ = ["Selection", "selecting"]


@attrs.frozen
class Selection:
    """Topics, or some partitions of one topic. Without topics, all partitions that the command is
    about are selected."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    """Numbers of partitions of the only topic; empty for all partitions."""

    def __bool__(self) -> bool:
        return bool(self.topics)

    def __contains__(self, tp: TopicPartition) -> bool:
        """Whether the partition is selected, if it exists."""
        if self.topics and tp.topic not in self.topics:
            return False
        return not self.partitions or tp.partition in self.partitions

    async def resolve(self, admin: Admin) -> list[TopicPartition]:
        """Return the selected partitions; `topics` must not be empty. Given partition numbers are
        not checked. Raises: BrokerError for a topic that does not exist, if no partition numbers
        are given."""
        if self.partitions:
            return [TopicPartition(self.topics[0], number) for number in self.partitions]
        return [*await admin.partitions(self.topics)]


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--topic` and `--partition` to a command, which gets them as `selection`."""

    @click.option(
        "--topic", "topics", metavar="NAME", multiple=True, help="Only this topic; repeatable."
    )
    @click.option(
        "--partition",
        "numbers",
        metavar="N",
        type=click.IntRange(0),
        multiple=True,
        help="Only this partition of the one --topic; repeatable.",
    )
    @functools.wraps(command)
    def with_selection(
        *args: Any, topics: tuple[str, ...], numbers: tuple[int, ...], **rest: Any
    ) -> Any:
        topics, numbers = tuple(dict.fromkeys(topics)), tuple(dict.fromkeys(numbers))
        if numbers and len(topics) != 1:
            raise click.UsageError("--partition needs one --topic")
        return command(*args, selection=Selection(topics, numbers), **rest)

    return with_selection

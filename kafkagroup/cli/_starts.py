"""Where `consume` starts in each log, unless it starts at the committed offsets of a group."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import attrs
import click

from kafkagroup import Consumer, TopicPartition
from kafkagroup.cli._view import print_message
from kafkagroup.cli._when import duration, moment

__all__ = ["Start", "offset_or_end", "since"]

_ENDS = {"beginning": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}
"""The name of an end of the log in kcat or in Kafka's own tools -> its name in Kafka."""


@attrs.frozen
class Start:
    """The offset or the time to start at; at most one of them is set."""

    offset: int | str | None = None
    """An offset; a negative number for so many offsets before the log's end; "earliest" or
    "latest"."""
    at: datetime | None = None

    @property
    def is_given(self) -> bool:
        """Whether one of them is set."""
        return self.offset is not None or self.at is not None

    async def seek(self, consumer: Consumer) -> None:
        """Seek in all assigned partitions. An offset outside of a log is replaced by the log's
        nearest end; one that the user has given is then reported."""
        assigned = consumer.assignment()
        first = await consumer.beginning_offsets(assigned)
        end = await consumer.end_offsets(assigned)
        for tp, wanted in sorted((await self._wanted(consumer, first, end)).items()):
            offset = min(max(wanted, first[tp]), end[tp])
            # `0 <=`: only an offset that the user has given is reported, not one that is computed
            # from -N. In a log that ends at 0, the computed one equals the option: 0 - N.
            if offset != wanted and 0 <= wanted == self.offset:
                print_message(
                    f"warning: {tp} has the offsets {first[tp]} to {end[tp]}, not {wanted}:"
                    f" starting at {offset}"
                )
            consumer.seek(tp, offset)

    async def _wanted(
        self,
        consumer: Consumer,
        first: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        """Return the offset to start at in each partition, which may be outside of its log."""
        match self.offset:
            case "earliest":
                return first
            case "latest":
                return end
            case int(offset):
                return {tp: offset if offset >= 0 else last + offset for tp, last in end.items()}
        assert self.at is not None  # `consume` only seeks if one of the two is set
        stamp = round(self.at.timestamp() * 1000)  # in milliseconds, as Kafka's timestamps
        found = await consumer.offsets_for_times(dict.fromkeys(end, stamp))
        return {tp: end[tp] if one is None else one.offset for tp, one in found.items()}


def offset_or_end(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> int | str | None:
    """Parse an offset, or the name of an end of the log."""
    if value is None or value in _ENDS:
        return None if value is None else _ENDS[value]
    try:
        return int(value)
    except ValueError:
        message = f"{value!r} is not an offset, such as 42 or -10, and not earliest or latest"
        raise click.BadParameter(message, ctx, param) from None


def since(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Parse a duration before now, or a time."""
    if value is None:
        return None
    if value[:4].isdecimal() and "-" in value:  # begins with a year
        return moment(ctx, param, value)
    before = duration(ctx, param, value)
    assert before is not None  # as value is not None
    try:
        return datetime.now(UTC) - before
    except OverflowError:
        raise click.BadParameter(f"{value!r} is too long ago", ctx, param) from None

"""Logs what happens to the membership of one client: one line for each event.

Each line begins with the client: its kind, its client id and its group. Nothing is formatted for a
line that is not written, and a line names the first few of what it counts: a member may be assigned
100,000 partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from kafkagroup._client_name import client_name
from kafkagroup._text import escaped

if TYPE_CHECKING:
    from kafkagroup.member.vocabulary import Coordinator, GenerationInfo
    from kafkagroup.types import TopicPartition

__all__ = ["MembershipLog", "counted", "first_few"]

logger = logging.getLogger(__name__)

_SHOWN = 5
"""How many partitions or shards a line names."""

_JOINS = frozenset(
    (
        ("joining", "computing"),
        ("joining", "syncing"),
        ("joining", "member"),
        ("registering", "member"),
    )
)
"""The moves of a member, of any protocol, by which it has joined: phase before, phase after."""


def first_few(values: Iterable[object], count: int) -> str:
    """Return the first few of `count` values, and how many more there are."""
    shown = escaped(", ".join(map(str, islice(values, _SHOWN))))
    left = count - _SHOWN
    return f"{shown} and {left:,} more" if left > 0 else shown


def counted(count: int, name: str) -> str:
    """Return a number of things in words: "no partitions", "1 partition", "2,000 partitions"."""
    return f"{count:,} {name}" + "s" * (count != 1) if count else f"no {name}s"


def _bytes_of(generation: GenerationInfo) -> tuple[str, bool]:
    size = len(generation.assignment)
    return counted(size, "byte"), bool(size)


class MembershipLog:
    """The log lines of one client's memberships. Any thread may call it."""

    def __init__(self, kind: str, client_id: str | None, group_id: str | None) -> None:
        """`kind`: what the application calls the client, such as "consumer"."""
        self.name = client_name(kind, client_id, group_id)
        """How lines name the client."""
        self.describe: Callable[[GenerationInfo], tuple[str, bool]] = _bytes_of
        """Returns in words what a leader assigned to this member, and whether that is anything.
        Only the `generation_*` methods call it: the lines of a consumer name partitions."""
        self._coordinator: Coordinator | None = None
        """The coordinator that was found last."""
        self._is_member = False
        """Whether the member has joined, and not left or failed since."""
        self._held: GenerationInfo | None = None
        """The generation that `generation_assigned` logged last, until it ends."""

    def describe_as(
        self, name: str, describe: Callable[[GenerationInfo], tuple[str, bool]]
    ) -> None:
        """Replace `name`, by which lines name the client, and `describe`."""
        self.name, self.describe = name, describe

    # ------------------------------------------------------------ the member

    def on_step(self, before: Any, after: Any) -> None:
        """Log what one step of a member, of any protocol, has changed."""
        found = getattr(after, "coordinator", None)
        if found is not None and found != self._coordinator:
            self._coordinator_found(found)
        if after.phase is not before.phase:
            move = before.phase.value, after.phase.value
            logger.debug("%s: %s -> %s", self.name, *move)
            if move in _JOINS:
                self._is_member = True
                self._joined(after)

    def _coordinator_found(self, found: Coordinator) -> None:
        before, self._coordinator = self._coordinator, found
        if before is not None:
            moved = _address(before), _address(found)
            logger.info("%s: the coordinator moved from %s to %s", self.name, *moved)

    def _joined(self, member: Any) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        words = "joined"
        if member.generation_id >= 0:  # -1 in ZooKeeper, until the list of members was read
            is_epoch = member.phase.value == "member"
            words += f" {'epoch' if is_epoch else 'generation'} {member.generation_id}"
        words += f" as {escaped(member.member_id)}"
        if member.phase.value == "computing":
            words += f", the leader of {counted(len(member.members), 'member')}"
        if (found := getattr(member, "coordinator", None)) is not None:
            words += f"; coordinator: {_address(found)}"
        logger.info("%s: %s", self.name, words)

    def left(self, reason: str, *, keeps_place: bool = False, doubt: str = "") -> None:
        """Log that the membership has ended. `keeps_place`: the member has not left at the
        coordinator, which waits for it. `doubt`: why the coordinator may still count a member that
        was to leave; "" if it does not."""
        was_member, self._is_member = self._is_member, False
        if doubt:
            logger.warning(
                "%s: the coordinator may still count this member, for up to one session, because"
                " leaving the group failed: %s",
                self.name,
                doubt,
            )
        elif was_member:
            left = "left the group"
            if keeps_place:
                left = "stopped, and the group waits for it for up to one session"
            logger.info("%s: %s: %s", self.name, left, escaped(reason))

    # ------------------------------------------------------------ partitions

    def assigned(
        self,
        partitions: Sequence[TopicPartition],
        new: Sequence[TopicPartition],
        generation: GenerationInfo,
    ) -> None:
        """Log an assignment, and which of its partitions were not owned before."""
        if not logger.isEnabledFor(logging.INFO):
            return
        count, new_count = len(partitions), len(new)
        words = counted(count, "partition")
        if new_count < count:
            words = f"{counted(new_count, 'new partition')}, {count:,} in all"
        if new:
            words += f": {first_few(new, new_count)}"
        elif partitions:
            words += f": {first_few(partitions, count)}"
        kind = "generation" if generation.topics is None else "epoch"
        logger.info("%s: assigned %s (%s %d)", self.name, words, kind, generation.generation_id)

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Log that partitions were released for other members, or to leave."""
        count = len(partitions)
        if count and logger.isEnabledFor(logging.INFO):
            words = f"{counted(count, 'partition')}: {first_few(partitions, count)}"
            logger.info("%s: revoked %s", self.name, words)

    def lost(self, partitions: Collection[TopicPartition], reason: str) -> None:
        """Log that the membership was lost, with all partitions."""
        words, count = "its membership, without partitions", len(partitions)
        if count:
            words = f"{counted(count, 'partition')} ({first_few(partitions, count)})"
        self._lost(words, reason)

    # ------------------------------------------------------------ what a leader assigned

    def generation_assigned(self, generation: GenerationInfo) -> None:
        """Log what the leader of a generation assigned."""
        self._held = generation
        if logger.isEnabledFor(logging.INFO):
            words, _ = self.describe(generation)
            logger.info(
                "%s: assigned %s (generation %d)", self.name, words, generation.generation_id
            )

    def generation_revoked(self) -> None:
        """Log that what was assigned was released."""
        held, self._held = self._held, None
        if held is not None and logger.isEnabledFor(logging.INFO):
            words, is_anything = self.describe(held)
            if is_anything:
                logger.info("%s: revoked %s", self.name, words)

    def generation_lost(self, reason: str) -> None:
        """Log that the membership was lost, with what was assigned."""
        held, self._held = self._held, None
        words, is_anything = ("", False) if held is None else self.describe(held)
        self._lost(words if is_anything else "its membership", reason)

    # ------------------------------------------------------------ helpers

    def _lost(self, what: str, reason: str) -> None:
        logger.warning("%s: lost %s: %s", self.name, what, escaped(reason))


def _address(coordinator: Coordinator) -> str:
    host = escaped(coordinator.host)
    return f"broker {coordinator.node_id} at {host}:{coordinator.port}"

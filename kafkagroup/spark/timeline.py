"""The timeline of one group, from its records in their order: rebalances and ownership. Pure.

A timeline may begin with the state after earlier records: then it has only what the new records
have changed, and what a later record may still change.

Times are microseconds since the epoch. The broker does not record everything: of a classic group,
the records show when all members had joined and when they had their assignments, but not when the
rebalance began. They never show why a member left.

A static member that restarts gets another member id. It is the same owner: the owner of a partition
is the instance id, or without one the member id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import attrs

__all__ = ["Member", "OwnershipSpan", "Rebalance", "State", "Timeline", "timeline_of"]

_STABLE = 0
"""The state of a member of a consumer or share group that has reached its target assignment."""

_Partition = tuple[str | None, str | None, int]
"""Topic name, topic id, partition number; the name or the id may be unknown."""


@attrs.define(kw_only=True)
class Rebalance:
    """The rebalance that led to a generation or epoch."""

    generation: int
    kind: str
    """The group's type: "classic", "consumer" or "share"."""
    cause: str
    """Text, such as "2 joined, 1 left"."""
    started: int
    ended: int | None = None
    """None if it has not ended, or if the next rebalance began before."""
    members: int = 0
    """The number of members in the generation or epoch."""
    moved: int = 0
    """The number of partitions whose last owner, even one that has left since, was another member.
    A partition that never had an owner does not count."""


@attrs.define(kw_only=True)
class OwnershipSpan:
    """The time for which a member owns a partition within one generation."""

    member_id: str
    instance_id: str | None
    client_id: str | None
    topic: str | None
    topic_id: str | None
    partition: int
    generation: int
    started: int
    ended: int | None = None
    """None if the member still owns it."""


@attrs.define(kw_only=True)
class Member:
    """A member of the group at the end of the timeline."""

    member_id: str
    instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    epoch: int = -1
    """In a classic group, the generation; -1 before the member's first assignment."""
    state: int | None = None
    """The state in the member's assignment record; None in a classic group."""
    partitions: int = 0
    """The number of partitions that the member owns."""
    since: int = 0
    """The time of the member's first record."""

    @property
    def owner(self) -> str:
        """The id by which the member owns partitions."""
        return _owner(self.member_id, self.instance_id)


@attrs.frozen(kw_only=True)
class State:
    """The state of a group after its last record, from which the timeline of later records
    continues."""

    generation: int | None
    """None before the first one, and after the group was deleted or has changed its type."""
    changes: Mapping[str, Iterable[str]]
    """The changes of members since the last epoch of a consumer or share group: "joined", "left" or
    "subscribed anew" -> the owners that did so."""
    members: Sequence[Member]
    last_owners: Mapping[_Partition, str]
    """Partition -> the id by which its last owner owned it."""
    rebalance: Rebalance | None
    """The last rebalance, which later records may end."""
    ownership: Sequence[OwnershipSpan]
    """The spans that have not ended."""


@attrs.define
class Timeline:
    """The rebalances, ownership and members of one group."""

    rebalances: list[Rebalance] = attrs.field(factory=list)
    """Only the last one may still change."""
    ownership: list[OwnershipSpan] = attrs.field(factory=list)
    """A timeline that continues from a state has, of the earlier spans, only those that had not
    ended."""
    members: dict[str, Member] = attrs.field(factory=dict)
    """Member id -> member."""
    _owned: dict[str, dict[_Partition, OwnershipSpan]] = attrs.field(factory=dict)
    """Member id -> what it owns now."""
    _last_owners: dict[_Partition, str] = attrs.field(factory=dict)
    """Partition -> the id by which its last owner owned it."""
    _generation: int | None = None
    """The number of the current generation or epoch, as in `State`."""
    _changes: dict[str, set[str]] = attrs.field(factory=dict)
    """The changes of members since the last epoch, as in `State`."""

    @classmethod
    def after(cls, state: State) -> Timeline:
        """Return the timeline that continues from a state."""
        spans = list(state.ownership)
        owned: dict[str, dict[_Partition, OwnershipSpan]] = {}
        for span in spans:
            owned.setdefault(span.member_id, {})[span.topic, span.topic_id, span.partition] = span
        return cls(
            rebalances=[] if state.rebalance is None else [state.rebalance],
            ownership=spans,
            members={member.member_id: member for member in state.members},
            owned=owned,
            last_owners=dict(state.last_owners),
            generation=state.generation,
            changes={word: set(owners) for word, owners in state.changes.items()},
        )

    @property
    def state(self) -> State:
        """The state from which the timeline of later records continues."""
        return State(
            generation=self._generation,
            changes=self._changes,
            members=list(self.members.values()),
            last_owners=self._last_owners,
            rebalance=self.rebalances[-1] if self.rebalances else None,
            ownership=[span for span in self.ownership if span.ended is None],
        )

    # ------------------------------------------------------------ classic groups

    def apply_generation(self, record: Mapping[str, Any]) -> None:
        """Apply a record of a classic group, which has the generation and all its members."""
        time = record["time"]
        if record["removed"] or record["generation"] is None:
            self._end(time)
            return
        found = {m["member_id"]: m for m in record["members"] or ()}
        if (number := record["generation"]) != self._generation:
            rebalance = Rebalance(
                generation=number,
                kind="classic",
                cause=self._cause_of({_owner(m, found[m]["instance_id"]) for m in found}),
                started=min(record["state_time"] or time, time),
                ended=time,
                members=len(found),
            )
            self.rebalances.append(rebalance)
            self._generation = number
        for member in self.members.keys() - found.keys():
            self._set_owned(member, set(), time)
            del self.members[member]
        # All members release first: otherwise a partition would have two owners for a moment.
        wanted = {member: _partitions(fields["assigned"]) for member, fields in found.items()}
        for member, partitions in wanted.items():
            self._update_member(member, found[member], time)
            self.members[member].epoch = number
            self._set_owned(member, partitions & self._owned.get(member, {}).keys(), time)
        for member, partitions in wanted.items():
            self._set_owned(member, partitions, time)

    def _cause_of(self, now: Set[str]) -> str:
        """Return the cause of a classic group's new generation, whose members have the ids `now` as
        owners."""
        if self._generation is None:
            return "first seen"
        if not now:
            return "all left"
        before = {member.owner for member in self.members.values()}
        return _cause({"joined": now - before, "left": before - now}) or "members joined again"

    # ------------------------------------------------------------ consumer and share groups

    def apply_epoch(self, record: Mapping[str, Any]) -> None:
        """Apply a record with a new epoch of the group."""
        time = record["time"]
        if record["removed"]:
            self._end(time)
            return
        is_first = self._generation is None
        self._generation = record["generation"]
        cause = _cause(self._changes)
        if not cause:
            cause = "first seen" if is_first else "topics or assignor changed"
        self._changes = {}
        self.rebalances.append(
            Rebalance(
                generation=record["generation"],
                kind=record["kind"],
                cause=cause if self.members or is_first else "all left",
                started=time,
                members=len(self.members),
            )
        )
        self._end_if_reached(time)

    def apply_member(self, record: Mapping[str, Any]) -> None:
        """Apply a record of a member that joined, changed its subscription or left."""
        for found in record["members"] or ():
            member = found["member_id"]
            if not record["removed"]:
                word = "subscribed anew" if member in self.members else "joined"
                self._update_member(member, found, record["time"])
                owner = self.members[member].owner
                if owner in (left := self._changes.get("left", set())):
                    # A static member that has another member id now has neither left nor joined.
                    left.discard(owner)
                    continue
            else:
                word = "left"
                self._set_owned(member, set(), record["time"])
                known = self.members.pop(member, None)
                owner = member if known is None else known.owner
            self._changes.setdefault(word, set()).add(owner)

    def apply_assignment(self, record: Mapping[str, Any]) -> None:
        """Apply a record of a member's current assignment."""
        time = record["time"]
        for found in record["members"] or ():
            if record["removed"]:
                self._set_owned(found["member_id"], set(), time)
                continue
            self._update_member(found["member_id"], found, time)
            known = self.members[found["member_id"]]
            known.epoch, known.state = found["epoch"], found["state"]
            self._set_owned(found["member_id"], _partitions(found["assigned"]), time)
        self._end_if_reached(time)

    def _end_if_reached(self, time: int) -> None:
        """End the last rebalance if all members have reached its epoch and their targets."""
        if not self.rebalances or self.rebalances[-1].ended is not None:
            return
        last = self.rebalances[-1]
        if all(m.epoch >= last.generation and m.state == _STABLE for m in self.members.values()):
            last.ended = time

    # ------------------------------------------------------------ both

    def _update_member(self, member: str, found: Mapping[str, Any], time: int) -> None:
        known = self.members.setdefault(member, Member(member_id=member, since=time))
        for name in ("instance_id", "client_id", "client_host"):
            if found[name] is not None:  # records of assignments do not have these fields
                setattr(known, name, found[name])

    def _set_owned(self, member: str, partitions: Set[_Partition], time: int) -> None:
        """Set the partitions that a member owns from this time on. The spans of an earlier
        generation end, and the member owns their partitions in new spans."""
        generation = -1 if self._generation is None else self._generation
        held = self._owned.setdefault(member, {})
        known = self.members.get(member)
        for partition, span in list(held.items()):
            if partition not in partitions or span.generation != generation:
                span.ended = time
                del held[partition]
        if known is None:
            return  # it has left, and owns nothing
        # As text: None and a name, or None and an id, cannot be compared.
        for partition in sorted(partitions - held.keys(), key=str):
            topic, topic_id, number = partition
            held[partition] = OwnershipSpan(
                member_id=member,
                instance_id=known.instance_id,
                client_id=known.client_id,
                topic=topic,
                topic_id=topic_id,
                partition=number,
                generation=generation,
                started=time,
            )
            self.ownership.append(held[partition])
            if self._last_owners.get(partition, known.owner) != known.owner and self.rebalances:
                self.rebalances[-1].moved += 1
            self._last_owners[partition] = known.owner
        known.partitions = len(partitions)

    def _end(self, time: int) -> None:
        """End the ownership of all members: the group was deleted or has changed its type."""
        for member in list(self.members):
            self._set_owned(member, set(), time)
        self.members, self._generation, self._changes = {}, None, {}


def timeline_of(records: Iterable[Mapping[str, Any]], before: State | None = None) -> Timeline:
    """Return the timeline of a group from its `records`, which are in the order of the log.
    `before`: the state of the group before them; None if they are the first.

    A record has `record`, `kind`, `removed`, `time`, `generation`, `state_time` and `members`, as
    events have them. Only records of generations, members and assignments have an effect.
    """
    timeline = Timeline() if before is None else Timeline.after(before)
    for record in records:
        match record["record"]:
            case "GroupMetadata":
                timeline.apply_generation(record)
            case "ConsumerGroupMetadata" | "ShareGroupMetadata":
                timeline.apply_epoch(record)
            case "ConsumerGroupMemberMetadata" | "ShareGroupMemberMetadata":
                timeline.apply_member(record)
            case "ConsumerGroupCurrentMemberAssignment" | "ShareGroupCurrentMemberAssignment":
                timeline.apply_assignment(record)
    return timeline


def _owner(member_id: str, instance_id: str | None) -> str:
    return member_id if instance_id is None else instance_id


def _partitions(assigned: Iterable[Mapping[str, Any]] | None) -> set[_Partition]:
    return {(found["topic"], found["topic_id"], found["partition"]) for found in assigned or ()}


def _cause(changes: Mapping[str, Set[str]]) -> str:
    """Return the changes as text, such as "2 joined, 1 left"."""
    return ", ".join(f"{len(who)} {word}" for word, who in sorted(changes.items()) if who)

"""The life of one group, told by its records in their order: rebalances, and who had what. Pure.

Times are microseconds since the epoch. What the broker does not write down is not made up: of a
classic group it tells when all members had joined and when they had their assignments, not when
the first was asked to join again; why a member is gone, it does not tell at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import attrs

__all__ = ["Life", "Member", "Rebalance", "Tenure", "live"]

_SETTLED = 0
"""State of a member of a newer group that has nothing to give back, or to wait for."""

_Partition = tuple[str | None, str | None, int]
"""Topic, its id, number: one of the first two may not be known."""


@attrs.define(kw_only=True)
class Rebalance:
    """How a group came to a generation, or epoch."""

    generation: int
    kind: str
    cause: str
    started: int
    ended: int | None = None
    """None for one that goes on, or was overtaken by the next."""
    members: int = 0
    moved: int = 0
    """Partitions that another member had before, as far as anybody had them."""


@attrs.define(kw_only=True)
class Tenure:
    """A member's time with a partition, within one generation."""

    member_id: str
    client_id: str | None
    topic: str | None
    topic_id: str | None
    partition: int
    generation: int
    started: int
    ended: int | None = None
    """None for who has it still."""


@attrs.define(kw_only=True)
class Member:
    """Who is in the group in the end."""

    member_id: str
    instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    epoch: int = -1
    state: int | None = None
    partitions: int = 0
    since: int = 0


@attrs.define
class Life:
    """What the records of one group come to."""

    rebalances: list[Rebalance] = attrs.field(factory=list)
    tenures: list[Tenure] = attrs.field(factory=list)
    members: dict[str, Member] = attrs.field(factory=dict)
    """By id."""
    _held: dict[str, dict[_Partition, Tenure]] = attrs.field(factory=dict)
    """By member."""
    _last_owner: dict[_Partition, str] = attrs.field(factory=dict)
    _generation: int | None = None
    _news: dict[str, set[str]] = attrs.field(factory=dict)
    """What happened to members since the last epoch: word -> their ids."""

    # ------------------------------------------------------------ classic groups

    def classic(self, record: Mapping[str, Any]) -> None:
        """A whole generation is in one record."""
        time = record["time"]
        told = {} if record["removed"] else {m["member_id"]: m for m in record["members"] or ()}
        if record["removed"] or record["generation"] is None:
            self._end(time)
            return
        if (number := record["generation"]) != self._generation:
            rebalance = Rebalance(
                generation=number,
                kind="classic",
                cause=self._why(told.keys()),
                started=min(record["state_time"] or time, time),
                ended=time,
                members=len(told),
            )
            self.rebalances.append(rebalance)
            self._generation = number
        for member in self.members.keys() - told.keys():
            self._hold(member, set(), time)
            del self.members[member]
        # First all let go, then all take up: else a partition had two owners for a moment.
        wanted = {member: _partitions(of["assigned"]) for member, of in told.items()}
        for member, partitions in wanted.items():
            self._meet(member, told[member], time)
            self.members[member].epoch = number
            self._hold(member, partitions & self._held.get(member, {}).keys(), time)
        for member, partitions in wanted.items():
            self._hold(member, partitions, time)

    def _why(self, now: Set[str]) -> str:
        if self._generation is None:
            return "first seen"
        if not now:
            return "all left"
        before = self.members.keys()
        return _cause({"joined": now - before, "left": before - now}) or "members joined again"

    # ------------------------------------------------------------ consumer and share groups

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The group has a new epoch."""
        time = record["time"]
        if record["removed"]:
            self._end(time)
            return
        first = self._generation is None
        self._generation = record["generation"]
        cause = _cause(self._news)
        if not cause:
            cause = "first seen" if first else "topics or assignor changed"
        self._news = {}
        self.rebalances.append(
            Rebalance(
                generation=record["generation"],
                kind=record["kind"],
                cause=cause if self.members or first else "all left",
                started=time,
                members=len(self.members),
            )
        )
        self._settle(time)

    def member(self, record: Mapping[str, Any]) -> None:
        """A member is there, is another, or is gone."""
        for of in record["members"] or ():
            member = of["member_id"]
            if not record["removed"]:
                word = "subscribed anew" if member in self.members else "joined"
                self._meet(member, of, record["time"])
            else:
                word = "left"
                self._hold(member, set(), record["time"])
                self.members.pop(member, None)
            self._news.setdefault(word, set()).add(member)

    def current(self, record: Mapping[str, Any]) -> None:
        """What a member has now."""
        time = record["time"]
        for of in record["members"] or ():
            if record["removed"]:
                self._hold(of["member_id"], set(), time)
                continue
            self._meet(of["member_id"], of, time)
            known = self.members[of["member_id"]]
            known.epoch, known.state = of["epoch"], of["state"]
            self._hold(of["member_id"], _partitions(of["assigned"]), time)
        self._settle(time)

    def _settle(self, time: int) -> None:
        """The last rebalance is over once all members are where the group is."""
        if not self.rebalances or self.rebalances[-1].ended is not None:
            return
        last = self.rebalances[-1]
        if all(m.epoch >= last.generation and m.state == _SETTLED for m in self.members.values()):
            last.ended = time

    # ------------------------------------------------------------ both

    def _meet(self, member: str, told: Mapping[str, Any], time: int) -> None:
        known = self.members.setdefault(member, Member(member_id=member, since=time))
        for name in ("instance_id", "client_id", "client_host"):
            if told[name] is not None:
                setattr(known, name, told[name])

    def _hold(self, member: str, partitions: Set[_Partition], time: int) -> None:
        """From now on a member has these."""
        generation = -1 if self._generation is None else self._generation
        held = self._held.setdefault(member, {})
        for partition, tenure in list(held.items()):
            if partition not in partitions or tenure.generation != generation:
                tenure.ended = time
                del held[partition]
        for partition in sorted(partitions - held.keys(), key=str):
            topic, topic_id, number = partition
            held[partition] = Tenure(
                member_id=member,
                client_id=self.members[member].client_id,
                topic=topic,
                topic_id=topic_id,
                partition=number,
                generation=generation,
                started=time,
            )
            self.tenures.append(held[partition])
            if self._last_owner.get(partition, member) != member and self.rebalances:
                self.rebalances[-1].moved += 1
            self._last_owner[partition] = member
        if member in self.members:
            self.members[member].partitions = len(partitions)

    def _end(self, time: int) -> None:
        """The group is forgotten, or is of another kind from now on."""
        for member in list(self.members):
            self._hold(member, set(), time)
        self.members, self._generation, self._news = {}, None, {}


def live(records: Iterable[Mapping[str, Any]]) -> Life:
    """The life that a group's records tell of, in the order of the log.

    A record has `record`, `kind`, `removed`, `time`, `generation`, `state_time` and `members`, as
    events have them. Others than those of generations, members and assignments change nothing.
    """
    life = Life()
    for record in records:
        match record["record"]:
            case "GroupMetadata":
                life.classic(record)
            case "ConsumerGroupMetadata" | "ShareGroupMetadata":
                life.epoch(record)
            case "ConsumerGroupMemberMetadata" | "ShareGroupMemberMetadata":
                life.member(record)
            case "ConsumerGroupCurrentMemberAssignment" | "ShareGroupCurrentMemberAssignment":
                life.current(record)
    return life


def _partitions(assigned: Iterable[Mapping[str, Any]] | None) -> set[_Partition]:
    return {(of["topic"], of["topic_id"], of["partition"]) for of in assigned or ()}


def _cause(news: Mapping[str, Set[str]]) -> str:
    """ "2 joined, 1 left"."""
    return ", ".join(f"{len(who)} {word}" for word, who in sorted(news.items()) if who)

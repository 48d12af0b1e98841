"""ZooKeeper sessions without faults, for tests in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import anyio
import pytest

from kafkagroup.concurrency.clock import lease_clock
from kafkagroup.member.zookeeper_nodes import MemberNode
from kafkagroup.member.zookeeper_vocabulary import (
    Claim,
    Claimed,
    Confirm,
    Confirmed,
    MembersChanged,
    MembersRead,
    ReadMembers,
    Register,
    Registered,
    Release,
    Released,
    RequestFailed,
    SessionClosed,
    SessionEstablished,
    SessionExpired,
)
from kafkagroup.zookeeper import driver as drivers

SESSION = 10.0
"""Seconds."""


class FakeSession:
    """A session in which every request of its member succeeds once it has begun."""

    def __init__(
        self, number: int, *_: object, on_event: Callable[[object], None], **__: object
    ) -> None:
        self.number = number
        self.begins_at_once = False
        self.connect_error = ""
        self.refusal: Exception | None = None
        """What comes of all that is asked."""
        self.on_event = on_event
        self.nodes: tuple[MemberNode, ...] = ()
        self.version = 1
        self.away_until = 0.0
        """Until when requests to the ensemble's leader are not answered."""
        self.claims: set[str] = set()
        self.closed = False

    def open(self) -> None:
        if self.begins_at_once:
            self.begin()

    def begin(self) -> None:
        """Begin the session, as ZooKeeper does."""
        self.say(SessionEstablished, session=self.number, timeout=SESSION)

    def expire(self) -> None:
        """End the session, as ZooKeeper does."""
        self.say(SessionExpired, session=self.number)

    def join(self, member_id: str) -> None:
        """Add another member with the same protocols."""
        mine = self.nodes[0]
        self.nodes = (mine, MemberNode(member_id, 2, mine.data))
        self.version += 1
        self.say(MembersChanged, session=self.number)

    def say(self, event: Callable[..., object], **fields: object) -> None:
        self.on_event(event(now=lease_clock().now(), **fields))

    def close(self) -> None:
        self.closed = True
        self.away_until = 0.0
        self.say(SessionClosed, session=self.number)

    async def execute(self, request: Any) -> None:
        response = partial(self.say, token=request.token)
        if self.refusal is not None:
            response(RequestFailed, error=self.refusal)
            return
        match request:
            case Register(member_id=member_id, data=data):
                self.nodes = (MemberNode(member_id, 1, data),)
                self.version += 1
                response(Registered)
            case ReadMembers():
                response(MembersRead, version=self.version, nodes=self.nodes)
            case Confirm():
                await anyio.sleep_until(self.away_until)
                response(Confirmed, version=self.version)
            case Claim(units=units):
                self.claims |= units
                response(Claimed, granted=units)
            case Release(units=units):
                self.claims -= units
                response(Released)

    async def holds(self, units: Iterable[str]) -> Mapping[str, bool]:
        await anyio.sleep_until(self.away_until)
        return {} if self.closed else {unit: unit in self.claims for unit in units}


def fake_sessions(
    monkeypatch: pytest.MonkeyPatch, *, begin_at_once: bool = False
) -> list[FakeSession]:
    """Let drivers use such sessions; return those that were opened."""
    begun: list[FakeSession] = []

    def session(*args: Any, **options: Any) -> FakeSession:
        begun.append(FakeSession(*args, **options))
        begun[-1].begins_at_once = begin_at_once
        return begun[-1]

    monkeypatch.setattr(drivers, "Session", session)
    return begun

"""The driver of groups in ZooKeeper, over sessions that answer at once, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.member.zookeeper_nodes import MemberNode, Paths
from kafkagroup.member.zookeeper_state import Config, Member
from kafkagroup.member.zookeeper_vocabulary import (
    Claim,
    Claimed,
    Confirm,
    Confirmed,
    MembersRead,
    ReadMembers,
    Register,
    Registered,
    Release,
    Released,
    SessionClosed,
    SessionEstablished,
    SessionExpired,
)
from kafkagroup.net.driver import Offer
from kafkagroup.net.lag import LoopLag
from kafkagroup.types import TopicPartition
from kafkagroup.wire.group_log import encode_assignment
from kafkagroup.zookeeper import driver as drivers
from kafkagroup.zookeeper.driver import ZooKeeperDriver

pytestmark = pytest.mark.anyio

SESSION = 10.0
EVERYTHING = encode_assignment([TopicPartition("t", 0)])


class Kindly:
    """A session in which all goes well, once it has begun."""

    def __init__(
        self, number: int, *_: object, hear: Callable[[object], None], **__: object
    ) -> None:
        self.number = number
        self.hear = hear
        self.nodes: tuple[MemberNode, ...] = ()

    def open(self) -> None:
        pass

    def say(self, event: Callable[..., object], **fields: object) -> None:
        self.hear(event(now=anyio.current_time(), **fields))

    def close(self) -> None:
        self.say(SessionClosed, session=self.number)

    async def ask(self, ask: Any) -> None:
        answer = partial(self.say, token=ask.token)
        match ask:
            case Register(member_id=member_id, data=data):
                self.nodes = (MemberNode(member_id, 1, data),)
                answer(Registered)
            case ReadMembers():
                answer(MembersRead, version=1, nodes=self.nodes)
            case Confirm():
                answer(Confirmed, version=1)
            case Claim(units=units):
                answer(Claimed, granted=units)
            case Release():
                answer(Released)


class Stuck:
    """An application that took up its partitions, and never came back."""

    def __init__(self) -> None:
        self.left = anyio.current_time()
        self.owns = False
        self.story: list[tuple[str, float]] = []

    def ending(self, *, lost: bool) -> None:
        self.owns = False

    def alive(self) -> None:
        pass

    def failed(self, error: Exception) -> None:
        raise error

    def poll_due(self, ran: float) -> float:
        return (self.left if self.owns else ran) + 20.0

    async def revoke(self, deadline: float) -> Offer | None:
        return None

    async def lose(self, reason: str) -> Offer | None:
        self.story.append(("lost", anyio.current_time()))
        return None

    async def assign(self, generation: GenerationInfo) -> None:
        self.owns = True
        self.story.append(("assigned", anyio.current_time()))

    async def compute(self, work: Compute) -> Mapping[str, bytes]:
        return dict.fromkeys(work.members, EVERYTHING)


async def test_who_is_stuck_leaves_as_soon_as_it_owns_something_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When its poll was due it owned nothing; it once kept what it got then for another
    interval."""
    sessions: list[Kindly] = []

    def session(*args: Any, **options: Any) -> Kindly:
        sessions.append(Kindly(*args, **options))
        return sessions[-1]

    monkeypatch.setattr(drivers, "Session", session)
    application = Stuck()
    config = Config(group_id="g", protocol_type="consumer", name="me", session_timeout=SESSION)
    member = Member(config=config, protocols=(("range", b""),))
    lag = LoopLag("g", SESSION, threaded=False)
    driver = ZooKeeperDriver("zk:2181", Paths("/r", "g"), member, application, lag)
    with anyio.fail_after(90):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.run)
            await anyio.sleep(1)
            sessions[0].say(SessionEstablished, session=1, timeout=SESSION)
            await anyio.sleep(15)
            sessions[0].say(SessionExpired, session=1)
            await anyio.sleep(10)
            sessions[1].say(SessionEstablished, session=2, timeout=SESSION)
            await driver.out.wait()
    assert [(what, round(at)) for what, at in application.story] == [
        ("assigned", 1),
        ("lost", 16),
        ("assigned", 26),
        ("lost", 26),
    ]
    assert driver.expelled

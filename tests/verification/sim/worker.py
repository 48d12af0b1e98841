"""One run of one process that consumes nothing: a group member that works on its shards.

The member is the product's, unmodified, with a minimal protocol. Shards are recorded as partitions
of a topic that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio

from kafkagroup import GroupMember, GroupProtocol, TopicPartition
from kafkagroup.group import Generation

from .events import Assigned, Joined, Opening, Partitions, Revoked, Revoking, Worked
from .process import CLOSE_TIMEOUT, Process
from .schedule import GROUP, PlannedAction

__all__ = ["TOPIC", "Worker", "deal", "decode_share"]

TOPIC = "shard"

_PIECE = 0.25
"""Seconds between two pieces of work."""

_TIMEOUT = 30.0
"""Seconds after which the application cancels a call, and calls again."""

_LONGEST = 2.0
"""Maximum seconds that it takes to end its work."""


def deal(shards: int, members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return each member's shards: dealt one by one, in the order of member ids."""
    order = sorted(members)
    return {
        member: ",".join(map(str, range(place, shards, len(order)))).encode()
        for place, member in enumerate(order)
    }


def decode_share(share: bytes) -> Partitions:
    """Return the shards of an assignment."""
    return tuple(TopicPartition(TOPIC, int(number)) for number in share.split(b",") if number)


class Worker(Process):
    """A process that owns shards until it is stopped, fails, or is cancelled."""

    def _make_client(self, servers: str) -> AbstractAsyncContextManager[object]:
        plan = self.plan
        self._working = False
        self._lingers = 0.0
        self._member = GroupMember(
            GROUP,
            GroupProtocol("shards", "deal", b"", partial(deal, plan.shards)),
            bootstrap_servers=servers,
            security=self._security,
            client_id=self.name,
            group_instance_id=plan.instance,
            session_timeout_ms=int(plan.session * 1000),
            heartbeat_interval_ms=int(plan.heartbeat * 1000),
            rebalance_timeout_ms=int(plan.rebalance * 1000),
            request_timeout_ms=int(plan.request_timeout * 1000),
            close_timeout=CLOSE_TIMEOUT,
        )
        return self._member

    def is_behind(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it waits for an assignment."""
        return not self._working

    def _open(self) -> None:
        plan = self.plan
        self._record_event(
            Opening,
            shards=True,
            auto_commit=False,
            instance=plan.instance,
            session_timeout=plan.session,
            rebalance_timeout=plan.rebalance,
            heartbeat_interval=plan.heartbeat,
            max_poll_interval=float("inf"),
            close_timeout=CLOSE_TIMEOUT,
        )

    async def _consume(self) -> None:
        while not self._stopping:
            if self._orders:
                await self._obey(self._orders.pop(0))
                continue
            generation = await self._within(self._member.__anext__, _TIMEOUT)
            if generation is not None:
                await self._work_in(generation)

    async def _work_in(self, generation: Generation) -> None:
        share = decode_share(generation.assignment)
        number = generation.generation_id
        self._record_event(Joined, member_id=generation.member_id, generation=number)
        self._record_event(Assigned, partitions=share, generation=number)
        self._working = True
        try:
            while not (generation.over.is_set() or self._stopping):
                if self._orders:
                    await self._obey(self._orders.pop(0))
                    continue
                with generation.scope() as scope:
                    self._call = scope
                    await self._work_on(share)
                self._call_ended()
                if anyio.current_time() >= generation.lease_expires_at:
                    break
        finally:
            self._call_ended()
            self._working = False
            self._record_event(Revoking, partitions=share)
            try:
                await self._dwell()
            finally:
                self._record_event(Revoked, partitions=share)

    async def _work_on(self, share: Partitions) -> None:
        while True:
            for shard in share:
                self._record_event(Worked, partition=shard)
            await anyio.sleep(_PIECE)

    async def _dwell(self) -> None:
        lingers, self._lingers = self._lingers, 0.0
        await anyio.sleep(lingers)
        await super()._dwell()

    # ------------------------------------------------------------ orders

    async def _do_subscribe(self, action: PlannedAction) -> None:
        self._member.rejoin()

    async def _do_resume(self, action: PlannedAction) -> None:
        pass

    async def _do_dawdle(self, action: PlannedAction) -> None:
        """Delay the end of its work."""
        self._lingers = min(action.seconds, _LONGEST)

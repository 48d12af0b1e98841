"""Members of a group, the same for all clients: start, owned partitions, reading, stop.

A member owns the partitions that its callbacks have reported, from that time on: every client has
callbacks. Asyncio clients share the caller's loop; librdkafka's members each have a thread.
Settings are the clients' defaults, except the given ones.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import attrs

from .java_members import JavaMember
from .ownership import Ownership, Record

__all__ = ["FLEETS", "Fleet", "Member", "Ours", "settled"]

_TIMEOUT = 90.0
"""Seconds without the partitions being shared out, after which a trial has failed."""

_LOOK = 0.005
"""Seconds between looks at the members."""

_POLL = 0.02
"""Seconds that a thread of librdkafka waits in a poll, and so the time until it notices a stop."""


class Member(Protocol):
    """One member of any client."""

    ownership: Ownership

    async def start(self) -> None:
        """Join, and read from then on."""

    async def stop(self) -> None:
        """Leave gracefully."""


async def settled(members: Sequence[Member], partitions: int, quiet: float) -> float:
    """Return when each partition had one owner and each member a partition, for `quiet` seconds, on
    the clock of `time.perf_counter`. Raises: TimeoutError."""
    async with asyncio.timeout(_TIMEOUT):
        while True:
            changed_at = max(member.ownership.changed_at for member in members)
            if time.perf_counter() - changed_at >= quiet and _shared_out(members, partitions):
                return changed_at
            await asyncio.sleep(_LOOK)


def _shared_out(members: Collection[Member], partitions: int) -> bool:
    owned = [member.ownership.owned for member in members]
    everything = frozenset().union(*owned)
    return all(owned) and sum(map(len, owned)) == len(everything) == partitions


# ---------------------------------------------------------------- ours


class Ours:
    """A consumer of this library. `ownership` follows its callbacks."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        read: Record,
        options: Mapping[str, Any],
        ownership: Ownership | None = None,
    ) -> None:
        from kafkagroup import Consumer

        self.ownership = ownership or Ownership()
        self._read = read
        self.consumer = Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            on_partitions_assigned=self.ownership.gained,
            on_partitions_revoked=self.ownership.gone,
            on_partitions_lost=self.ownership.gone,
            **options,
        )

    async def start(self) -> None:
        await self.consumer.start()
        self._task = asyncio.create_task(self._iterate())

    async def _iterate(self) -> None:
        from kafkagroup import KafkaGroupError

        while True:
            try:
                async for record in self.consumer:
                    self._read(record.partition)
                return
            except KafkaGroupError:
                await asyncio.sleep(_POLL)

    async def stop(self) -> None:
        await self.consumer.stop()
        await self._task


def _ours_cooperative(
    bootstrap: str, group: str, topic: str, read: Record, options: Mapping[str, Any]
) -> Member:
    from kafkagroup.assign import cooperative_sticky_assignor

    options = {"assignors": [cooperative_sticky_assignor], **options}
    return Ours(bootstrap, group, topic, read, options)


# ---------------------------------------------------------------- aiokafka


@attrs.frozen
class _Listener:
    """A `ConsumerRebalanceListener` for aiokafka."""

    ownership: Ownership

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.ownership.gained(assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self.ownership.gone(revoked)


class _Aiokafka:
    def __init__(
        self, bootstrap: str, group: str, topic: str, read: Record, options: Mapping[str, Any]
    ) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

        self.ownership = Ownership()
        self._read = read
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **options)
        ConsumerRebalanceListener.register(_Listener)
        self._consumer.subscribe([topic], listener=_Listener(self.ownership))

    async def start(self) -> None:
        await self._consumer.start()
        self._task = asyncio.create_task(self._iterate())

    async def _iterate(self) -> None:
        from aiokafka.errors import KafkaError

        while True:
            try:
                async for record in self._consumer:
                    self._read(record.partition)
                return
            except KafkaError:
                await asyncio.sleep(_POLL)

    async def stop(self) -> None:
        await self._consumer.stop()
        await self._task


def _aiokafka_sticky(
    bootstrap: str, group: str, topic: str, read: Record, options: Mapping[str, Any]
) -> Member:
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    # Its state is a class attribute: members in one process would share it.
    own = type("OwnSticky", (StickyPartitionAssignor,), {})
    options = {"partition_assignment_strategy": [own], **options}
    return _Aiokafka(bootstrap, group, topic, read, options)


# ---------------------------------------------------------------- librdkafka


class _Librdkafka:
    def __init__(
        self, bootstrap: str, group: str, topic: str, read: Record, options: Mapping[str, Any]
    ) -> None:
        from confluent_kafka import Consumer

        self.ownership = Ownership()
        self._read = read
        self._stopping = False
        # Without a log: it complains about the broker that stops at the end.
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, **options}
        )
        self._topic = topic

    async def start(self) -> None:
        # Only here: it joins at once, polled or not.
        self._consumer.subscribe(
            [self._topic],
            on_assign=lambda _, partitions: self.ownership.gained(partitions),
            on_revoke=lambda _, partitions: self.ownership.gone(partitions),
            on_lost=lambda _, partitions: self.ownership.gone(partitions),
        )
        # Not from a pool, which has fewer threads than members; a daemon, to end after a failure.
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopping:
            record = self._consumer.poll(_POLL)
            if record is not None and (partition := record.partition()) is not None:
                self._read(partition)
        self._consumer.close()

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.to_thread(self._thread.join)


# ---------------------------------------------------------------- all


@attrs.frozen(kw_only=True)
class Fleet:
    """A factory of members of one client."""

    client: str
    """As the tables name it."""
    make: Callable[[str, str, str, Record, Mapping[str, Any]], Member]
    """Called with bootstrap servers, group, topic, the reader's callback and the options."""
    heartbeat_ms: int
    """The client's default."""
    calm_after: int = 1
    """Heartbeat intervals after a change until all members know of it, and send heartbeats at their
    usual interval. An earlier change would be noticed sooner than usual."""
    heartbeat_option: str | None = "heartbeat_interval_ms"
    """None where the broker decides, as it does for librdkafka with KIP-848."""
    reset_option: str = "auto_offset_reset"
    options: Mapping[str, Any] = attrs.field(factory=dict)

    def quiet(self, heartbeat_ms: int | None) -> float:
        """Seconds without changes after which a rebalance counts as complete."""
        return self.calm_after * (heartbeat_ms or self.heartbeat_ms) / 1000

    def member(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        read: Record = lambda _: None,
        *,
        heartbeat_ms: int | None = None,
        reset: str = "latest",
    ) -> Member:
        """Return a member that is not started. `reset` is the starting position without a committed
        offset."""
        options = {**self.options, self.reset_option: reset}
        if heartbeat_ms is not None and self.heartbeat_option is not None:
            options[self.heartbeat_option] = heartbeat_ms
        return self.make(bootstrap, group, topic, read, options)


_librdkafka = partial(
    Fleet,
    make=_Librdkafka,
    heartbeat_ms=3_000,
    heartbeat_option="heartbeat.interval.ms",
    reset_option="auto.offset.reset",
)

_java = partial(
    Fleet,
    make=JavaMember,
    heartbeat_ms=3_000,
    heartbeat_option="heartbeat.interval.ms",
    reset_option="auto.offset.reset",
)
_JAVA = "org.apache.kafka.clients.consumer"

FLEETS: Mapping[str, Fleet] = {
    "ours": Fleet(client="kafkagroup", make=Ours, heartbeat_ms=1_000, calm_after=3),
    "ours_cooperative": Fleet(
        client="kafkagroup cooperative-sticky",
        make=_ours_cooperative,
        heartbeat_ms=1_000,
        calm_after=3,
    ),
    "aiokafka": Fleet(client="aiokafka", make=_Aiokafka, heartbeat_ms=3_000),
    "aiokafka_sticky": Fleet(client="aiokafka sticky", make=_aiokafka_sticky, heartbeat_ms=3_000),
    "librdkafka": _librdkafka(client="librdkafka range"),
    "librdkafka_cooperative": _librdkafka(
        client="librdkafka cooperative-sticky",
        options={"partition.assignment.strategy": "cooperative-sticky"},
    ),
    "ours_assigned": Fleet(
        client="kafkagroup KIP-848",
        make=Ours,
        heartbeat_ms=1_000,
        calm_after=3,
        options={"group_protocol": "consumer"},
    ),
    "java": _java(
        client="Java range", options={"partition.assignment.strategy": f"{_JAVA}.RangeAssignor"}
    ),
    "java_cooperative": _java(
        client="Java cooperative-sticky",
        options={"partition.assignment.strategy": f"{_JAVA}.CooperativeStickyAssignor"},
    ),
    "java_assigned": _java(
        client="Java KIP-848",
        options={"group.protocol": "consumer"},
        heartbeat_ms=5_000,
        heartbeat_option=None,
    ),
    "librdkafka_assigned": _librdkafka(
        client="librdkafka KIP-848",
        options={"group.protocol": "consumer"},
        heartbeat_ms=5_000,
        heartbeat_option=None,
    ),
}
"""The clients, by the names that trials use."""

"""Run a plan: simulate brokers, network and members.

Members, brokers and the network share one loop, one thread and one clock. Each fault is undone when
its time is over, all of them by `heal`; then the group gets a quiet time in which it must process
all records, and all members close.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import anyio
import attrs

from kafkagroup import OffsetAndMetadata, TopicPartition
from kafkagroup.errors import ErrorCode
from kafkagroup.runtime.client import late_modules
from kafkagroup.runtime.consume import engine
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import server
from kafkagroup.testing.embedded.faults import (
    Action,
    Change,
    Close,
    Delay,
    Fault,
    Swallow,
    Throttle,
)
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.transport import dialing
from kafkagroup.transport.names import Names
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages import consumer_heartbeat, fetch, group, metadata, offsets

from .checker.identity import FOREIGN
from .disturbances import Disturbances, count_suspends
from .events import (
    Appended,
    Created,
    Deleted,
    Event,
    Faulted,
    Finished,
    Forgotten,
    Frozen,
    Healed,
    Killed,
    Recreated,
    Thawed,
    Truncated,
)
from .groups import EmbeddedView, GroupView
from .login import USERS, Logins
from .loop import ReadyQueue, run_virtual
from .mangle import MANGLERS
from .network import Agenda, Link, Network, Socket
from .observe import BrokerWatch, Log, WireTap
from .opinions import OFFSET_CODES, Lag, Opinions, refuse_offsets
from .outside import OUTSIDE_FAULTS
from .plan import FAULTS
from .process import Process
from .schedule import GROUP, NODES, MemberPlan, Plan, PlannedAction
from .surroundings import SURROUNDING_FAULTS
from .threads import SimulatedThreads
from .worker import Worker

__all__ = ["BROKERS", "SimulatedRun", "run"]

BROKERS = ("embedded", "apache")
"""Whose code coordinates the group."""

_APIS = {
    cls.__name__.removesuffix("Request"): cls
    for module in (consumer_heartbeat, fetch, group, metadata, offsets)
    for cls in vars(module).values()
    if isinstance(cls, type) and cls.__name__.endswith("Request") and hasattr(cls, "api_key")
}

_AGAIN = 1.0
"""Seconds until a process that has ended early is restarted."""

_TICK = 0.25
"""Seconds between two steps of the producer, and between two checks for the end of the quiet
time."""

_FREEZING = ("suspend", "stall")
"""Faults of the surroundings that freeze a process."""

_MOMENT = 0.0003
"""For how many seconds the lease lasts when a process that has stalled `before` continues."""

_QUIET = 60.0
"""Seconds after `heal` in which the group must process the remaining records."""

_CALM = 30.0
"""Seconds after which no effect of a fault is left, not even a request without a response."""

_TAKEN_OVER = 4.0
"""Seconds after its session timeout in which a dead member's partitions are reassigned."""

_PASSED = 12.0
"""Seconds of the quiet time in which members with auto-commit commit past the control records."""

_FOREIGN_RECORDS = 40
"""Records of each of its partitions."""

_MARKED = 0.1
"""Probability of a control record after records; all readers must skip it."""

_MARKER = encode_batch([NewRecord(b"\0\0\0\1", b"")], transactional=True, control=True)

_WALL = 1_750_000_000.0
"""The wall clock at the start."""


@attrs.frozen
class SimulatedRun:
    """The events of one simulated run, and their digest."""

    plan: Plan
    events: Sequence[Event]
    crossed: str
    """The digest of all bytes on the wire."""
    seconds: float
    """CPU time."""
    refusals: frozenset[tuple[str, str]]
    """The requests that were falsely refused, and with which errors."""

    def digest(self) -> str:
        """Return a digest of everything, equal only for runs that are identical to the byte."""
        whole = hashlib.blake2b(self.crossed.encode(), digest_size=16)
        for event in self.events:
            whole.update(repr(event).encode())
        return whole.hexdigest()


def run(plan: Plan, broker: str = BROKERS[0]) -> SimulatedRun:
    """Run a plan, with the groups at this broker. The same plan gives the same run, to the byte.

    Raises: LocalKafkaUnavailable if Apache's coordinator is to run, and Java or its jars are
    missing.
    """
    started = time.process_time()
    simulation = _Simulation(plan, broker)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(time, "time", simulation.time))
        stack.enter_context(mock.patch.object(engine, "uuid4", simulation.uuid))
        # A run that is stopped anywhere may abandon its coroutines, and with them a stack of
        # their own: its patches would stay in place for all later runs.
        run_virtual(partial(simulation.run, stack), backend=plan.backend, seed=plan.seed)
    log = simulation.log
    refusals = frozenset(refusal for refusal, was_sent in simulation.refusals if was_sent())
    seconds = time.process_time() - started
    return SimulatedRun(plan, log.events, log.hash.hexdigest(), seconds, refusals)


def _settings(plan: Plan) -> BrokerSettings:
    settings = BrokerSettings(
        internal_topics=False,  # a run has the topics of its plan
        group_initial_rebalance_delay=0.5,
        consumer_groups=False,
        connections_max_reauth=plan.session_lifetime or 0.0,
    )
    if plan.assigns_every is None:
        return settings
    return attrs.evolve(
        settings,
        consumer_groups=True,
        group_consumer_session_timeout=plan.members[0].session,
        group_consumer_assignment_interval=plan.assigns_every,
    )


def _accounts(plan: Plan) -> dict[str, Any]:
    if plan.session_lifetime is None:
        return {}
    return {"users": USERS, "mechanisms": ("PLAIN",)}


class _MemberSlot:
    """A position in the group, and the process that fills it now."""

    def __init__(self, plan: MemberPlan) -> None:
        self.plan = plan
        self.count = 0
        self.process: Process | None = None
        self.over = anyio.Event()
        """Set when the process has ended or was killed."""
        self.frozen = 0
        self.left = False


class _Simulation:
    """The state of one run."""

    def __init__(self, plan: Plan, broker: str) -> None:
        self.plan = plan
        self.broker = broker
        self.log = Log()
        self.wall = _WALL
        self.random = Random(f"world {plan.seed}")
        self.ids = Random(f"ids {plan.seed}")
        self.kafka = EmbeddedKafka(
            plan.topics,
            nodes=NODES,
            listen=False,
            seed=plan.seed,
            wall=lambda: _WALL,
            settings=_settings(plan),
            **_accounts(plan),
        )
        self.cluster = self.kafka._cluster
        self.opinions = Opinions(self.cluster, self.log.record_event)
        self.foreign: EmbeddedKafka | None = None
        """Another cluster, and at which nodes' addresses it answers."""
        self.foreign_at: set[int] = set()
        if any(action.what == "foreign_cluster" for action in plan.actions):
            self.foreign = self._make_foreign()
        self.slots = {m.name: _MemberSlot(m) for m in plan.members}
        self.rules: list[Fault | Lag] = []
        self.refusals: list[tuple[tuple[str, str], Callable[[], bool]]] = []
        """False refusals by request and error, and whether each was sent."""
        self.sequence = 0
        self.produced = 0.0
        self.records: dict[TopicPartition, list[int]] = {}
        """Partition -> the offsets of its visible records."""
        self.forgotten: dict[TopicPartition, OffsetAndMetadata] = {}
        """Partition -> the committed offset that was last forgotten."""
        self.topic_names: dict[UUID, str] = {}
        """Topic id -> name, including deleted topics."""
        self.closing = False
        self.logins = Logins(self.log.record_event)
        self._kind = Worker if plan.shards else Process

    def time(self) -> float:
        """Return the wall clock's time; it jumps independently of the loop's clock."""
        return self.wall + self.log.clock()

    def uuid(self) -> UUID:
        """Return an id that a member generates for itself (KIP-1082)."""
        return UUID(int=self.ids.getrandbits(128), version=4)

    def _topic_name(self, topic_id: UUID) -> str:
        for kafka in filter(None, (self.kafka, self.foreign)):
            topics = kafka._cluster.topics.items()
            self.topic_names |= {topic.topic_id: name for name, topic in topics}
        return self.topic_names.get(topic_id, "")

    # ------------------------------------------------------------ the run

    async def run(self, patches: ExitStack, ready_queue: ReadyQueue) -> None:
        self.ready_queue = ready_queue
        self.log.clock = ready_queue.true_now
        self.agenda = Agenda()
        self.tap = tap = WireTap(self.log, self._topic_name, shards=self.plan.shards)
        self.network = Network(
            self.agenda,
            Random(f"network {self.plan.seed}"),
            tap,
            self._serve,
            self._is_up,
            self.log.record_event,
            ready_queue.true_now,
        )
        group: GroupView = EmbeddedView(self.cluster, GROUP)
        handle = server.handle
        if self.broker == "apache":
            # Here, because most runs need no Java.
            from .apache import ApacheView, start_groups

            groups = start_groups(self.cluster.settings, self.plan.seed)
            group, handle = ApacheView(groups, GROUP), groups.handle
        watch = BrokerWatch(self.log, self.cluster, group, shards=self.plan.shards)
        threads = SimulatedThreads(self.agenda, ready_queue, self.log.record_event)
        self.disturbances = Disturbances(
            self.plan,
            self.kafka,
            self.network,
            self.agenda,
            group,
            self.logins,
            threads,
            self.log.record_event,
            self._later,
            self.rules.append,
            self._start_guest,
        )
        self.log.on_event = self.disturbances.on_event
        if any(action.what == "suspend" for action in self.plan.actions):
            count_suspends(patches, ready_queue)
        tap.watch_requests(patches)
        patches.enter_context(mock.patch.object(dialing, "connect", self.network.connect))
        if self.plan.uses_threads:
            threads.install(patches)
        else:
            patches.enter_context(mock.patch.object(Names, "resolve", self.network.resolve))
        patches.enter_context(mock.patch.object(anyio, "current_time", ready_queue.now))
        # A run must not depend on what its process has imported already.
        no_import = mock.patch.object(late_modules, "_import_in_thread", return_value=None)
        patches.enter_context(no_import)
        answering = self.opinions.around(watch.watching(handle), server.handle)
        patches.enter_context(mock.patch.object(server, "handle", answering))
        foreign = self.foreign or nullcontext()
        async with self.kafka, foreign, anyio.create_task_group() as self.tasks:
            self.tasks.start_soon(self.agenda.run)
            await self.tasks.start(self.network.run)
            await self._happen()
            self._end_killed_processes()
            self.tasks.cancel_scope.cancel()

    def _make_foreign(self) -> EmbeddedKafka:
        """Return another cluster with the same topics, and other records at the same offsets."""
        seed = self.plan.seed + 1
        foreign = EmbeddedKafka(
            self.plan.topics, nodes=NODES, listen=False, seed=seed, **_accounts(self.plan)
        )
        self.opinions.foreign = foreign._cluster
        numbers = itertools.count(FOREIGN)
        for topic, count in self.plan.topics.items():
            for partition in range(count):
                values = [str(next(numbers)) for _ in range(_FOREIGN_RECORDS)]
                foreign.produce(topic, values, partition=partition)
        return foreign

    async def _serve(self, stream: Socket, node: int) -> None:
        kafka = self.foreign if node in self.foreign_at else self.kafka
        assert kafka is not None
        await kafka.handle_stream(stream, node)

    def _is_up(self, process: str, node: int) -> bool:
        """Whether a process can connect to a node. A process that has met no broker of the cluster
        yet could not tell another cluster from it."""
        if node in self.foreign_at:
            return process in self.tap.acquainted
        return self.cluster.nodes[node].is_alive

    async def _happen(self) -> None:
        plan = self.plan
        async with anyio.create_task_group() as slots:
            self.slot_tasks = slots
            for slot in self.slots.values():
                slots.start_soon(self._keep_running, slot)
            self.tasks.start_soon(self._produce)
            for action in plan.actions:
                await anyio.sleep_until(action.at)
                self._do(action)
            await anyio.sleep_until(plan.heal)
            self._heal()
            await self._finish_work()
            if plan.dies_late in self.slots:
                await self._die_late(self.slots[plan.dies_late])
            if plan.forgets_late:
                self._do(PlannedAction(at=anyio.current_time(), what="forget_offsets"))
            await self.disturbances.part()
            self.closing = True
            self.disturbances.end_guests()
            for slot in self.slots.values():
                if slot.process is not None:
                    slot.process.stop()
        await self.disturbances.look_for_all()
        ends = {tp: self.kafka.log_end(*tp) for tp in self._partitions()}
        committed = self.kafka.committed_offsets(GROUP)
        self.log.record_event(
            Finished,
            committed={tp: found.offset for tp, found in committed.items()},
            ends=ends,
            starts={tp: self.kafka.log_start(*tp) for tp in self._partitions()},
        )

    async def _finish_work(self) -> None:
        with anyio.move_on_after(_QUIET):
            while not self._all_done():
                await anyio.sleep(_TICK)

    async def _die_late(self, slot: _MemberSlot) -> None:
        """Kill a member permanently, long after `heal`, to check that its partitions are
        reassigned."""
        await anyio.sleep_until(self.plan.heal + _CALM)
        slot.left = True
        self._do(PlannedAction(at=anyio.current_time(), what="kill", member=slot.plan.name))
        await anyio.sleep(slot.plan.session + _TAKEN_OVER)
        await self._finish_work()

    def _partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(t.name, i)
            for t in self.cluster.topics.values()
            for i in range(len(t.partitions))
        ]

    def _all_done(self) -> bool:
        if len(self.cluster.topics) < len(self.plan.topics):
            return False  # a deleted topic is about to be recreated
        processes = (slot.process for slot in self.slots.values())
        visible = {tp: at[-1] + 1 for tp, at in self.records.items() if at}
        if any(process is not None and process.is_behind(visible) for process in processes):
            return False  # a commit on close would reset the group to an earlier offset
        committed = self.kafka.committed_offsets(GROUP)
        # Given time, members with auto-commit also commit past the control records at the end.
        unhurried = anyio.current_time() > self.plan.heal + _PASSED
        for tp in self._partitions():
            end = visible.get(tp, 0) if unhurried else self.kafka.log_end(*tp)
            if unhurried and tp in self.forgotten and tp not in committed:
                # The member that has committed this offset does so again when it closes.
                if max(self._reached(tp, self.forgotten[tp]), self._processed_end(tp)) < end:
                    return False
                continue
            if end and (tp not in committed or self._reached(tp, committed[tp]) < end):
                return False
        return True

    def _processed_end(self, tp: TopicPartition) -> int:
        """Return the offset after the last record that a present process has processed."""
        processes = (slot.process for slot in self.slots.values())
        return max((p.processed_end(tp) for p in processes if p is not None), default=0)

    def _reached(self, tp: TopicPartition, committed: OffsetAndMetadata) -> int:
        """Return how far the commit reaches in the current log, which may have been truncated and
        grown again since."""
        partition = self.cluster.partition(*tp)
        assert partition is not None
        _, end = partition.log.end_of_epoch(committed.leader_epoch)
        return committed.offset if end < 0 else min(committed.offset, end)

    # ------------------------------------------------------------ members

    async def _keep_running(self, slot: _MemberSlot) -> None:
        """Run a process in this slot from the planned start until it is to leave."""
        plan = slot.plan
        await anyio.sleep_until(plan.start)
        if plan.leave is not None:
            self.tasks.start_soon(self._leave, slot)
        while not (slot.left or self.closing):
            slot.count += 1
            name = plan.name if slot.count == 1 else f"{plan.name}.{slot.count}"
            slot.over = over = anyio.Event()
            slot.process = process = self._make_process(name, plan)
            process.within(self.tasks.start_soon, self._process, process, over)
            await over.wait()
            slot.process = None
            slot.left = slot.left or (process.fenced and self._has_twin(slot))
            if not (slot.left or self.closing):
                await anyio.sleep(_AGAIN)

    def _make_process(self, name: str, plan: MemberPlan) -> Process:
        logs_in = self.plan.session_lifetime is not None
        return self._kind(
            name,
            plan,
            self.kafka.bootstrap_servers,
            f"{name} {self.plan.seed}",
            self.log.record_event,
            self._leaked,
            self.logins.security(plan.name, name) if logs_in else None,
        )

    def _start_guest(self, plan: MemberPlan) -> Process:
        """Start a process in no slot: nothing else happens to it, and it is not restarted."""
        guest = self._make_process(plan.name, plan)
        guest.within(self.slot_tasks.start_soon, guest.run)
        return guest

    def _has_twin(self, slot: _MemberSlot) -> bool:
        """Whether another process runs that may have its instance id; else a fencing was false."""
        return any(
            other is not slot
            and slot.plan.instance is not None
            and other.plan.instance == slot.plan.instance
            and other.process is not None
            for other in self.slots.values()
        )

    async def _process(self, process: Process, over: anyio.Event) -> None:
        try:
            await process.run()
        finally:
            over.set()

    async def _leave(self, slot: _MemberSlot) -> None:
        assert slot.plan.leave is not None
        await anyio.sleep_until(slot.plan.leave)
        slot.left = True
        if slot.process is not None:
            slot.process.stop()

    def _leaked(self, name: str) -> tuple[str, ...]:
        return tuple(f"connection {s.number}" for s in self.network.between(name, 0))

    def _end_killed_processes(self) -> None:
        """Let the tasks of killed processes end; their events are not recorded."""
        for name in sorted(self.log.muted):
            self.ready_queue.resume(name)

    # ------------------------------------------------------------ records

    async def _produce(self) -> None:
        """Produce a few records at intervals, and at least one per partition."""
        random = Random(f"records {self.plan.seed}")
        for tp in self._partitions():
            self._append(tp, 1)
        while anyio.current_time() < self.plan.heal:
            self.produced += self.plan.rate * _TICK * random.random() * 2
            while self.produced >= 1 and self.cluster.topics:
                count = min(int(self.produced), random.randint(1, 5))
                self.produced -= count
                self._append(random.choice(self._partitions()), count)
            await anyio.sleep(_TICK)

    def _append(self, tp: TopicPartition, count: int) -> None:
        first = self.kafka.log_end(*tp)
        numbers = range(self.sequence, self.sequence + count)
        self.sequence += count
        self.kafka.produce(tp.topic, [str(n) for n in numbers], partition=tp.partition)
        self.records.setdefault(tp, []).extend(range(first, first + count))
        for i, number in enumerate(numbers):
            self.log.record_event(Appended, partition=tp, offset=first + i, sequence=number)
        if self.random.random() < _MARKED:
            self.kafka.append(*tp, _MARKER)
            self.log.record_event(Appended, partition=tp, offset=first + count, sequence=-1)

    # ------------------------------------------------------------ faults and actions

    def _do(self, action: PlannedAction) -> None:
        if action.what in FAULTS or action.what in OUTSIDE_FAULTS:
            self.log.record_event(Faulted, text=str(action))
        if action.what in SURROUNDING_FAULTS and action.what not in _FREEZING:
            self.disturbances.do(action)
        else:
            getattr(self, f"_{action.what}")(action)

    def _later(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Undo something later, at the latest at `heal`."""
        at = min(self.log.clock() + seconds, self.plan.heal)
        self.agenda.at(at, action, *arguments)

    def _process_of(self, action: PlannedAction) -> Process | None:
        return self.slots[action.member].process if action.member in self.slots else None

    def _heal(self) -> None:
        for rule in self.rules:
            rule.stop()
        for node in sorted(self.foreign_at):
            self._end_foreign_cluster(node)
        for node in self.cluster.nodes.values():
            if not node.is_alive:
                self.kafka.restart(node.node_id)
        for slot in self.slots.values():
            self._thaw(slot, slot.frozen)
            if slot.process is not None:
                slot.process.misassign("")
                slot.process.on_delivered = None
            if slot.process is not None and not slot.left:
                slot.process.order(
                    PlannedAction(at=0, what="subscribe", code=",".join(slot.plan.topics))
                )
                slot.process.order(PlannedAction(at=0, what="resume"))
        for link in self.network.links.values():
            link.clear()
        self.network.settled.set()
        self.log.record_event(Healed)

    # brokers' responses

    def _rule(self, action: PlannedAction, response: Action) -> None:
        times = action.count or None
        rule = self.kafka.fail(
            _APIS[action.api], response, times=times, node_id=action.node or None
        )
        self.rules.append(rule)
        self._later(action.seconds, rule.stop)

    def _error(self, action: PlannedAction) -> None:
        self._rule(action, ErrorCode[action.code])

    def _response_lost(self, action: PlannedAction) -> None:
        self._rule(action, Close())

    def _response_swallowed(self, action: PlannedAction) -> None:
        self._rule(action, Swallow())

    def _response_late(self, action: PlannedAction) -> None:
        self._rule(attrs.evolve(action, seconds=4.0), Delay(action.seconds))

    def _throttled(self, action: PlannedAction) -> None:
        self._rule(attrs.evolve(action, seconds=4.0), Throttle(action.seconds))

    # the network

    def _links(self, action: PlannedAction) -> list[Link]:
        """Return the links of a slot; the slot's later processes keep them."""
        nodes = [action.node] if action.node else list(self.cluster.nodes)
        return [self.network.link(action.member, node) for node in nodes]

    def _name(self, action: PlannedAction) -> str:
        process = self._process_of(action)
        return "nobody" if process is None else process.name

    def _reset(self, action: PlannedAction) -> None:
        self.network.reset(self._name(action), action.node)

    def _close(self, action: PlannedAction) -> None:
        self.network.close(self._name(action), action.node)

    def _half_open(self, action: PlannedAction) -> None:
        self.network.half_open(self._name(action), action.node)

    def _dark(self, action: PlannedAction) -> None:
        for link in self._links(action):
            link.is_down = True
            self._later(action.seconds, link.clear)

    def _slow(self, action: PlannedAction) -> None:
        for link in self._links(action):
            link.delay = self.random.uniform(0.05, 1.0)
            self._later(action.seconds, link.clear)

    def _throttle(self, action: PlannedAction) -> None:
        for link in self._links(action):
            link.bytes_per_second = self.random.choice((200.0, 2_000.0))
            self._later(action.seconds, link.clear)

    def _shred(self, action: PlannedAction) -> None:
        for link in self._links(action):
            link.shredded += action.count

    def _mangle(self, action: PlannedAction) -> None:
        for link in self._links(action):
            link.mangle.extend([MANGLERS[action.what](self.random)] * action.count)

    _garbage = _truncate = _duplicate = _cut = _mangle

    # brokers

    def _kill_node(self, action: PlannedAction) -> None:
        if self.cluster.nodes[action.node].is_alive and len(self.cluster.live_ids) > 1:
            self.kafka.kill(action.node)
            self._later(action.seconds, self._restart, action.node)

    def _restart(self, node: int) -> None:
        if not self.cluster.nodes[node].is_alive and node not in self.foreign_at:
            self.kafka.restart(node)

    def _rolling_restart(self, action: PlannedAction) -> None:
        for index, node in enumerate(self.cluster.nodes):
            at = PlannedAction(at=0, what="kill_node", node=node, seconds=action.seconds)
            self._later(index * (action.seconds + 0.5), self._kill_node, at)

    def _move_coordinator(self, action: PlannedAction) -> None:
        if action.node in self.cluster.live_ids:
            self.kafka.move_coordinator(GROUP, action.node)

    def _move_leaders(self, action: PlannedAction) -> None:
        if action.node in self.cluster.live_ids:
            for tp in self._partitions():
                if self.random.random() < 0.5:
                    self.kafka.move_leader(*tp, action.node)

    def _cut_log(self, action: PlannedAction) -> None:
        """Truncate a log, and possibly move its leadership."""
        tp = self.random.choice(self._partitions())  # no topic is deleted where logs are cut
        self.kafka.truncate(*tp, max(0, self.kafka.log_end(*tp) - action.count))
        if action.node in self.cluster.live_ids:
            self.kafka.move_leader(*tp, action.node)
        end = self.kafka.log_end(*tp)
        self.records[tp] = [offset for offset in self.records.get(tp, ()) if offset < end]
        self.log.record_event(Truncated, partition=tp, offset=end)

    def _recreate_topic(self, action: PlannedAction) -> None:
        """Delete a topic, and later create another one with its name."""
        if len(self.cluster.topics) < len(self.plan.topics):
            return  # one at a time
        topic = self.random.choice(sorted(self.cluster.topics))
        count = self.kafka.partitions(topic)
        self.topic_names[self.cluster.topics[topic].topic_id] = topic
        self.opinions.old_ids[topic] = self.cluster.topics[topic].topic_id
        self.kafka.delete_topic(topic)
        self.records = {tp: offsets for tp, offsets in self.records.items() if tp.topic != topic}
        self.forgotten = {tp: found for tp, found in self.forgotten.items() if tp.topic != topic}
        self.log.record_event(Deleted, topic=topic)
        self._later(action.seconds, self._create_topic, topic, count)

    def _create_topic(self, topic: str, count: int) -> None:
        self.kafka.create_topic(topic, count)
        self.log.record_event(Recreated, topic=topic)
        self._record_created(topic, range(count))
        for partition in range(count):
            self._append(TopicPartition(topic, partition), 1)

    def _record_created(self, topic: str, partitions: range) -> None:
        created = tuple(TopicPartition(topic, partition) for partition in partitions)
        self.log.record_event(Created, partitions=created)

    # opinions of single brokers

    def _lagging(self, action: PlannedAction) -> None:
        lag = Lag(action.code, action.node)
        self.opinions.lag(lag)
        self.rules.append(lag)
        self._later(action.seconds, lag.stop)

    def _refusal(self, action: PlannedAction) -> None:
        error = ErrorCode[action.code]
        rule: Fault | Lag
        if action.api == "Metadata":
            rule = Lag(action.code, action.node, once=True)
            self.opinions.lag(rule)
        elif action.api == "OffsetFetch" and action.code in OFFSET_CODES:
            rule = self.kafka.fail(_APIS["OffsetFetch"], Change(partial(refuse_offsets, error)))
        else:
            rule = self.kafka.fail(
                _APIS[action.api],
                error,
                times=action.count or None,
                node_id=action.node or None,
                # A fetch in a session lists only the partitions that have changed; the first
                # refusal ends the session.
                when=lambda request: (
                    action.api != "Fetch" or not action.count or bool(request.topics)
                ),
            )
        self.rules.append(rule)
        self.refusals.append(((action.api, action.code), lambda: rule.hits > 0))
        self._later(action.seconds, rule.stop)

    def _replica_refuses(self, action: PlannedAction) -> None:
        self.opinions.refusing_replica = (action.node, ErrorCode[action.code], action.count)

    def _foreign_cluster(self, action: PlannedAction) -> None:
        """Let another cluster answer at the address of a broker, whose node is down meanwhile."""
        node = action.node
        if self.foreign is None or node in self.foreign_at:
            return
        others = [n for n in self.cluster.live_ids if n != node]
        if not others:
            return
        if self.cluster.nodes[node].is_alive:
            self.kafka.kill(node)
        self.foreign_at.add(node)
        for other in self.foreign._cluster.live_ids:
            if other not in self.foreign_at:
                self.foreign.kill(other)
        if not self.foreign._cluster.nodes[node].is_alive:
            self.foreign.restart(node)
        self._later(action.seconds, self._end_foreign_cluster, node)

    def _end_foreign_cluster(self, node: int) -> None:
        if self.foreign is not None and node in self.foreign_at:
            self.foreign_at.discard(node)
            self.foreign.kill(node)
            self._restart(node)

    def _forget_offsets(self, action: PlannedAction) -> None:
        """Delete some committed offsets of the group, or all."""
        committed = self.cluster.offsets.get(GROUP, {})
        known = sorted(committed)
        count = min(action.count or len(known), len(known))
        forgotten = tuple(sorted(self.random.sample(known, count)))
        self.forgotten |= {tp: committed.pop(tp) for tp in forgotten}
        if forgotten:
            self.log.record_event(Forgotten, partitions=forgotten)

    def _misassign(self, action: PlannedAction) -> None:
        """Let every member compute bad assignments while it leads."""
        for slot in self.slots.values():
            if slot.process is not None:
                slot.process.misassign(action.code)
        self._order(attrs.evolve(action, what="request_rejoin"))
        self._later(action.seconds, self._end_misassignment)

    def _end_misassignment(self) -> None:
        for slot in self.slots.values():
            if slot.process is not None:
                slot.process.misassign("")

    # processes

    def _freeze(self, action: PlannedAction, *, suspended: bool = False) -> None:
        slot = self.slots[action.member]
        if slot.process is not None:
            slot.frozen += 1
            if slot.frozen == 1:
                self.log.record_event(Frozen, member=slot.process.name, suspended=suspended)
                self.ready_queue.freeze(slot.process.name)
            self._later(action.seconds, self._thaw, slot, 1)

    _starve = _freeze

    def _suspend(self, action: PlannedAction) -> None:
        """Freeze a process, and stop its clock, unless it is frozen anyway."""
        slot = self.slots[action.member]
        if slot.process is not None and not slot.frozen:
            self._freeze(action, suspended=True)
            self.ready_queue.suspend(slot.process.name)

    def _stall(self, action: PlannedAction) -> None:
        """Append a backlog, and freeze a process between two records of it."""
        slot = self.slots[action.member]
        process = slot.process
        if process is None or slot.plan.shards:
            return
        # A topic that was deleted stays assigned for a while.
        exists = self.cluster.partition
        assigned = sorted(tp for tp in process.consumer.assignment() if exists(*tp) is not None)
        if not assigned:
            return
        backlog = assigned[0]
        first = self.kafka.log_end(*backlog)
        self._append(backlog, action.count)

        def delivered(tp: TopicPartition, offset: int) -> None:
            lease_left = process.lease_left
            is_amid = tp == backlog and first <= offset < first + action.count // 2
            if is_amid and lease_left and not slot.frozen:
                process.on_delivered = None
                left = lease_left + (action.seconds if action.code == "after" else -_MOMENT)
                stall = attrs.evolve(action, seconds=left)
                # Not here: this runs in the process.
                self.agenda.at(self.log.clock(), self._freeze, stall)

        process.on_delivered = delivered

    def _thaw(self, slot: _MemberSlot, times: int) -> None:
        if slot.process is not None and 0 < slot.frozen <= times:
            self.log.record_event(Thawed, member=slot.process.name)
            self.ready_queue.resume(slot.process.name)
        slot.frozen = max(0, slot.frozen - times)

    def _kill(self, action: PlannedAction) -> None:
        slot = self.slots[action.member]
        process = slot.process
        if process is not None:
            self.log.record_event(Killed, member=process.name)
            self.log.muted.add(process.name)
            self.ready_queue.freeze(process.name)
            self.network.abandon(process.name)
            slot.process = None
            slot.frozen = 0
            slot.over.set()

    def _cancel_call(self, action: PlannedAction) -> None:
        process = self._process_of(action)
        if process is not None:
            process.cancel_call()

    def _cancel(self, action: PlannedAction) -> None:
        process = self._process_of(action)
        if process is not None:
            process.cancel()

    def _wall_jump(self, action: PlannedAction) -> None:
        self.wall += action.seconds

    # actions of applications and administrators

    def _order(self, action: PlannedAction) -> None:
        process = self._process_of(action)
        if process is not None:
            process.order(action)

    _seek = _skip = _dawdle = _commit_position = _order
    _hold = _be_absent = _request_rejoin = _order

    def _commit_late(self, action: PlannedAction) -> None:
        """Let tasks of the application commit what it has processed by now: later, and one behind
        the other."""
        process = self._process_of(action)
        if process is None or not (offsets := process.offsets_to_commit()):
            return

        def commit() -> None:
            if process is self._process_of(action):
                for _ in range(action.count):
                    process.within(self.tasks.start_soon, process.commit_in_task, offsets)

        self._later(action.seconds, commit)

    def _pause(self, action: PlannedAction) -> None:
        self._order(action)
        self._later(action.seconds, self._order, attrs.evolve(action, what="resume"))

    def _wait_idle(self, action: PlannedAction) -> None:
        self._order(action)
        self._later(action.seconds, self._order, attrs.evolve(action, what="resume"))

    def _subscribe(self, action: PlannedAction) -> None:
        slot = self.slots[action.member]
        some = [t for t in self.plan.topics if self.random.random() < 0.5] or slot.plan.topics
        self._order(attrs.evolve(action, code=",".join(some)))
        back = attrs.evolve(action, code=",".join(slot.plan.topics))
        self._later(action.seconds, self._order, back)

    def _add_partitions(self, action: PlannedAction) -> None:
        topic = self.random.choice(list(self.plan.topics))
        if topic not in self.cluster.topics:
            return  # deleted, and not yet recreated
        before = self.kafka.partitions(topic)
        self.kafka.add_partitions(topic, before + action.count)
        self._record_created(topic, range(before, before + action.count))

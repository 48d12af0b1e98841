"""`GroupMember`: membership of any group, one generation at a time.

A consumer is one application of this engine; leader election and sharded workers are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from kafkagroup._foreign_options import explains_unknown_options
from kafkagroup._public import public
from kafkagroup._values import evolve, frozen
from kafkagroup.errors import ConfigurationError, ConsumerClosedError, NotStartedError, broker_error
from kafkagroup.events import RebalanceCause
from kafkagroup.member.state import Config, Member
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.options import GroupMemberOptions
from kafkagroup.runtime.driver import Driver
from kafkagroup.runtime.event_feed import GroupEvents
from kafkagroup.runtime.health import Checkup, Health, HealthProblem, check_troubles, not_well
from kafkagroup.runtime.history import History
from kafkagroup.runtime.interfaces import Membership, Running, SupportedProtocols
from kafkagroup.runtime.lag import LoopLag
from kafkagroup.runtime.metrics import GroupMetrics
from kafkagroup.runtime.service import Service
from kafkagroup.runtime.threaded import ThreadedDriver
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import client_options, parse_servers
from kafkagroup.transport.trouble import Troubles
from kafkagroup.wire.messages.group import DescribedGroup, DescribeGroupsRequest

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.transport.security import Security

__all__ = ["Generation", "GroupMember", "GroupProtocol"]


@public
@frozen
class GroupProtocol:
    """What the members of a group agree on: a type, a strategy's name, and the strategy.

    ```python
    GroupProtocol("workers", "even-split", b"host-1", assign_evenly)
    ```
    """

    type: str
    """The kind of group: "consumer", "connect", or your own. Members of one group share it."""
    name: str
    """The strategy. The coordinator picks one that every member offers."""
    metadata: bytes
    """What this member tells the leader about itself."""
    assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
    """Member id -> metadata in, member id -> assignment out. Called on the leader; a pure function.
    A member that is left out is assigned b""."""


@public
class Generation:
    """One generation of the group: who is in it, and what is assigned to this member."""

    def __init__(self, info: GenerationInfo, lease_expires_at: float, *, timed: bool) -> None:
        self._info = info
        self._owning_until = lease_expires_at
        self._timed = timed
        """Whether scopes end by their deadline. Where heartbeats have a thread, a loop that was
        blocked would see the deadline pass before it hears that it was moved on."""
        self._scopes: set[anyio.CancelScope] = set()
        self._vacated = anyio.Event()
        self.over = anyio.Event()
        """Set when the generation ends, or cannot be known to stand any more. Finish, then ask for
        the next one."""

    def __repr__(self) -> str:
        leads = ", leads" if self.is_leader else ""
        return f"<Generation {self.generation_id} of {self.member_id}{leads}>"

    @property
    def generation_id(self) -> int:
        """Grows with every rebalance."""
        return self._info.generation_id

    @property
    def member_id(self) -> str:
        """This member, as the coordinator calls it."""
        return self._info.member_id

    @property
    def leader_id(self) -> str:
        """The member that computed the assignments."""
        return self._info.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this member computed the assignments."""
        return self._info.is_leader

    @property
    def protocol_name(self) -> str:
        """The strategy that was picked."""
        return self._info.protocol_name

    @property
    def members(self) -> Mapping[str, bytes]:
        """Member id -> metadata, on the leader; empty on the others."""
        return self._info.members

    @property
    def assignment(self) -> bytes:
        """What the leader assigned to this member."""
        return self._info.assignment

    @property
    def lease_expires_at(self) -> float:
        """Until when this member is sure to be in the generation, on the loop's clock: one session
        timeout after the last acknowledged heartbeat was sent. Each one moves it on."""
        return self._owning_until

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """Run work that is cancelled when the generation ends: `with generation.scope(): ...`.

        It is cancelled at `lease_expires_at` at the latest: from then on the coordinator may have
        assigned its part to others, whether this member can hear of that or not.
        """
        with anyio.CancelScope(deadline=self._deadline) as scope:
            self._scopes.add(scope)
            try:
                if self.over.is_set():
                    scope.cancel()
                yield scope
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._vacated.set()
                    self._vacated = anyio.Event()

    @property
    def _deadline(self) -> float:
        return self._owning_until if self._timed else float("inf")

    def _extend(self, lease_expires_at: float) -> None:
        self._owning_until = lease_expires_at
        for scope in self._scopes:
            scope.deadline = self._deadline

    async def _wait_vacated(self) -> None:
        """Wait until no work is left in a scope."""
        while self._scopes:
            await self._vacated.wait()

    def _end(self) -> None:
        self.over.set()
        for scope in self._scopes:
            scope.cancel()


class _GenerationQueue:
    """The application of the driver: hands generations to `GroupMember.__anext__`."""

    def __init__(
        self,
        protocols: Sequence[GroupProtocol],
        lease_expires_at: Callable[[], float],
        *,
        most_blocked: float,
        timed: bool,
    ) -> None:
        self.protocols = {p.name: p for p in protocols}
        self.lease_expires_at = lease_expires_at
        self.most_blocked = most_blocked
        """Seconds that the group waits for a loop that stands still while heartbeats go on."""
        self.timed = timed
        self.latest: Generation | None = None
        """The last one that began, whoever has it by now."""
        self.current: Generation | None = None
        """The one that the user has in hand."""
        self.fresh: Generation | None = None
        """A generation that nobody has taken yet."""
        self.error: Exception | None = None
        self.closed = False
        self.changed = anyio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def release(self) -> None:
        """The user is done with the generation in hand."""
        self.current = None
        self.notify()

    def ending(self, *, lost: bool) -> None:
        if self.latest is not None:
            self.latest._end()

    def alive(self) -> None:
        if self.latest is not None:
            self.latest._extend(self.lease_expires_at())

    def failed(self, error: Exception) -> None:
        self.error = error
        self.ending(lost=True)
        self.notify()

    def poll_due(self, ran: float) -> float:
        return ran + self.most_blocked

    async def revoke(self, deadline: float) -> SupportedProtocols | None:
        # Once more: a generation that is revoked in the step that began it was not here yet when
        # `ending` was called, and the user may have taken it since.
        self.ending(lost=False)
        self.fresh = None
        with anyio.move_on_at(deadline):
            while self.current is not None:
                await self.changed.wait()
        return None

    async def lose(self, reason: str) -> SupportedProtocols | None:
        # The work in hand was cancelled through its scope; waiting for it would help nobody.
        self.ending(lost=True)
        self.fresh = None
        return None

    async def assign(self, generation: GenerationInfo) -> None:
        self.latest = self.fresh = Generation(generation, self.lease_expires_at(), timed=self.timed)
        self.notify()

    async def compute(self, work: Compute) -> dict[str, bytes]:
        assigned = self.protocols[work.protocol_name].assign(work.members)
        strangers = sorted(set(assigned) - set(work.members))
        if strangers:
            raise ConfigurationError(f"{work.protocol_name!r} assigned to strangers: {strangers}")
        return {member: bytes(assigned.get(member, b"")) for member in work.members}


@public
class GroupMember(Service):
    """A member of a group of any type.

    ```python
    async with GroupMember("workers", protocol, bootstrap_servers="localhost:9092") as member:
        async for generation in member:
            with generation.scope():
                await work_on(generation.assignment)
    ```

    Asking for the next generation says that the work of the last one is over: until then, or until
    the rebalance timeout, the group waits.

    A generation is over, too, once a session timeout has passed without an acknowledgement: the
    member then asks for a new one, which comes when the coordinator is back.

    Many members in one process share its loop. Python's collector stops that while it goes through
    all that they have, and is late with heartbeats: with hundreds, call `gc.collect()` and
    `gc.freeze()` once they have started, and what they have is gone through no more.
    """

    @explains_unknown_options
    def __init__(
        self,
        group_id: str,
        protocols: GroupProtocol | Iterable[GroupProtocol],
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "kafkagroup",
        security: Security | None = None,
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 1_000,
        heartbeat_thread: bool = False,
        membership: Membership | None = None,
        rebalance_timeout_ms: int = 300_000,
        rebalance_max_retries: int | None = None,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        leave_group_on_close: bool | None = None,
        close_timeout: float = 10.0,
    ) -> None:
        """With `heartbeat_thread` the membership survives that the event loop is blocked, for as
        long as `rebalance_timeout_ms`; see the README's table of options for the rest.

        With `membership=ZooKeeperMembership(...)` the group is kept in ZooKeeper, and no Kafka is
        asked. Every member then calls `assign`, with the same members; a generation is taken up
        when all the others have let go of older ones.

        Raises: ConfigurationError.
        """
        options = GroupMemberOptions.checked(locals())
        super().__init__(
            options.close_timeout, f"group_id={options.group_id!r}, client_id={options.client_id!r}"
        )
        offered = (protocols,) if isinstance(protocols, GroupProtocol) else tuple(protocols)
        _check(offered)
        self._servers = parse_servers(options.bootstrap_servers)
        self._options = client_options(options)
        self._member = Member(
            config=Config(
                group_id=options.group_id,
                protocol_type=offered[0].type,
                group_instance_id=options.group_instance_id,
                session_timeout=options.session_timeout,
                rebalance_timeout=options.rebalance_timeout,
                heartbeat_interval=options.heartbeat_interval,
                request_timeout=options.request_timeout,
                retry_backoff=options.retry_backoff,
                retry_backoff_max=options.retry_backoff_max,
                max_retries=options.rebalance_max_retries,
            ),
            protocols=_offer(offered),
        )
        threaded = options.heartbeat_thread
        self._leave_group = options.leave_group_on_close
        self._lag = LoopLag(options.group_id, options.session_timeout, threaded=threaded)
        self._kind = ThreadedDriver if threaded else Driver
        self._membership = options.membership
        self._desk = _GenerationQueue(
            offered,
            lambda: self._running_driver().ownership.lease_expires_at,
            most_blocked=options.rebalance_timeout,
            timed=not threaded or options.membership is not None,
        )
        self._history = History()
        self._troubles = Troubles(self._history.feed.publish)
        self._checkup = Checkup(self._lag)
        self._clock = anyio.current_time
        """The loop's clock, bound to the loop once it runs: metrics are read in any thread."""
        self._driver: Running | None = None
        self._cluster: Cluster | None = None

    def __aiter__(self) -> GroupMember:
        return self

    async def __anext__(self) -> Generation:
        """Give back the generation in hand, and wait for the next one.

        Raises: NotStartedError; the error that ended the membership, if one did. Iteration ends
        after `stop`.
        """
        if not self._running:
            raise _not_started()
        desk = self._desk
        desk.release()
        await anyio.lowlevel.checkpoint()
        while True:
            if desk.error is not None:
                raise desk.error
            if desk.closed:
                raise StopAsyncIteration
            if desk.fresh is not None:
                break
            await desk.changed.wait()
        desk.current, desk.fresh = desk.fresh, None
        return desk.current

    @property
    def generation(self) -> Generation | None:
        """The generation that stands, whether or not it was taken by iterating; None while none
        does."""
        latest = self._desk.latest
        return None if latest is None or latest.over.is_set() else latest

    async def wait_generation(self, after: Generation | None = None) -> Generation:
        """Wait until a generation other than `after` stands, without taking it. For those who only
        watch, also before the start: only whoever iterates answers for the work.

        Raises: the error that ended the membership; ConsumerClosedError after `stop`.
        """
        desk = self._desk
        await anyio.lowlevel.checkpoint()
        while (generation := self.generation) is None or generation is after:
            if desk.error is not None:
                raise desk.error
            if desk.closed:
                raise ConsumerClosedError("the member was closed")
            await desk.changed.wait()
        return generation

    async def describe(self) -> DescribedGroup:
        """The group as its coordinator tells of it; also after the membership has failed.

        Raises: BrokerError; TransportError.
        """
        if self._cluster is None:
            raise _not_started()
        group_id = self._member.config.group_id
        coordinator = self._cluster.broker(await self._cluster.find_coordinator(group_id))
        answer = await coordinator.request(DescribeGroupsRequest(groups=(group_id,)))
        (group,) = answer.groups
        if group.error_code:
            raise broker_error(
                group.error_code, group.error_message, operation="DESCRIBE", group=group_id
            )
        return group

    @property
    def loop_lag(self) -> float:
        """By how many seconds, at most, the event loop was late during the last minute, as seen
        with each heartbeat. May be read from any thread."""
        return self._lag.longest

    @property
    def member_id(self) -> str:
        """This member, as the coordinator calls it; "" before it has joined."""
        return self._running_driver().member_id

    @property
    def generation_id(self) -> int:
        """The generation that this member joined last, also while it computes the assignment of
        it; -1 before it has joined."""
        return self._running_driver().generation_id

    @property
    def coordinator(self) -> Node | None:
        """The broker that coordinates the group; None while it is not known."""
        return None if self._driver is None else self._driver.coordinator

    def invalidate_coordinator(self, reason: str = "the application asked for it") -> None:
        """Look for the coordinator again. The membership goes on: a member of the group stays one
        wherever the group is coordinated."""
        self._running_driver().invalidate_coordinator(reason)

    def metrics(self) -> GroupMetrics:
        """Heartbeats, joins and syncs of the last minute; rebalances and why; the loop's lag. May
        be called from any thread. Raises: ConsumerClosedError before it is started."""
        driver = self._running_driver()
        return self._history.metrics(self._clock(), driver, self._lag.longest)

    def health(
        self, *, joining_after: float | None = None, loop_lag_above: float | None = None
    ) -> Health:
        """Whether this member is one: true, or the reasons why not. A rebalance may take
        `joining_after` seconds (None: `rebalance_timeout_ms`), the event loop may be late by
        `loop_lag_above` (None: what is worth a warning). Never raises."""
        driver, error = self._driver, self._desk.error
        if error is not None:
            return not_well(HealthProblem.FAILED, str(error))
        if driver is None or self._desk.closed:
            return not_well(HealthProblem.NOT_RUNNING, "not started, or closed")
        patience = self._member.config.rebalance_timeout if joining_after is None else joining_after
        settled = self.generation is not None
        now = anyio.current_time()
        return Health(
            (
                *self._checkup.check_loop(loop_lag_above),
                *self._checkup.check_membership(now, driver, settled=settled, patience=patience),
                *check_troubles(now, self._troubles),
            )
        )

    def events(self, buffer: int = 256) -> GroupEvents:
        """What happens to the membership from now on, as an async iterator of values: rebalances
        with their causes and phases, losses, coordinators, trouble that lasts. It ends after
        `stop`. Who reads too slowly loses the oldest of more than `buffer` events, and is told
        (`EventsMissed`).

        Raises: ConfigurationError where the group is not kept by Kafka.
        """
        if self._membership is not None:
            raise ConfigurationError("events() are of groups that Kafka keeps: no membership=")
        return self._history.feed.open(buffer)

    def rejoin(self, reason: str = "the application asked for it") -> None:
        """Ask the group for a new generation."""
        self._rejoin(RebalanceCause.REQUESTED, reason)

    def update(self, protocols: GroupProtocol | Iterable[GroupProtocol]) -> None:
        """Offer other protocols or other metadata from now on; the group rebalances.

        Called between `over` of the generation in hand and asking for the next one, it takes part
        in the rebalance that is under way and costs none of its own.
        """
        offered = (protocols,) if isinstance(protocols, GroupProtocol) else tuple(protocols)
        config = self._member.config
        _check(offered)
        if offered[0].type != config.protocol_type:
            raise ConfigurationError(
                f"a member of type {config.protocol_type!r} cannot become {offered[0].type!r}"
            )
        self._desk.protocols = {p.name: p for p in offered}
        self._rejoin(RebalanceCause.SUBSCRIPTION, "the metadata changed", _offer(offered))

    def _rejoin(
        self, cause: RebalanceCause, reason: str, protocols: SupportedProtocols | None = None
    ) -> None:
        driver = self._running_driver()
        self._history.asked(cause, reason)
        driver.rejoin(reason, protocols)

    def _running_driver(self) -> Running:
        if self._driver is None:
            raise _not_started()
        return self._driver

    async def stop(self, *, leave_group: bool | None = None) -> None:
        """Close in good order, within the close timeout. `leave_group` overrules
        `leave_group_on_close`. Stopping twice does nothing more."""
        if leave_group is not None:
            self._leave_group = leave_group
        await super().stop()

    async def _open(self, tasks: TaskGroup) -> None:
        self._cluster = Cluster(self._servers, self._options, tasks, self._troubles)
        self._clock = loop_clock()
        if self._membership is None:
            await self._cluster.refresh()
        self._driver = self._begin(self._cluster, self._member.protocols)
        self._spawn(tasks, partial(self._be_member, self._cluster, self._driver), "membership")
        tasks.start_soon(self._keep_time)

    def _begin(self, cluster: Cluster, protocols: SupportedProtocols) -> Running:
        """A member that is yet to run."""
        member = evolve(self._member, protocols=protocols)
        if self._membership is None:
            return self._kind(cluster, member, self._desk, self._lag, self._history)
        config = member.config
        return self._membership.begin(
            self._desk,
            group_id=config.group_id,
            protocol_type=config.protocol_type,
            protocols=protocols,
            whole=True,
            client_id=self._options.client_id,
            rebalance_timeout=config.rebalance_timeout,
            retry_backoff=config.retry_backoff,
            retry_backoff_max=config.retry_backoff_max,
            max_retries=config.max_retries,
            lag=self._lag,
            troubles=self._troubles,
        )

    async def _be_member(self, cluster: Cluster, driver: Running) -> None:
        await driver.run()
        while not self._desk.closed and driver.is_expelled:
            # The loop was blocked for too long; it runs again, and nobody asks to join again.
            driver = self._driver = self._begin(cluster, driver.protocols)
            await driver.run()

    async def _keep_time(self) -> None:
        """End the generation whose session has run out unheard.

        Its scopes are cancelled by their deadline; without a new generation their work would stand
        still once the coordinator is back and finds nothing wrong.
        """
        desk = self._desk
        while True:
            generation = desk.latest
            if generation is None or generation.over.is_set():
                await desk.changed.wait()
                continue
            await anyio.sleep_until(generation.lease_expires_at)
            if anyio.current_time() < (until := desk.lease_expires_at()):
                generation._extend(until)
            elif not generation.over.is_set():
                generation._end()
                self._rejoin(
                    RebalanceCause.SILENCE,
                    "no heartbeat was acknowledged within the session timeout",
                )

    async def _close(self) -> None:
        try:
            await self._leave()
        finally:
            self._history.feed.close()

    async def _leave(self) -> None:
        desk = self._desk
        desk.closed = True
        desk.ending(lost=False)
        desk.notify()
        if desk.latest is not None:
            # Left earlier, another member could begin while this one's work is still ending.
            await desk.latest._wait_vacated()
        if self._driver is not None and not self._driver.closed.is_set():
            desk.release()
            self._driver.leave("the member was closed", leave_group=self._leave_group)
            await self._driver.closed.wait()
        if self._cluster is not None:
            await self._cluster.aclose()

    def _crashed(self, error: Exception) -> None:
        self._desk.failed(error)


def _not_started() -> NotStartedError:
    return NotStartedError("the member is not started; use `async with` or start()")


def _offer(protocols: Sequence[GroupProtocol]) -> tuple[tuple[str, bytes], ...]:
    return tuple((p.name, p.metadata) for p in protocols)


def _check(protocols: Sequence[GroupProtocol]) -> None:
    """Raises: ConfigurationError for protocols that no group can have together."""
    if not protocols:
        raise ConfigurationError("a member needs at least one GroupProtocol")
    types = sorted({p.type for p in protocols})
    if len(types) > 1:
        raise ConfigurationError(f"the protocols are of several types: {types}; a group has one")
    names = [p.name for p in protocols]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two protocols have the same name: {names}")

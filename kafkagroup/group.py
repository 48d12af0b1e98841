"""`GroupMember`: membership of any group, one generation at a time.

`Election` and `Shards` are built on it; `Consumer` runs on the same driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio

from kafkagroup._client_name import client_name
from kafkagroup._option_kinds import takes_options
from kafkagroup._public import public
from kafkagroup._text import escaped
from kafkagroup._values import evolve, frozen
from kafkagroup.concurrency.clock import current_time, lease_clock
from kafkagroup.consume.partitions import check_text
from kafkagroup.errors import (
    ClosedError,
    ClusterChangedError,
    ConfigurationError,
    NotStartedError,
    broker_error,
)
from kafkagroup.events import RebalanceCause
from kafkagroup.member.vocabulary import GenerationInfo, MemberMetadata
from kafkagroup.options import GroupMemberOptions
from kafkagroup.runtime.client.connection_options import connection_options
from kafkagroup.runtime.client.late_modules import late_modules_of_member
from kafkagroup.runtime.client.service import Service
from kafkagroup.runtime.consume.close_sequence import LEAVE_FRACTION
from kafkagroup.runtime.consume.health import (
    Checkup,
    Health,
    HealthProblem,
    check_troubles,
    not_well,
)
from kafkagroup.runtime.member.classic_protocol import CLASSIC
from kafkagroup.runtime.member.event_feed import GroupEvents
from kafkagroup.runtime.member.generations import Generation, GenerationQueue, Strategies
from kafkagroup.runtime.member.history import History
from kafkagroup.runtime.member.interfaces import MemberFactory, RunningMember
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.members import Members, member_config
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.metrics import GroupMetrics
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import parse_servers
from kafkagroup.transport.origin import Origin
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
    """The strategy's name. The coordinator picks a strategy that every member supports."""
    metadata: bytes
    """This member's metadata for the leader."""
    assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
    """Member id -> metadata in, member id -> assignment out. Called on the leader; a pure function.
    A member that is left out is assigned b""."""


@public
class GroupMember(Service):
    """A member of a group of any type.

    ```python
    async with GroupMember("workers", protocol, bootstrap_servers="localhost:9092") as member:
        async for generation in member:
            with generation.scope():
                await work_on(generation.assignment)
    ```

    Requesting the next generation releases the last one. During a rebalance the group waits for
    that, up to three quarters of the rebalance timeout.

    A generation also ends when no heartbeat was acknowledged for a session timeout. The member then
    requests a new generation, which begins when the coordinator responds again.

    With hundreds of members in one process, Python's garbage collector delays their heartbeats.
    Call `gc.collect()` and `gc.freeze()` once they have started.
    """

    @takes_options(GroupMemberOptions)
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
        membership: MemberFactory | None = None,
        rebalance_timeout_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_recovery_rebootstrap_trigger_ms: int = 300_000,
        connections_max_idle_ms: int = 540_000,
        on_cluster_change: Literal["raise", "adopt"] = "raise",
        leave_group_on_close: bool | None = None,
        close_timeout: float = 10.0,
    ) -> None:
        """With `heartbeat_thread` the membership survives a blocked event loop for up to
        `rebalance_timeout_ms`.

        With `membership=ZooKeeperMembership(...)` ZooKeeper coordinates the group, without Kafka.
        Every member then calls `assign`, with the same members, and a generation begins when all
        other members have released older ones.

        Raises: ConfigurationError.

        Args:
            group_id: The group. Kafka's `group.id`.
            protocols: One strategy or several, in the order of preference. The coordinator picks
                one that every member supports.
            bootstrap_servers: `host:port`, comma-separated or a sequence: the addresses of some
                brokers, through which the client finds the others. Default `'localhost:9092'`;
                Kafka's `bootstrap.servers`.
            client_id: The client's name in the brokers' logs and quotas. Default `'kafkagroup'`;
                Kafka's `client.id`.
            security: A `Security`: TLS, SASL or both; `None` is plain TCP.
            group_instance_id: Static membership: a name that this member keeps across restarts, so
                that a restart within the session timeout causes no rebalance. Default `None`;
                Kafka's `group.instance.id`.
            session_timeout_ms: How long the coordinator waits for a heartbeat before it removes the
                member. In milliseconds; default 45,000; Kafka's `session.timeout.ms`.
            heartbeat_interval_ms: Time between two heartbeats; less than the session timeout. In
                milliseconds; default 1,000; Kafka's `heartbeat.interval.ms`.
            heartbeat_thread: Run the membership in a thread with its own event loop, so that
                heartbeats continue while the application blocks its loop; records, commits and
                callbacks stay in the application's loop. Code that holds the interpreter lock stops
                the thread too; a token callback of `security` is called in both threads. Default
                `False`.
            membership: The group coordination, if not Kafka's: a `ZooKeeperMembership`. Default
                `None`.
            rebalance_timeout_ms: How long members may take to finish their work and rejoin in a
                rebalance. In milliseconds; default 300,000.
            request_timeout_ms: How long a response may take. In milliseconds; default 30,000;
                Kafka's `request.timeout.ms`.
            retry_backoff_ms: Backoff before the first retry; it doubles, with jitter. In
                milliseconds; default 100; Kafka's `retry.backoff.ms`.
            retry_backoff_max_ms: Upper limit of that backoff, before its jitter of a fifth. In
                milliseconds; default 1,000; Kafka's `retry.backoff.max.ms`.
            metadata_recovery_rebootstrap_trigger_ms: How long all known brokers may fail before the
                client forgets their addresses and asks only the bootstrap addresses, whose names it
                resolves again (KIP-1102). It also asks those whenever no known broker responds. In
                milliseconds; default 300,000; Kafka's `metadata.recovery.rebootstrap.trigger.ms`.
            connections_max_idle_ms: Close a connection after this time without a request, before a
                load balancer or firewall forgets it; the next request opens another one. In
                milliseconds; default 540,000; Kafka's `connections.max.idle.ms`.
            on_cluster_change: What to do when no broker of the client's cluster responds and the
                bootstrap addresses lead to another cluster: `"raise"`: raise `ClusterChangedError`
                once a minute, until the cluster responds again; or, for a failover behind one name,
                `"adopt"` the other cluster and forget what was known of the earlier one: a member
                rejoins, and positions are looked up anew. Default `'raise'`.
            leave_group_on_close: Leave the group on close, so that it does not wait for the session
                timeout; `None`: static members stay, the others leave. `True` removes a static
                member, too (KIP-1092).
            close_timeout: Seconds that closing may take, with all that it waits for. Default
                `10.0`.
        """

    def _set_up(
        self, options: GroupMemberOptions, protocols: GroupProtocol | Iterable[GroupProtocol]
    ) -> None:
        """Called by the constructor, with the checked options (`takes_options`)."""
        super().__init__(
            options.close_timeout,
            f"group_id={options.group_id!r}, client_id={options.client_id!r}",
            late_modules_of_member(options),
        )
        given = (protocols,) if isinstance(protocols, GroupProtocol) else tuple(protocols)
        _check_protocols(given)
        self._servers = parse_servers(options.bootstrap_servers)
        self._log = MembershipLog("member", options.client_id, options.group_id)
        self._client_options = connection_options(options, self._log.name)
        # `exclusive_generations`: it has an effect only with ZooKeeper.
        self._config = evolve(member_config(options, given[0].type), exclusive_generations=True)
        self._metadata = MemberMetadata(protocols=_metadata_of(given))
        """What the next member joins with."""
        self._member_factory: MemberFactory | None = options.membership
        """Creates the members if Kafka does not coordinate the group."""
        self._is_threaded = is_threaded = options.heartbeat_thread
        self._leave_group = options.leave_group_on_close
        self._loop_delay = LoopDelay(
            options.group_id, options.session_timeout, threaded=is_threaded
        )
        self._queue = GenerationQueue(
            _strategies(given),
            lambda: self._running_driver().member.ownership.lease_expires_at,
            self._on_lease_expired,
            max_stall=options.rebalance_timeout,
            # A heartbeat thread extends the lease while the loop is stalled: after the stall, the
            # deadlines of scopes would be outdated. With `membership` there is no such thread.
            timed=not is_threaded or options.membership is not None,
            log=self._log,
        )
        self._history = History()
        self._troubles = Troubles(self._history.feed.publish)
        self._checkup = Checkup(self._loop_delay)
        self._clock = current_time
        """Returns the time on the loop's clock: after the start, in any thread."""
        self._driver: RunningMember | None = None
        """Runs the present member, or the last one; None before the start."""
        self._cluster: Cluster | None = None
        """None before the start."""
        self._members: Members
        """Set when the member starts."""

    # ------------------------------------------------------------ generations

    def __aiter__(self) -> GroupMember:
        return self

    async def __anext__(self) -> Generation:
        """Release the last generation, and wait for the next one.

        Raises: NotStartedError; the error that ended the membership, if one did. Raises once, while
        the membership continues: AuthenticationError for a refused login, and ClusterChangedError.
        Iteration ends after `stop`.
        """
        if not self._was_started:
            raise _not_started()
        self._check_origin()
        queue = self._queue
        if self._cluster is not None and not queue.has_report:
            # If a refused login was raised, and the application continues, log in again.
            self._cluster.logins.suspended = None
        queue.release()
        # The call can be cancelled here even if it need not wait, but not once it has a generation.
        await anyio.lowlevel.checkpoint()
        while True:
            queue.raise_error()
            if queue.is_closed:
                raise StopAsyncIteration
            if (generation := queue.pending) is not None:
                queue.take(generation)
                return generation
            await queue.changed.wait()

    @property
    def generation(self) -> Generation | None:
        """The current generation, taken by iterating or not; None during a rebalance, and after the
        lease has expired."""
        return self._queue.ongoing

    async def wait_generation(self, after: Generation | None = None) -> Generation:
        """Wait for a current generation other than `after`, without taking it. For tasks that only
        watch, also before the start.

        Raises: the error that ended the membership; ClosedError after `stop`.
        """
        self._check_origin()
        queue = self._queue
        await anyio.lowlevel.checkpoint()
        while (generation := self.generation) is None or generation is after:
            if queue.error is not None:
                raise queue.error
            if queue.is_closed:
                raise ClosedError("the member was closed")
            await queue.changed.wait()
        return generation

    # ------------------------------------------------------------ facts

    async def describe(self) -> DescribedGroup:
        """Request the group's description from its coordinator. Works after a failure too.

        Raises: NotStartedError; BrokerError; TransportError.
        """
        if self._cluster is None:
            raise _not_started()
        self._check_origin()
        group_id = self._config.group_id
        # Looked up each time: nothing repeats the request at another broker.
        coordinator = self._cluster.broker(await self._cluster.coordinators.look_up(group_id))
        response = await coordinator.request(DescribeGroupsRequest(groups=(group_id,)))
        (group,) = response.groups
        if group.error_code:
            raise broker_error(
                group.error_code, group.error_message, operation="DESCRIBE", group=group_id
            )
        return group

    @property
    def loop_delay(self) -> float:
        """The longest delay of the event loop during the last minute, in seconds, measured at each
        heartbeat. May be read from any thread."""
        return self._loop_delay.longest

    @property
    def member_id(self) -> str:
        """The member id that the coordinator gave to this member; "" before it has joined. Raises:
        NotStartedError."""
        return self._running_driver().member.member_id

    @property
    def generation_id(self) -> int:
        """The generation that this member joined last, also while it computes that generation's
        assignments; -1 before it has joined. Raises: NotStartedError."""
        return self._running_driver().member.generation_id

    @property
    def coordinator(self) -> Node | None:
        """The broker that coordinates the group; None while it is not known."""
        return None if self._driver is None else self._driver.coordinator

    def metrics(self) -> GroupMetrics:
        """Return the heartbeats, joins and syncs of the last minute, the rebalances with their
        causes, and the delay of the loop. May be called from any thread.

        Raises: NotStartedError before the member is started, and in a process that was forked from
        the one that started it."""
        if fork := self._fork_message:
            raise NotStartedError(fork)
        driver = self._running_driver()
        return self._history.metrics(self._clock(), driver, self._loop_delay.longest)

    def health(
        self, *, joining_after: float | None = None, loop_delay_above: float | None = None
    ) -> Health:
        """Return whether the membership works: true, or false with the reasons. A rebalance may
        take `joining_after` seconds (None: `rebalance_timeout_ms`), and the event loop may be late
        by `loop_delay_above` seconds (None: the limit of the logged warning). Never raises. May be
        called from any thread; in a process that was forked from the one that started the member,
        the member does not run."""
        if fork := self._fork_message:
            return not_well(HealthProblem.NOT_RUNNING, fork)
        driver, error = self._driver, self._queue.error
        if error is not None:
            return not_well(HealthProblem.FAILED, str(error))
        if driver is None or self._queue.is_closed:
            return not_well(HealthProblem.NOT_RUNNING, "not started, or closed")
        if joining_after is None:
            joining_after = self._config.rebalance_timeout
        is_stable = self._queue.is_ongoing
        now = self._clock()
        return Health(
            (
                *self._checkup.check_loop(loop_delay_above),
                *self._checkup.check_membership(
                    now, driver, is_stable=is_stable, joining_after=joining_after
                ),
                *check_troubles(now, self._troubles),
            )
        )

    def events(self, buffer: int = 256) -> GroupEvents:
        """Return an async iterator over the membership's events from now on: rebalances with their
        causes and phases, losses, coordinators, lasting trouble. It ends after `stop`. A reader
        that is more than `buffer` events behind loses the oldest, and receives `EventsMissed`.

        Raises: ConfigurationError with `membership=`, where Kafka does not coordinate the group.
        """
        if self._member_factory is not None:
            raise ConfigurationError("events() need a group that Kafka coordinates: no membership=")
        return self._history.feed.open(buffer, self._check_origin)

    # ------------------------------------------------------------ requests to the group

    def rejoin(self, reason: str = "the application asked for it") -> None:
        """Request a rebalance, and so a new generation. Without effect once the membership has
        ended. Raises: NotStartedError."""
        check_text("reason", reason)
        self._check_origin()
        self._rejoin(RebalanceCause.REQUESTED, reason)

    def update(self, protocols: GroupProtocol | Iterable[GroupProtocol]) -> None:
        """Replace the supported protocols and their metadata; the group rebalances.

        Called after a generation is `over` and before the next one is requested, this takes effect
        in the rebalance that is under way and causes no other. Without effect once the membership
        has ended.

        Raises: ConfigurationError, also for another type of group than before; NotStartedError.
        """
        given = (protocols,) if isinstance(protocols, GroupProtocol) else tuple(protocols)
        config = self._config
        _check_protocols(given)
        self._check_origin()
        if given[0].type != config.protocol_type:
            raise ConfigurationError(
                f"a member of type {config.protocol_type!r} cannot become {given[0].type!r}"
            )
        driver, reason = self._running_driver(), "the metadata changed"
        # The earlier strategies stay: for a join in flight, the coordinator may pick one of them.
        self._queue.strategies = {**self._queue.strategies, **_strategies(given)}
        self._history.note_rejoin_request(RebalanceCause.SUBSCRIPTION, reason)
        # Noted here, too: if the driver's member has ended, another one follows.
        self._metadata = MemberMetadata(protocols=_metadata_of(given))
        driver.change_metadata(reason, self._metadata)

    def forget_coordinator(self, reason: str = "the application asked for it") -> None:
        """Invalidate the coordinator: look it up again. The membership continues. Raises:
        NotStartedError."""
        self._check_origin()
        self._running_driver().invalidate_coordinator(reason)

    def _rejoin(self, cause: RebalanceCause, reason: str) -> None:
        driver = self._running_driver()
        self._history.note_rejoin_request(cause, reason)
        driver.rejoin(reason)

    def _running_driver(self) -> RunningMember:
        """Return the driver. Raises: NotStartedError."""
        if self._driver is None:
            raise _not_started()
        return self._driver

    # ------------------------------------------------------------ starting and stopping

    async def stop(self, *, leave_group: bool | None = None) -> None:
        """Cancel the work in scopes, wait until it has ended, and leave the group, within
        `close_timeout`. `leave_group` overrides `leave_group_on_close`. A second call does nothing,
        and so does a call in a process that was forked from the one that started the member."""
        if leave_group is not None:
            self._leave_group = leave_group
        await super().stop()

    def _bind(self, origin: Origin) -> None:
        super()._bind(origin)
        clock = lease_clock()
        self._queue.bind_clock(clock)
        self._clock = clock.loop_now

    async def _open(self, tasks: TaskGroup) -> None:
        self._cluster = Cluster(self._servers, self._client_options, tasks, self._troubles)
        if self._member_factory is None:
            await self._cluster.refresh()
            self._cluster.watch_identity(
                on_changed=self._queue.report,
                on_adopted=self._on_cluster_adopted,
            )
            self._cluster.logins.watch(self._queue.report)
        self._members = Members(
            self._cluster,
            self._queue,
            CLASSIC,
            self._member_factory,
            self._loop_delay,
            self._log,
            self._history,
            is_threaded=self._is_threaded,
        )
        self._driver = driver = self._members.create(self._config, self._metadata)
        self._spawn(tasks, partial(self._run_members, driver), "membership")
        tasks.start_soon(self._queue.watch_leases)

    async def _run_members(self, driver: RunningMember) -> None:
        """Run the member, and another one after each that left without a call of `stop`."""
        await driver.run()
        while not self._queue.is_closed and driver.is_expelled:
            # The thread left the group because the loop was stalled, and the loop has resumed; or
            # another cluster was adopted.
            self._config = evolve(self._config, was_member=True)
            driver = self._driver = self._members.create(self._config, self._metadata)
            await driver.run()

    def _on_cluster_adopted(self, change: ClusterChangedError) -> None:
        """End the membership, which was in a group of the former cluster."""
        reason = f"cluster {escaped(change.found)} was adopted"
        # Without a request to leave: the group of the adopted cluster does not know this member.
        self._running_driver().leave(reason, leave_group=False, lost=True)

    def _on_lease_expired(self) -> None:
        """Join again, after the queue has ended the generation because its lease has expired."""
        reason = "no heartbeat was acknowledged within the session timeout"
        self._rejoin(RebalanceCause.SILENCE, reason)

    async def _close(self) -> None:
        try:
            await self._leave()
        finally:
            self._history.feed.close()

    async def _leave(self) -> None:
        """Cancel the work in scopes and wait for its end, then leave the group and close the
        connections."""
        queue = self._queue
        deadline = anyio.current_time() + self._close_timeout * LEAVE_FRACTION
        queue.close()
        if self._cluster is not None:
            self._cluster.logins.suspended = None  # a login that was refused may succeed now
        # Before leaving: other members must not begin while this one's work, which `close` has
        # cancelled, still runs.
        await queue.wait_vacated()
        driver = self._driver
        if driver is not None and driver.closed.is_set() and self._members.unanswered_id:
            # The last member has ended, but the coordinator may still count it, as its request to
            # leave failed: repeat it by a member that only leaves.
            driver = self._members.create(self._config, self._metadata)
            self._leave_by(driver, deadline)
            await driver.run()
        elif driver is not None and not driver.closed.is_set():
            queue.release()
            self._leave_by(driver, deadline)
            await driver.closed.wait()
        self._cancel_requests()
        if self._cluster is not None:
            await self._cluster.aclose()

    def _leave_by(self, driver: RunningMember, deadline: float) -> None:
        driver.leave("the member was closed", leave_group=self._leave_group, deadline=deadline)

    def _crashed(self, error: Exception) -> None:
        self._queue.on_fatal_error(error)

    def _log_as(self, kind: str, describe: Callable[[GenerationInfo], tuple[str, bool]]) -> None:
        """Let log lines call this client `kind`, and describe its assignment by `describe`, as
        `MembershipLog.describe_as` says."""
        name = client_name(kind, self._client_options.client_id, self._config.group_id)
        self._log.describe_as(name, describe)
        self._client_options = evolve(self._client_options, name=self._log.name)


def _not_started() -> NotStartedError:
    return NotStartedError("the member is not started; use `async with` or start()")


def _strategies(protocols: Sequence[GroupProtocol]) -> Strategies:
    """Return protocol name -> the function that computes the assignments."""
    return {p.name: p.assign for p in protocols}


def _metadata_of(protocols: Sequence[GroupProtocol]) -> tuple[tuple[str, bytes], ...]:
    """Return what JoinGroup has: name and metadata of each protocol, the preferred first."""
    return tuple((p.name, p.metadata) for p in protocols)


def _check_protocols(protocols: Sequence[GroupProtocol]) -> None:
    """Raises: ConfigurationError for protocols that one member cannot support together."""
    if not protocols:
        raise ConfigurationError("a member needs at least one GroupProtocol")
    types = sorted({p.type for p in protocols})
    if len(types) > 1:
        raise ConfigurationError(f"the protocols are of several types: {types}; a group has one")
    names = [p.name for p in protocols]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two protocols have the same name: {names}")

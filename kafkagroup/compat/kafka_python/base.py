"""kafka-python's `BaseCoordinator`: a `kafkagroup.GroupMember` for subclassing.

A subclass defines the supported protocols, how the leader assigns, and what happens before and
after a join. The member sends heartbeats by itself, also between calls; no polling is needed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from kafkagroup import (
    ClosedError,
    ConfigurationError,
    Generation,
    GroupMember,
    GroupMetrics,
    GroupProtocol,
    Health,
    HealthProblem,
    Node,
)
from kafkagroup._hidden_values import hides_values
from kafkagroup.compat._tasks import TaskOwner
from kafkagroup.compat.kafka_python.client import KafkaClient
from kafkagroup.compat.kafka_python.heartbeat import Heartbeat
from kafkagroup.compat.kafka_python.metrics import GroupCoordinatorMetrics, Metrics

__all__ = ["BaseCoordinator", "HeartbeatTask", "awaited", "encoded", "has_failed"]

logger = logging.getLogger(__name__)


class _GroupClient(Protocol):
    """The methods that GroupMember and Consumer have in common."""

    @property
    def coordinator(self) -> Node | None: ...

    def forget_coordinator(self, reason: str) -> None: ...

    def metrics(self) -> GroupMetrics: ...


class HeartbeatTask:
    """The heartbeats of the member of a `BaseCoordinator`; they start with the first join."""

    def __init__(self, coordinator: BaseCoordinator) -> None:
        self._coordinator = coordinator

    async def disable(self) -> None:
        """Stop the member without leaving the group: the broker removes it when its session
        expires. The next `ensure_active_group` joins as a new member."""
        await self._coordinator._end(leave_group=False)

    def reset(self) -> None:
        """Restart the session timeout."""
        self._coordinator.heartbeat.reset_session_timeout()


class BaseCoordinator(TaskOwner):
    """Membership of one group.

    ```python
    async with Workers(KafkaClient(), Metrics(), group_id="workers") as coordinator:
        while True:
            await coordinator.ensure_active_group()
            with coordinator.current.scope():  # until the group rebalances
                await work()
    ```
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = {
        "group_id": "kafka-python-default-group",
        "session_timeout_ms": 30000,
        "heartbeat_interval_ms": 3000,
        "retry_backoff_ms": 100,
        "api_version": (0, 9),
        "metric_group_prefix": "",
    }
    """`api_version` is ignored: the client asks each broker for its API versions."""

    @hides_values
    def __init__(self, client: KafkaClient, metrics: Metrics, **configs: Any) -> None:
        """Raises: ConfigurationError, also for a config that is not in DEFAULT_CONFIG."""
        if unknown := sorted(configs.keys() - self.DEFAULT_CONFIG.keys()):
            raise ConfigurationError(f"no such config: {', '.join(unknown)}")
        self.config = {**self.DEFAULT_CONFIG, **configs}
        self.group_id = self.config["group_id"]
        self.generation = -1
        """The id of the last generation that was joined; -1 before a join, and after the membership
        has ended by `close` or an error."""
        self.member_id = ""
        """The member id in `generation`; "" while that is -1."""
        self.rejoining = False
        """Whether `_on_join_prepare` was called for a join that has not succeeded yet."""
        self.current: Generation | None = None
        """The last generation that was joined, as a value of the main API: `over` is set when it
        ends, and `scope()` cancels work at its end."""
        self.heartbeat = Heartbeat(observed=self._observe, **self.config)
        self.heartbeat_task = HeartbeatTask(self)
        self.sensors = GroupCoordinatorMetrics(
            self.heartbeat, metrics, self.config["metric_group_prefix"]
        )
        self._client = client
        super().__init__()
        self._member: GroupMember | None = None
        self._supported: tuple[tuple[str, bytes], ...] = ()
        """Name and metadata of the protocols that `_member` has."""
        self._coordinator: Node | None = None
        """The group's coordinator, as last found; None if it is unknown."""

    async def _start_tasks(self) -> None:
        pass  # `ensure_active_group` joins

    async def _stop_tasks(self) -> None:
        await self.close()

    # ------------------------------------------------------------ for subclasses

    def protocol_type(self) -> str:
        """Return the kind of group, such as "consumer" or "connect"."""
        raise NotImplementedError

    def group_protocols(self) -> Sequence[tuple[str, Any]]:
        """Return the supported protocols in order of preference, as pairs of name and metadata
        (bytes, or an object with `encode()`). Called before each join."""
        raise NotImplementedError

    def _on_join_prepare(self, generation: int, member_id: str) -> Any:
        """Clean up after this generation; may be a coroutine function."""

    def _perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> Mapping[str, Any]:
        """As the leader, return member id -> assignment (bytes, or an object with `encode()`) from
        the members' metadata. Must not block."""
        raise NotImplementedError

    def _on_join_complete(
        self, generation: int, member_id: str, protocol: str, member_assignment_bytes: bytes
    ) -> Any:
        """Apply the assignment; may be a coroutine function."""
        raise NotImplementedError

    # ------------------------------------------------------------ the coordinator

    def _group_client(self) -> _GroupClient | None:
        return self._member

    def _observe(self) -> GroupMetrics:
        client = self._group_client()
        try:
            return GroupMetrics() if client is None else client.metrics()
        except ClosedError:
            return GroupMetrics()  # not started yet, or closed

    @property
    def coordinator_id(self) -> int | None:
        """Node id of the group's coordinator; None while it is unknown."""
        return None if self._coordinator is None else self._coordinator.node_id

    def coordinator_unknown(self) -> bool:
        """Whether the group's coordinator is unknown."""
        client = self._group_client()
        if self._coordinator is not None and client is not None:
            self._coordinator = client.coordinator
        return self._coordinator is None

    async def ensure_coordinator_known(self) -> None:
        """Find the coordinator if it is unknown. Raises: the same as `Admin.find_coordinator`, with
        its default timeout."""
        if self.coordinator_unknown():
            async with self._client.admin() as admin:
                self._coordinator = await admin.find_coordinator(self.group_id)

    def coordinator_dead(self, error: object) -> None:
        """Invalidate the coordinator; it is looked up before the next request to it."""
        if self._coordinator is not None:
            logger.warning("group %s: the coordinator is invalidated: %s", self.group_id, error)
            self._coordinator = None
        if (client := self._group_client()) is not None:
            client.forget_coordinator(str(error))

    # ------------------------------------------------------------ membership

    def need_rejoin(self) -> bool:
        """Whether this member has to join the group, for the first time or again."""
        return self.current is None or self.current.over.is_set()

    async def ensure_active_group(self) -> None:
        """Join if necessary, and wait for the assignment. When a generation ends, the rebalance
        waits until this method is called again, at most for the session timeout.

        Raises: the error that ended the membership; what `ensure_coordinator_known` and the
        subclass's methods raise.
        """
        while self.need_rejoin():
            await self.ensure_coordinator_known()
            if not self.rejoining:
                await awaited(self._on_join_prepare(self.generation, self.member_id))
                self.rejoining = True
            member = await self._ensure_member()
            joined = self.current = await self._next_generation(member)
            self.generation, self.member_id = joined.generation_id, joined.member_id
            self._coordinator = member.coordinator
            self.heartbeat_task.reset()
            self.rejoining = False
            await awaited(
                self._on_join_complete(
                    joined.generation_id, joined.member_id, joined.protocol_name, joined.assignment
                )
            )

    async def _next_generation(self, member: GroupMember) -> Generation:
        try:
            return await anext(member)
        except Exception:  # also what the subclass has raised as it assigned
            if has_failed(member.health()):
                await self._end()  # as in kafka-python, the next call tries again
            raise

    async def _ensure_member(self) -> GroupMember:
        """Return the member, with the protocols that the subclass supports now: create it, or
        update it, or have it rejoin if its generation is current."""
        protocols = [self._protocol(name, encoded(data)) for name, data in self.group_protocols()]
        supported = tuple((p.name, p.metadata) for p in protocols)
        if self._member is None:
            self._member = GroupMember(
                self.group_id,
                protocols,
                **self._client.options,
                session_timeout_ms=self.config["session_timeout_ms"],
                heartbeat_interval_ms=self.config["heartbeat_interval_ms"],
                # JoinGroup v0 had no rebalance timeout: the session timeout served as both.
                rebalance_timeout_ms=self.config["session_timeout_ms"],
                retry_backoff_ms=self.config["retry_backoff_ms"],
                # The main API's default, or the backoff itself if that is longer.
                retry_backoff_max_ms=max(1_000, self.config["retry_backoff_ms"]),
            )
            try:
                await self._tasks.start(self._member)
            except BaseException:
                self._member = None
                raise
        elif supported != self._supported:
            self._member.update(protocols)
        elif self.current is not None and not self.current.over.is_set():
            # The generation is current: only a subclass's need_rejoin() wants another.
            self._member.rejoin("need_rejoin() says so")
        self._supported = supported
        return self._member

    def _protocol(self, name: str, metadata: bytes) -> GroupProtocol:
        def assign(members: Mapping[str, bytes]) -> Mapping[str, bytes]:
            # `_perform_assignment` must see the generation being assigned. Afterwards the
            # attributes are restored: the application has not applied that generation yet, and if
            # it does not call within the rebalance timeout, the member rejoins by itself.
            before = self.generation, self.member_id
            if self._member is not None:
                self.generation = self._member.generation_id
                self.member_id = self._member.member_id
            try:
                given = self._perform_assignment(self.member_id, name, list(members.items()))
            finally:
                self.generation, self.member_id = before
            return {member: encoded(assignment) for member, assignment in given.items()}

        return GroupProtocol(self.protocol_type(), name, metadata, assign)

    async def close(self) -> None:
        """Leave the group. `ensure_active_group` can join it again."""
        await self._end()

    async def _end(self, *, leave_group: bool | None = None) -> None:
        member, self._member = self._member, None
        if member is not None:
            await member.stop(leave_group=leave_group)
        self.current = None
        self.generation, self.member_id = -1, ""
        self._supported = ()


def has_failed(health: Health) -> bool:
    """Return whether a client has ended with an error, which each of its calls raises."""
    return any(finding.problem is HealthProblem.FAILED for finding in health.findings)


async def awaited(result: Any) -> None:
    """Await what a function of the application returned, if that is awaitable."""
    if inspect.isawaitable(result):
        await result


def encoded(value: Any) -> bytes:
    """Return metadata or an assignment as bytes: they are bytes, or have `encode()`."""
    return bytes(value) if isinstance(value, bytes | bytearray) else bytes(value.encode())

"""kafka-python's `ConsumerCoordinator`: a `kafkagroup.Consumer` with the methods of kafka-python.

To read records, iterate over `coordinator.consumer`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import anyio
import attrs

from kafkagroup import ClosedError, KafkaGroupError, OffsetAndMetadata, TopicPartition
from kafkagroup._extended_consumer import ExtendedConsumer
from kafkagroup._hidden_values import hides_values
from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup.assign import protocol_name, range_assignor, roundrobin_assignor
from kafkagroup.compat.kafka_python.base import (
    BaseCoordinator,
    _GroupClient,
    awaited,
    encoded,
    has_failed,
)
from kafkagroup.compat.kafka_python.client import KafkaClient, SubscriptionState
from kafkagroup.compat.kafka_python.future import Future
from kafkagroup.compat.kafka_python.metrics import ConsumerCoordinatorMetrics, Metrics
from kafkagroup.errors import IllegalStateError
from kafkagroup.wire import Subscription, decode_assignment, encode_subscription

__all__ = ["AutoCommitTask", "ConsumerCoordinator"]

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

_NEVER_MS = 2**31 - 1
"""The longest interval, in milliseconds: in effect, no periodic commit by the consumer."""


class _Once:
    """Calls and awaits a coroutine function when it is awaited first; later awaits do nothing."""

    def __init__(self, function: Callable[[], Awaitable[object]]) -> None:
        self._function: Callable[[], Awaitable[object]] | None = function

    def __await__(self) -> Generator[Any, Any, None]:
        function, self._function = self._function, None
        if function is not None:
            yield from function().__await__()


@attrs.frozen
class _Wanted:
    """What a consumer subscribes to."""

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None

    @classmethod
    def by(cls, subscription: SubscriptionState) -> _Wanted:
        pattern = subscription.whole_pattern()
        topics = () if pattern is not None else subscription.subscription or ()
        return cls(tuple(sorted(topics)), pattern)


class AutoCommitTask:
    """A task that commits the processed records at an interval."""

    def __init__(self, coordinator: ConsumerCoordinator, interval: float) -> None:
        self._coordinator = coordinator
        self._interval = interval
        self._scope: anyio.CancelScope | None = None

    def reschedule(self, at: float | None = None) -> None:
        """Commit at time `at`, in seconds on the loop's clock (default: one interval from now),
        then at each interval."""
        self.cancel()
        scope = self._scope = anyio.CancelScope()
        when = anyio.current_time() + self._interval if at is None else at

        async def commit_periodically() -> None:
            with scope:
                await anyio.sleep_until(when)
                while True:
                    await self._commit()
                    await anyio.sleep(self._interval)

        self._coordinator._tasks.spawn(commit_periodically)

    def cancel(self) -> None:
        """Stop committing."""
        if self._scope is not None:
            self._scope.cancel()

    async def _commit(self) -> None:
        consumer = self._coordinator.consumer
        try:
            await consumer.commit(consumer.processed())
        except KafkaGroupError as error:
            logger.warning("auto-commit: %s", error)


class ConsumerCoordinator(BaseCoordinator):
    """Membership of a consumer group, and the group's offsets. Its `current` is always None, and
    its `rejoining` False: the consumer rejoins by itself.

    ```python
    await coordinator.ensure_active_group()
    async for record in coordinator.consumer: ...
    ```
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = {
        "group_id": "kafka-python-default-group",
        "enable_auto_commit": True,
        "auto_commit_interval_ms": 5000,
        "default_offset_commit_callback": lambda offsets, response: True,
        "assignors": (range_assignor, roundrobin_assignor),
        "session_timeout_ms": 30000,
        "heartbeat_interval_ms": 3000,
        "retry_backoff_ms": 100,
        "api_version": (0, 9),
        "exclude_internal_topics": True,
        "metric_group_prefix": "consumer",
    }

    @hides_values
    def __init__(
        self,
        client: KafkaClient,
        subscription: SubscriptionState,
        metrics: Metrics,
        **configs: Any,
    ) -> None:
        """`assignors` are functions of `kafkagroup.assign`. Raises: ConfigurationError."""
        super().__init__(client, metrics, **configs)
        self._subscription = subscription
        self._commits = Future().success(True)
        """The last asynchronous commit: the next one waits for it, to keep the order."""
        # `_is_assigned`: whether the group has assigned partitions, possibly none, and has revoked
        # none since.
        self._is_started = self._is_assigned = self._is_ending = False
        self._subscribed: _Wanted | None = None
        """What the consumer subscribes to; None until it does."""
        self._revoking: frozenset[TopicPartition] = frozenset()
        """The partitions that are being revoked."""
        self._joined: tuple[int, str, str, bytes] | None = None
        """Generation, member id, protocol and assignment of the last join."""
        self._steps: list[_Once] = []
        """What this class's `_on_join_prepare` or `_on_join_complete` has returned in the present
        call of a hook; `_call_hook` awaits it if the hook has not."""
        self._hook_errors: list[Exception] = []
        """The errors of hooks; each `ensure_active_group` that joins raises one."""
        self.consumer = self._create_consumer()
        """The consumer of the main API: iterate over it. It is another one after `close`,
        `heartbeat_task.disable`, and an error that ended the membership."""
        interval = self.config["auto_commit_interval_ms"] / 1000
        is_auto_commit = self.config["enable_auto_commit"] and self.group_id is not None
        self._auto_commit_task = AutoCommitTask(self, interval) if is_auto_commit else None
        # A function, because `_end` replaces the consumer.
        subscription.assignment = lambda: self.consumer.assignment()
        subscription.observed = self._observe
        self.consumer_sensors = ConsumerCoordinatorMetrics(
            metrics, self.config["metric_group_prefix"], subscription
        )

    def _create_consumer(self) -> ExtendedConsumer:
        config = self.config
        return ExtendedConsumer(
            self,
            **self._client.options,
            group_id=self.group_id,
            assignors=config["assignors"],
            auto_offset_reset=self._subscription.offset_reset_strategy,
            # As in kafka-python.
            auto_offset_reset_new_partitions="policy",
            enable_auto_commit=config["enable_auto_commit"],
            # The task commits at the interval; the consumer itself on revocation and on close.
            auto_commit_interval_ms=_NEVER_MS,
            session_timeout_ms=config["session_timeout_ms"],
            heartbeat_interval_ms=config["heartbeat_interval_ms"],
            rebalance_timeout_ms=config["session_timeout_ms"],
            retry_backoff_ms=config["retry_backoff_ms"],
            # The main API's default, or the backoff itself if that is longer.
            retry_backoff_max_ms=max(1_000, config["retry_backoff_ms"]),
            exclude_internal_topics=config["exclude_internal_topics"],
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=self._revoked,
            on_partitions_lost=self._revoked,
        )

    def _group_client(self) -> _GroupClient | None:
        return self.consumer if self._is_started else None

    async def _ensure_started(self) -> None:
        """Start the consumer, unless it is started, without joining the group."""
        if self._is_started:
            return
        await self._tasks.start(self.consumer)
        self._is_started = True
        if self._subscription.assigned_by_user is not None:
            await self.consumer.assign(self._subscription.assigned_by_user)
        if self._auto_commit_task is not None:
            self._auto_commit_task.reschedule()

    # ------------------------------------------------------------ membership

    def protocol_type(self) -> str:
        """Return "consumer"."""
        return "consumer"

    def group_protocols(self) -> Sequence[tuple[str, Any]]:
        """Return each assignor's name, with the subscription that the leader receives. A subclass
        may return others; a subscription that it creates has to name what this member consumes."""
        topics = self._subscription.subscription
        if topics is None:
            raise IllegalStateError("nothing is subscribed to")
        subscriber = self.consumer.subscriber
        if subscriber is not None and self._subscribed is not None:
            return subscriber.assignors_protocols()
        metadata = encode_subscription(Subscription(topics=tuple(topics)))
        return [(protocol_name(assignor), metadata) for assignor in self.config["assignors"]]

    def need_rejoin(self) -> bool:
        """Whether topics are subscribed to, and the consumer has no current assignment for them. As
        long as a subclass returns true, each round of `ensure_active_group` joins anew."""
        return self._subscription.partitions_auto_assigned() and (
            not self._is_assigned or self._subscription.needs_partition_assignment
        )

    async def ensure_active_group(self) -> None:
        """Join if necessary, and wait for the assignment; or follow a changed manual assignment.

        Raises: the error that ended the membership, or that a hook of the subclass has raised.
        The next call tries again.
        """
        await self._ensure_assigned_by_user()
        while self.need_rejoin():
            if self.group_id is not None:
                await self.ensure_coordinator_known()
            await self._ensure_started()
            try:
                await self._join()
            except Exception:  # also what an assignor of the application has raised
                if has_failed(self.consumer.health()):
                    await self._end(commit=False)  # so that the next call can try again
                raise
            self._coordinator = self.consumer.coordinator
            self._raise_hook_error()

    async def _ensure_assigned_by_user(self) -> None:
        """Follow a manual assignment that has changed since the consumer was started."""
        wanted = self._subscription.assigned_by_user
        if self._is_started and wanted is not None and wanted != self.consumer.assignment():
            await self.consumer.assign(wanted)

    async def _join(self) -> None:
        """Join the group, or join it again, and wait for the assignment."""
        wanted = _Wanted.by(self._subscription)
        # The consumer rejoins by itself in a rebalance: then only wait.
        is_rebalancing = self._subscribed == wanted and not self._is_assigned
        self._subscription.needs_partition_assignment = False
        if not is_rebalancing:
            is_first, self._subscribed = self._subscribed is None, wanted
            if is_first:
                # kafka-python calls `_on_join_prepare` before every join. The main API has no
                # callback before the first one.
                await self._prepare(())
            self._is_assigned = False
            await self.consumer.subscribe(*wanted.topics, pattern=wanted.pattern)
        await self.consumer.wait_assignment()
        # Not every assignment calls `_assigned`: a cooperative one may add nothing. Without this
        # line `ensure_active_group` would loop without a wait.
        self._is_assigned = True

    def _raise_hook_error(self) -> None:
        if self._hook_errors:
            raise self._hook_errors.pop(0)

    # ------------------------------------------------------------ hooks

    # `ExtendedConsumer` uses the next four methods.

    @property
    def performs_assignment(self) -> bool:
        """Whether the subclass assigns by itself."""
        return type(self)._perform_assignment is not ConsumerCoordinator._perform_assignment

    def supported_protocols(self) -> tuple[tuple[str, bytes], ...]:
        """Return `group_protocols`, with the metadata as bytes."""
        return tuple((name, encoded(metadata)) for name, metadata in self.group_protocols())

    def perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> dict[str, bytes]:
        """Return what `_perform_assignment` returns, with the assignments as bytes."""
        given = self._perform_assignment(leader_id, protocol, members)
        return {member: encoded(assignment) for member, assignment in given.items()}

    def note_joined(
        self, generation: int, member_id: str, protocol: str, assignment: bytes
    ) -> None:
        """Keep the arguments with which `_on_join_complete` is to be called."""
        self._joined = (generation, member_id, protocol, assignment)

    def _perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> Mapping[str, Any]:
        """As the leader, return member id -> assignment (bytes, or an object with `encode()`) from
        the members' metadata: here, what the assignor named `protocol` assigns. Must not block.

        Raises: ConfigurationError if there is no such assignor.
        """
        subscriber = self.consumer.subscriber
        if subscriber is None:
            raise IllegalStateError("there is nothing to assign: this member leads no group")
        given = {member: encoded(metadata) for member, metadata in members}
        return subscriber.assigned_by_assignor(protocol, given)

    def _on_join_prepare(self, generation: int, member_id: str) -> Awaitable[None]:
        """Clean up after this generation: here, call the listener about what is revoked or lost.
        With auto-commit, the processed records of revoked partitions are committed already. A
        subclass may have a coroutine function that awaits this, or a plain function that calls it:
        then the listener is called afterwards."""
        return self._step("on_partitions_revoked", self._revoking)

    def _on_join_complete(
        self, generation: int, member_id: str, protocol: str, member_assignment_bytes: bytes
    ) -> Awaitable[None]:
        """Apply the assignment, which the consumer has by now: here, call the listener. A subclass
        may have a coroutine function that awaits this, or a plain function that calls it: then the
        listener is called afterwards."""
        partitions = decode_assignment(member_assignment_bytes)
        return self._step("on_partitions_assigned", partitions)

    def _step(self, method: str, partitions: Iterable[TopicPartition]) -> _Once:
        step = _Once(partial(self._call_listener, method, partitions))
        self._steps.append(step)
        return step

    async def _call_hook(self, hook: Callable[[], Any], name: str) -> None:
        """Call a hook, and await the `_steps` that it has not awaited. Its error is kept for
        `ensure_active_group`."""
        self._steps.clear()
        try:
            await awaited(hook())
            for step in self._steps:
                await step
        except USER_ERRORS as error:
            self._hook_errors.append(user_error(error, name))

    async def _prepare(self, revoked: Iterable[TopicPartition]) -> None:
        self._revoking = frozenset(revoked)
        hook = partial(self._on_join_prepare, self.generation, self.member_id)
        await self._call_hook(hook, "_on_join_prepare")

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        joined, subscriber = self._joined, self.consumer.subscriber
        assert joined is not None  # the consumer calls `note_joined` first
        assert subscriber is not None
        self.generation, self.member_id = joined[:2]
        self._is_assigned = True
        if self._subscription.subscribed_pattern is not None:
            self._subscription.subscription = set(subscriber.topics)
        self._subscription.needs_fetch_committed_offsets = True
        self.heartbeat_task.reset()
        await self._call_hook(partial(self._on_join_complete, *joined), "_on_join_complete")

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before partitions are revoked, and after they were lost."""
        self._is_assigned = False
        if self._is_ending:  # no join follows
            await self._call_listener("on_partitions_revoked", partitions)
        else:
            await self._prepare(partitions)

    async def _call_listener(self, method: str, partitions: Iterable[TopicPartition]) -> None:
        if (listener := self._subscription.listener) is None:
            return
        try:
            await awaited(getattr(listener, method)(set(partitions)))
        except USER_ERRORS as error:
            failure = user_error(error, method)
            logger.error(
                "group %s: %s of %r failed", self.group_id, method, listener, exc_info=failure
            )

    async def close(self, autocommit: bool = True) -> None:
        """Commit the processed records, if auto-commit is on and `autocommit`, and leave the
        group."""
        await self._end(commit=autocommit)

    async def _end(self, *, leave_group: bool | None = None, commit: bool = True) -> None:
        if self._auto_commit_task is not None:
            self._auto_commit_task.cancel()
        if self._is_started:
            self._is_ending = True
            try:
                await self.consumer.stop(commit=commit, leave_group=leave_group)
            finally:
                self._is_ending = False
            self.consumer = self._create_consumer()
        self._is_started = self._is_assigned = False
        self._subscribed = None
        await super()._end(leave_group=leave_group)

    # ------------------------------------------------------------ offsets

    def commit_offsets_async(
        self, offsets: Offsets, callback: Callable[[Offsets, Any], object] | None = None
    ) -> Future:
        """Commit without waiting, after the earlier commits. `callback(offsets, response)` is
        called with True or the error; the default is `default_offset_commit_callback`."""
        before, future = self._commits, Future()
        self._commits = future
        on_done = callback or self.config["default_offset_commit_callback"]
        send = self._prepare_commit(offsets)

        async def commit() -> None:
            failure: Exception | None = ClosedError("closed before the commit was answered")
            try:
                await before.wait()
                await send()
                failure = None
            except Exception as error:
                failure = error
            finally:  # also if this task is cancelled
                # The error of a callback of the future is logged, and must not end this task.
                with suppress(Exception):
                    if failure is None:
                        future.success(True)
                    else:
                        future.failure(failure)
            try:
                on_done(offsets, future.exception or True)
            except USER_ERRORS:
                logger.exception("the callback of a commit failed")

        self._tasks.spawn(commit)
        return future

    def _prepare_commit(self, offsets: Offsets) -> Callable[[], Awaitable[object]]:
        """Return a function that commits `offsets` for the present assignment, if there is one."""
        if not offsets or not self._is_started:
            return partial(self.commit_offsets_sync, offsets)
        try:
            return self.consumer._prepare_commit(offsets)
        except KafkaGroupError as error:
            refused = error  # Python deletes `error` at the end of this block

        async def fail() -> None:
            raise refused

        return fail

    async def commit_offsets_sync(self, offsets: Offsets) -> bool | None:
        """Commit, and retry until success, a permanent error, or the end of `request_timeout_ms`.
        Return True; None if `offsets` is empty.

        Raises: CommitFailedError, BrokerError, TransportError.
        """
        if not offsets:
            return None
        await self._ensure_started()
        await self.consumer.commit(offsets)
        return True

    async def fetch_committed_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets, without the partitions that have none."""
        wanted = list(partitions)
        if not wanted:
            return {}
        await self._ensure_started()
        found = await self.consumer.committed(wanted)
        return {tp: offset for tp, offset in found.items() if offset is not None}

    async def refresh_committed_offsets_if_needed(self) -> None:
        """After a rebalance, read the committed offsets into `subscription.committed`."""
        if self._subscription.needs_fetch_committed_offsets:
            # Cleared before the request: a rebalance meanwhile sets it again.
            self._subscription.needs_fetch_committed_offsets = False
            assigned = self._subscription.assigned_partitions()
            try:
                self._subscription.committed = await self.fetch_committed_offsets(assigned)
            except BaseException:
                self._subscription.needs_fetch_committed_offsets = True
                raise

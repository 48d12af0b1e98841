"""kafka-python's `ConsumerCoordinator`: a `kafkagroup.Consumer` with the methods of kafka-python.

To read records, iterate over `coordinator.consumer`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import anyio

from kafkagroup import (
    Consumer,
    ConsumerClosedError,
    KafkaGroupError,
    OffsetAndMetadata,
    Subscription,
    TopicPartition,
    encode_subscription,
)
from kafkagroup._hidden_values import hides_values
from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup.assign import protocol_name, range_assignor, roundrobin_assignor
from kafkagroup.compat.kafka_python.base import BaseCoordinator, _awaited, _Membership
from kafkagroup.compat.kafka_python.client import KafkaClient, SubscriptionState
from kafkagroup.compat.kafka_python.future import Future
from kafkagroup.compat.kafka_python.metrics import ConsumerCoordinatorMetrics, Metrics
from kafkagroup.errors import IllegalStateError

__all__ = ["AutoCommitTask", "ConsumerCoordinator"]

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

_NEVER_MS = 2**31 - 1
"""The longest interval, in milliseconds: in effect, no periodic commit by the consumer."""


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
    """Membership of a consumer group, and the group's offsets.

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
        self._is_started = self._is_subscribed = self._is_assigned = False
        self.consumer = self._create_consumer()
        """The consumer of the main API: iterate over it."""
        interval = self.config["auto_commit_interval_ms"] / 1000
        commits = self.config["enable_auto_commit"] and self.group_id is not None
        self._auto_commit_task = AutoCommitTask(self, interval) if commits else None
        subscription.assignment = lambda: self.consumer.assignment()
        subscription.observed = self._observe
        self.consumer_sensors = ConsumerCoordinatorMetrics(
            metrics, self.config["metric_group_prefix"], subscription
        )

    def _create_consumer(self) -> Consumer:
        config = self.config
        return Consumer(
            **self._client.options,
            group_id=self.group_id,
            assignors=config["assignors"],
            auto_offset_reset=self._subscription.offset_reset_strategy,  # type: ignore[arg-type]
            # As in kafka-python.
            auto_offset_reset_new_partitions="policy",
            enable_auto_commit=config["enable_auto_commit"],
            # The task commits at the interval; the consumer itself on revocation and on close.
            auto_commit_interval_ms=_NEVER_MS,
            session_timeout_ms=config["session_timeout_ms"],
            heartbeat_interval_ms=config["heartbeat_interval_ms"],
            rebalance_timeout_ms=config["session_timeout_ms"],
            retry_backoff_ms=config["retry_backoff_ms"],
            retry_backoff_max_ms=max(1_000, config["retry_backoff_ms"]),
            exclude_internal_topics=config["exclude_internal_topics"],
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=self._revoked,
            on_partitions_lost=self._revoked,
        )

    def _membership(self) -> _Membership | None:
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
        """ "consumer"."""
        return "consumer"

    def group_protocols(self) -> list[tuple[str, bytes]]:
        """Return each assignor's name, with the subscription that the leader receives."""
        topics = self._subscription.subscription
        if topics is None:
            raise IllegalStateError("nothing is subscribed to")
        metadata = encode_subscription(Subscription(topics=tuple(topics)))
        return [(protocol_name(assignor), metadata) for assignor in self.config["assignors"]]

    def need_rejoin(self) -> bool:
        """Whether topics are subscribed to and no assignment is current."""
        return self._subscription.partitions_auto_assigned() and not self._is_assigned

    async def ensure_active_group(self) -> None:
        """Join if necessary, and wait for the assignment.

        Raises: the error that ended the membership.
        """
        while self.need_rejoin():
            await self.ensure_coordinator_known()
            await self._ensure_started()
            await self._subscribe()
            await self.consumer.wait_assignment()
            self._coordinator = self.consumer.coordinator

    async def _subscribe(self) -> None:
        if self._is_subscribed:
            return
        self._is_subscribed = True  # from now on the consumer rejoins by itself
        # kafka-python calls on_partitions_revoked before every join, and listeners prepare there.
        # The main API does not call it before the first join.
        await self._call_listener("on_partitions_revoked", ())
        pattern = self._subscription.whole_pattern()
        topics = () if pattern is not None else sorted(self._subscription.subscription or ())
        await self.consumer.subscribe(*topics, pattern=pattern)

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        who = self.consumer.group_metadata()
        self.generation, self.member_id = who.generation_id, who.member_id
        self._is_assigned = True
        self._subscription.needs_fetch_committed_offsets = True
        self.heartbeat_task.reset()
        await self._call_listener("on_partitions_assigned", partitions)

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._is_assigned = False
        await self._call_listener("on_partitions_revoked", partitions)

    async def _call_listener(self, method: str, partitions: Iterable[TopicPartition]) -> None:
        if (listener := self._subscription.listener) is None:
            return
        try:
            await _awaited(getattr(listener, method)(set(partitions)))
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
            await self.consumer.stop(commit=commit, leave_group=leave_group)
            self.consumer = self._create_consumer()
        self._is_started = self._is_subscribed = self._is_assigned = False
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
            try:
                await before.wait()
                await send()
                future.success(True)
            except Exception as error:
                future.failure(error)
            finally:
                if not future.is_done:
                    future.failure(ConsumerClosedError("closed before the commit was answered"))
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
            refused = error

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
            self._subscription.needs_fetch_committed_offsets = False
            assigned = self._subscription.assigned_partitions()
            self._subscription.committed = await self.fetch_committed_offsets(assigned)

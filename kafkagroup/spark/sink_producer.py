"""A producer for code without an event loop: the tasks that write rows.

It runs in an event loop in a thread of its own, and sends batches while the task encodes the next
ones.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from kafkagroup._backend import callback_context
from kafkagroup.errors import BrokerError, BufferFullError, ErrorCode
from kafkagroup.producer import Producer
from kafkagroup.spark.options import SinkOptions
from kafkagroup.transport.security import Security
from kafkagroup.wire.batch_writing import EncodedRecords
from kafkagroup.wire.error_codes import BEING_CREATED

__all__ = ["SinkProducer"]

_Batch = tuple[str, int, EncodedRecords]
"""Topic, partition and records."""

_CREATION_TIMEOUT = 10.0
"""Seconds that a topic may take to be created: the brokers' error is the same while it is created
and if they do not create it."""

_CLOSE_TIMEOUT = 2.0
"""Seconds for which the close of a producer waits for batches in flight: only if a task failed, as
a task that succeeds has flushed all."""


class SinkProducer:
    """The sink's producer, as a context manager whose methods block. Calls private methods of
    `Producer`: its public ones take one record at a time."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._stack = ExitStack()
        self._portal: BlockingPortal
        self._producer: Producer[bytes, bytes]
        self._loop: asyncio.AbstractEventLoop
        self._context: contextvars.Context
        """The context of `_accept`, which runs in the loop and outside of a task."""
        self._accepting: tuple[Future[None], _Batch] | None = None
        """The last batch, with a future that is done when the producer has accepted it or has
        failed."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            self._loop = self._portal.call(asyncio.get_running_loop)
            self._context = callback_context()
            self._producer = self._portal.call(self._new_producer)
            stack.enter_context(self._portal.wrap_async_context_manager(self._producer))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def _new_producer(self) -> Producer[bytes, bytes]:
        options = self._options
        return Producer(
            # mypy cannot match the mapping's values, of several types, with the parameters.
            security=Security(**options.security) if options.security else None,  # type: ignore[arg-type]
            close_timeout=_CLOSE_TIMEOUT,
            **options.producer_arguments(),
        )

    def partition_count(self, topic: str, known: int) -> int:
        """Return the number of a topic's partitions, after another look-up if the producer knows no
        more than `known`. As with Java's producer, a topic that does not exist is created if the
        cluster has `auto.create.topics.enable`.

        Raises: BrokerError, also if the topic does not exist and is not created.
        """
        timeout = min(_CREATION_TIMEOUT, self._options.delivery_timeout / 2)
        try:
            return self._portal.call(self._producer._count_partitions, topic, known, timeout)
        except BrokerError as error:
            if error.code not in BEING_CREATED:
                raise
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} does not exist, and the cluster has not created it (its setting"
                " auto.create.topics.enable); correct the name, or create the topic:"
                f" kafka-topics.sh --bootstrap-server {self._options.bootstrap_servers} --create"
                f" --topic {topic}",
            ) from error

    def send(self, topic: str, partition: int, encoded: EncodedRecords) -> None:
        """Send a batch in the background. First wait until the producer has room for the batch
        before, and has accepted it. If `partition` is -1, the producer draws one. Raises:
        NotWrittenError for an earlier batch."""
        self._wait_accepted()
        accepting: Future[None] = Future()
        batch = topic, partition, encoded
        # Not a task of the portal, which would cost as much as the request.
        self._loop.call_soon_threadsafe(self._accept, accepting, batch, context=self._context)
        self._accepting = accepting, batch

    def _accept(self, accepting: Future[None], batch: _Batch) -> None:
        """Give the producer a batch, and set the result of `accepting`. Runs in the loop."""
        try:
            self._producer._accept_encoded(*batch)
        except Exception as error:
            accepting.set_exception(error)
        else:
            accepting.set_result(None)

    def flush(self) -> None:
        """Wait until all batches are acknowledged. Raises: NotWrittenError."""
        self._wait_accepted()
        self._portal.call(self._producer.flush)

    def _wait_accepted(self) -> None:
        """Wait until the producer has room for the last batch, and has accepted it."""
        if self._accepting is None:
            return
        (accepting, batch), self._accepting = self._accepting, None
        try:
            accepting.result()
        except BufferFullError:
            self._portal.call(self._producer._accept_encoded_with_room, *batch)

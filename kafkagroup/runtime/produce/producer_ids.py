"""Requests the id of an idempotent producer that is not transactional (InitProducerId)."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.errors import (
    RETRIED_ERRORS,
    AuthorizationError,
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    UnsupportedVersionError,
)
from kafkagroup.produce.identity import Identities, ProducerIdentity
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import MAX_INT32
from kafkagroup.wire.messages.transactions import InitProducerIdRequest

__all__ = ["ProducerIds"]

_KEY = "producer id"
"""The key of failed requests in `Troubles`."""


class ProducerIds:
    """Requests an id whenever there is none."""

    def __init__(
        self,
        cluster: Cluster,
        identities: Identities,
        spawn: Spawn,
        on_end: Callable[[KafkaGroupError | None], None],
    ) -> None:
        """`on_end` is called with None when there is an id, or with the error by which the brokers
        refuse one."""
        self._cluster = cluster
        self._identities = identities
        self._on_end = on_end
        self._task = CoalescingTask(spawn, self._request, "producer id")
        self.error: KafkaGroupError | None = None
        """Why the last request has failed; None after a success."""

    def request(self) -> None:
        """Request an id, unless there is one."""
        if not self._identities.is_known:
            self._task.ensure_running()

    async def _request(self) -> None:
        pauses = RetryBackoff(self._cluster.options)
        # Without transactions the timeout has no meaning.
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=MAX_INT32)
        while not self._identities.is_known:
            try:
                response = await self._cluster.request_any(request)
                if response.error_code:
                    raise _refusal(response.error_code)
            except UnsupportedVersionError as error:
                self.error = UnsupportedVersionError(
                    f"the producer gets no id: {error}. Set enable_idempotence=False: without ids a"
                    " retry may write a record twice"
                )
                self._on_end(self.error)
                return
            except KafkaGroupError as error:
                is_retried = isinstance(error, RETRIED_ERRORS)
                if isinstance(error, BrokerError):  # which RETRIED_ERRORS does not have
                    is_retried = error.retriable
                self.error = error
                if not is_retried or self._cluster.logins.is_final(error):
                    self._on_end(error)
                    return
                self._report(error)
                await pauses.wait()
            else:
                self.error = None
                self._cluster.troubles.succeeded(_KEY, anyio.current_time())
                self._identities.current = ProducerIdentity(
                    response.producer_id, response.producer_epoch
                )
                self._on_end(None)

    def _report(self, error: KafkaGroupError) -> None:
        problem = Problem(
            subject="the producer has no id",
            cause=str(error),
            advice="check the brokers: any of them can give one",
        )
        self._cluster.troubles.failed(_KEY, anyio.current_time(), problem)


def _refusal(code: int) -> BrokerError:
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return AuthorizationError(
            code,
            "before Kafka 2.8 idempotence needs this; allow it, allow WRITE on a topic with a newer"
            " broker, or set enable_idempotence=False",
            "the cluster",
            "IDEMPOTENT_WRITE",
        )
    return BrokerError(code, "the producer gets no id")

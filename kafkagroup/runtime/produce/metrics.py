"""The metrics of a producer."""

from __future__ import annotations

from kafkagroup._public import public
from kafkagroup._values import frozen
from kafkagroup.runtime.member.metrics import RequestMetrics

__all__ = ["ProducerMetrics"]


@public
@frozen(kw_only=True)
class ProducerMetrics:
    """The metrics of one producer."""

    produce: RequestMetrics = RequestMetrics()
    """Produce requests, from sending to the response."""
    written_records: int = 0
    """The number of records that were acknowledged since the start."""
    written_bytes: int = 0
    """The bytes of their batches, as compressed."""
    failed_records: int = 0
    """The number of records that failed since the start."""
    retried_batches: int = 0
    """How often a batch was sent again since the start."""
    buffered_bytes: int = 0
    """The part of `buffer_memory` that is used."""

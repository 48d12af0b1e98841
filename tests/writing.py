"""Write lists of records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafkagroup import Producer
from kafkagroup.types import NO_TIMESTAMP
from kafkagroup.wire import NewRecord

__all__ = ["write"]


async def write(
    producer: Producer[Any, Any],
    topic: str,
    records: Iterable[NewRecord],
    partition: int | None = None,
) -> None:
    """Write records; return when all are acknowledged. Raises: NotWrittenError, as `flush`."""
    for key, value, timestamp, headers in records:
        producer.send_nowait(
            topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp=None if timestamp == NO_TIMESTAMP else timestamp,
        )
    await producer.flush()

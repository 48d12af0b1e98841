"""Reads measured loads from a file, for the leader of a group with a weighted assignor.

A problem with the file never stops a rebalance: all loads count as 1.0 until the problem is fixed.
It is logged when it begins, changes or ends.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import anyio

from kafkagroup._public import public
from kafkagroup.assign.loads import MAX_BYTES, decode_loads, recent_loads
from kafkagroup.errors import ConfigurationError
from kafkagroup.transport.threads import WorkerThreads
from kafkagroup.types import TopicPartition

__all__ = ["LoadsFile"]

logger = logging.getLogger(__name__)

_READ_TIMEOUT = 5.0
"""Seconds that the group waits for the file: much less than a usual rebalance timeout."""


@public
class LoadsFile:
    """The loads in a file, in the format of `kafkagroup.assign.loads`. Call it and await the result
    to get the loads that count now.

    Each call reads the file, in a thread. To replace the file, write a new one beside it and rename
    that: a file that is half written counts as broken.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        max_age: float,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`max_age`: the age in seconds beyond which loads do not count. `clock` returns the
        seconds since the epoch. Raises: ConfigurationError for a wrong `max_age`."""
        if not isinstance(max_age, int | float) or not max_age > 0:  # not `<=`, for NaN
            raise ConfigurationError(f"max_age={max_age!r}; expected seconds, more than 0")
        self._path = Path(path)
        self._max_age = max_age
        self._clock = clock
        self._threads = WorkerThreads(total_limit=4)
        """Threads for this file alone: a file system that hangs would hold those of a client."""
        self._trouble: str | None = None
        """The problem that was logged last; None without one. Only a change is logged."""

    async def __call__(self) -> Mapping[TopicPartition, float]:
        """Return the loads that count; none while the file is missing, broken, stale or slow to
        read."""
        loads: Mapping[TopicPartition, float] = {}
        trouble: str | None = f"reading it takes more than {_READ_TIMEOUT:g} s"
        with anyio.move_on_after(_READ_TIMEOUT):
            # At the timeout the thread is abandoned: a file system that hangs must not delay the
            # group.
            loads, trouble = await self._threads(self._read)
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble is None:
                logger.info("the loads in %s count again", self._path)
            else:
                logger.warning("the loads in %s count as 1.0: %s", self._path, trouble)
        return loads

    def _read(self) -> tuple[Mapping[TopicPartition, float], str | None]:
        """Return the loads, and the problem with the file; None without one."""
        try:
            with self._path.open("rb") as file:
                # One byte more, by which `decode_loads` notices a file that is too large.
                measured = decode_loads(file.read(MAX_BYTES + 1))
        except (OSError, ConfigurationError) as error:
            return {}, str(error)
        loads = recent_loads(measured, now=self._clock(), max_age=self._max_age)
        if measured.loads and not loads:
            made_at = datetime.fromtimestamp(measured.made_at, UTC).isoformat(timespec="seconds")
            return {}, f"they were measured at {made_at}, and count for {self._max_age:g} s"
        return loads, None

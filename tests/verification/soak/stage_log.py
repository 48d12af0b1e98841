"""What a member of the pipeline writes down: its events as lines of JSON, each
written with one system call, so that what a SIGKILL leaves behind is what has happened.

The records of a batch share a line, or writing would take longer than reading them from Kafka:

    {"batch": "Delivered", "time": 3.25, "member": "1a", "partition": "t/0", "offsets": [7, 8], ...}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
from verification.sim.events import Delivered, Event, Processed
from verification.sim.log import from_line, to_line
from verification.sim.observe import Log

from kafkagroup import Batch, TopicPartition


class StageLog(Log):
    """The events of one member, written to a file as they happen."""

    def __init__(self, path: str, member: str) -> None:
        super().__init__()
        self._member = member
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record_event(self, kind: Callable[..., Event], **fields: Any) -> None:
        event = kind(**{"time": anyio.current_time(), "member": self._member, **fields})
        self._write(to_line(event))

    def record_delivered(self, batch: Batch) -> None:
        self._record_batch(
            Delivered, batch, sequences=[int.from_bytes(r.value[:8], "big") for r in batch]
        )

    def record_processed(self, batch: Batch) -> None:
        self._record_batch(Processed, batch)

    def _record_batch(self, kind: type[Event], batch: Batch, **fields: object) -> None:
        raw = {
            "batch": kind.__name__,
            "time": anyio.current_time(),
            "member": self._member,
            "partition": f"{batch.topic}/{batch.partition}",
            "offsets": [record.offset for record in batch],
            **fields,
        }
        self._write(json.dumps(raw))

    def _write(self, line: str) -> None:
        os.write(self._file, line.encode() + b"\n")


def delivered(data: bytes) -> tuple[int, list[int]]:
    """Return the number of bytes in complete lines of a log, and the sequence numbers delivered
    there."""
    whole = data[: data.rfind(b"\n") + 1]
    found: list[int] = []
    for line in whole.splitlines():
        if line.startswith(b'{"batch": "Delivered"'):
            found += json.loads(line)["sequences"]
    return len(whole), found


def read(path: Path) -> Iterator[Event]:
    """Read the events of a log lazily, except an incomplete last line."""
    with path.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                return
            if line.startswith('{"batch": '):
                yield from _events(json.loads(line))
            else:
                yield from_line(line)


def _events(raw: dict[str, Any]) -> Iterator[Event]:
    topic, _, number = raw["partition"].rpartition("/")
    where = {
        "time": raw["time"],
        "member": raw["member"],
        "partition": TopicPartition(topic, int(number)),
    }
    if raw["batch"] == "Processed":
        for offset in raw["offsets"]:
            yield Processed(**where, offset=offset)
    else:
        for offset, sequence in zip(raw["offsets"], raw["sequences"], strict=True):
            yield Delivered(**where, offset=offset, sequence=sequence)

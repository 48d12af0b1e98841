"""Members of Kafka's own consumer: a group in one JVM, each in a thread, controlled by a pipe."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from kafkagroup import TopicPartition
from tests.assign.java_side import find_java

from .ownership import Ownership, Record

__all__ = ["JavaMember"]

_PROGRAM = Path(__file__).with_name("java") / "Members.java"


class JavaMember:
    """One member; the first of a group starts the JVM, and waits until it is warm."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, read: Record, options: Mapping[str, Any]
    ) -> None:
        self.ownership = Ownership()
        self._topic, self._read = topic, read
        self._stopped = threading.Event()
        if group not in _Jvm.of:
            _Jvm.of[group] = _Jvm(bootstrap, group, topic, options)
        self._jvm = _Jvm.of[group]
        self._name = self._jvm.add(self._on_event)

    async def start(self) -> None:
        self._jvm.order(f"start {self._name}")

    async def stop(self) -> None:
        self._jvm.order(f"stop {self._name}")
        await asyncio.to_thread(self._stopped.wait)

    def _on_event(self, what: str, partitions: list[int]) -> None:
        match what:
            case "record":
                self._read(partitions[0])
            case "stopped":
                self._stopped.set()
            case _:
                change = self.ownership.gained if what == "gained" else self.ownership.gone
                change(TopicPartition(self._topic, n) for n in partitions)


class _Jvm:
    """The JVM process. It ends when its standard input is closed, so at the latest with this
    process."""

    of: ClassVar[dict[str, _Jvm]] = {}
    """By group."""

    def __init__(self, bootstrap: str, group: str, topic: str, options: Mapping[str, Any]) -> None:
        java = find_java()
        given = [f"{name}={value}" for name, value in options.items()]
        jars = f"{java.jars}/*"
        self._members: list[Callable[[str, list[int]], None]] = []
        self._process = subprocess.Popen(
            [java.command, "-cp", jars, str(_PROGRAM), bootstrap, group, topic, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"no Java member came up: exit code {self._process.wait()}")
        threading.Thread(target=self._listen, daemon=True).start()

    def add(self, on_event: Callable[[str, list[int]], None]) -> int:
        """Add a member, whose events are passed to `on_event`; return its number."""
        self._members.append(on_event)
        return len(self._members) - 1

    def order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, name, *partitions = line.split()
            self._members[int(name)](what, [int(n) for n in partitions])

"""The members of a soak as processes, and their progress."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from history import events
from member_log import ENTRY, Kind
from verification.sim.events import Event

TIMEOUT = 60.0
"""Seconds without a new record after which the soak fails."""

WORKER = Path(__file__).with_name("worker.py")


class Members:
    """The processes, and their logs."""

    def __init__(
        self, folder: Path, records: int, arguments: Sequence[str], worker: Path = WORKER
    ) -> None:
        """The arguments are those of a worker, except its log."""
        self._folder = folder
        self._worker = worker
        self._arguments = arguments
        self._seen = bytearray(records)
        """For each sequence number, whether the record was delivered."""
        self._read: dict[Path, int] = {}
        """How many bytes of each log were read."""
        self._progressed = time.monotonic()
        self.count = 0
        """How many records were delivered at least once."""
        self.longest_stall = 0.0
        """Most seconds between two readings of the logs with new records."""
        self.active: set[str] = set()
        """The members to which a record was delivered."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: set[str] = set()

    def start(self, *names: str) -> None:
        for name in names:
            log = str(self._folder / name)
            command = [sys.executable, str(self._worker), log, *self._arguments]
            self.running[name] = subprocess.Popen(command)

    def wait_until_up(self, name: str) -> None:
        """Wait until a member has a log, and so handles SIGTERM. Only then may it be ended."""
        self._wait((self._folder / name).exists)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()
        self.killed.add(name)

    def freeze(self, name: str) -> None:
        """Freeze it with SIGSTOP: its connections stay open, and it does nothing."""
        self.running[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGCONT)

    def leave(self, *names: str) -> None:
        leaving = {name: self.running.pop(name) for name in names}
        for process in leaving.values():
            process.send_signal(signal.SIGTERM)
        for name, process in leaving.items():
            if (code := process.wait(30)) != 0:
                raise SystemExit(f"member {name} left with exit code {code}")

    def end(self) -> None:
        """Kill the remaining processes: the soak has failed."""
        for process in self.running.values():
            process.kill()
            process.wait()

    def wait_for(self, count: int) -> None:
        """Wait until that many records were delivered."""
        self._wait(lambda: self.count >= count)

    def wait_until_active(self, *names: str) -> None:
        """Wait until a record was delivered to each of these members. Raises: SystemExit if all
        records were delivered without one of them."""
        self._wait(lambda: self.active >= set(names) or self.count == len(self._seen))
        if idle := set(names) - self.active:
            raise SystemExit(f"all records were had without {', '.join(sorted(idle))}")

    def _wait(self, enough: Callable[[], bool]) -> None:
        self.look()
        while not enough():
            time.sleep(0.02)
            self.look()

    def look(self) -> None:
        """Read new entries of the logs. Raises: SystemExit if a member has ended, or nothing was
        new for too long."""
        self._read_logs()
        for name, process in self.running.items():
            if process.poll() is not None:
                raise SystemExit(f"member {name} ended with exit code {process.returncode}")
        stall = time.monotonic() - self._progressed
        if stall > TIMEOUT and self.count < len(self._seen):
            raise SystemExit(f"no progress for {stall:.0f} s at {self.count} records")

    def _read_logs(self) -> None:
        before = self.count
        for path in self._folder.iterdir():
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                data = log.read()
            length, delivered = self.delivered(data)
            self._read[path] = self._read.get(path, 0) + length
            for sequence in delivered:
                self.count += not self._seen[sequence]
                self._seen[sequence] = 1
            if delivered:
                self.active.add(path.name)
        if self.count > before:
            now = time.monotonic()
            if before:  # else it is the time that the first process took to start
                self.longest_stall = max(self.longest_stall, now - self._progressed)
            self._progressed = now

    @staticmethod
    def delivered(data: bytes) -> tuple[int, list[int]]:
        """Return the number of complete bytes of a log, and the sequence numbers delivered
        there."""
        whole = data[: len(data) - len(data) % ENTRY.size]
        found = [s for kind, _, _, s, _ in ENTRY.iter_unpack(whole) if kind == Kind.DELIVERED]
        return len(whole), found

    def logs(self, topic: str) -> list[Iterator[Event]]:
        """Return each member's log, read lazily: together they may be large."""
        return [
            events(path.read_bytes(), topic, path.name, killed=path.name in self.killed)
            for path in sorted(self._folder.iterdir())
        ]

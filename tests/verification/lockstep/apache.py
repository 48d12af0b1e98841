"""Apache Kafka's own group coordinator, in a JVM: `GroupCoordinatorService` of Kafka 4.3.1.

The Java program (`java/`) runs Apache's service, runtime, shard and assignors, from the jars that
`LocalKafka` runs, in one thread and in virtual time. It replaces their surroundings:

- The log: `__consumer_offsets` has one partition, in memory. Records are replicated as soon as they
  are written; no write fails. `reload` loads them, without delay.
- Timers run at their own times, in order. Background tasks run after the events that are queued:
  the heartbeat that starts one is answered before. In 4.3.1 only regular expressions are resolved
  in the background; assignors run within the heartbeat, whatever `assignor.offload.enable` says.
- `KafkaApis`: unknown topics and partitions in requests about offsets, topic ids, the fields that
  are checked there, and authorized operations are handled as there, for a client with every right.
  There are no quotas: throttle times are 0.
- Transactions: there is no transaction coordinator. TxnOffsetCommit is accepted from any producer,
  and no marker ends its transaction.
- Share groups: their state is not kept (`NoOpStatePersister`).

Requests: OffsetCommit, OffsetFetch, JoinGroup, Heartbeat, LeaveGroup, SyncGroup, DescribeGroups,
ListGroups, TxnOffsetCommit, DeleteGroups, OffsetDelete, ConsumerGroupHeartbeat,
ConsumerGroupDescribe, ShareGroupHeartbeat and ShareGroupDescribe, in all versions of Kafka 4.3.1.

Member ids come from the seed of `reset`. Two JVMs give the same bytes for the same calls: Apache's
code orders nothing by `Set.of` or `Map.of`, whose order differs between JVMs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from kafkagroup.testing._jars import (
    LocalKafkaError,
    LocalKafkaUnavailable,
    find_java,
    resolve_jars,
    tail,
)

__all__ = ["RELEASE", "ApacheCoordinator"]

RELEASE = "4.3.1"
_SOURCES = Path(__file__).parent / "java"
_COMPILE_TIMEOUT = 120.0
_EXIT_TIMEOUT = 10.0

_RESET = struct.Struct(">Bqi")
_SUBMIT = struct.Struct(">Bii")
_ADVANCE = struct.Struct(">Bq")
_SET_TOPICS = struct.Struct(">Bi")
_INT = struct.Struct(">i")
_ANSWER = struct.Struct(">?qi")
_TICKET = struct.Struct(">ii")


class ApacheCoordinator:
    """Apache's group coordinator in virtual time; many worlds, one after the other, in one JVM.

    Calls are collected, and sent to the JVM by `responses`. An empty response means that a broker
    would close the connection: the request does not parse, or its version is unknown.

    Raises: LocalKafkaUnavailable without a JDK or without the jars.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        java = find_java()
        jars = sorted(resolve_jars(RELEASE, java).glob("*.jar"))
        classes = _compile(java, jars)
        self.settings = dict(settings or {})
        """Settings of a broker, like `group.consumer.session.timeout.ms`, from the next `reset` on.
        Without them, Kafka's defaults hold."""
        self._ticket = 0
        self._commands = bytearray()
        self.until_next_timer = 0
        """Milliseconds from the last call of `responses` to the coordinator's next timer."""
        self._log = tempfile.TemporaryDirectory(prefix="kafkagroup-oracle-")
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    java,
                    # The heap of a world is a few megabytes, and several JVMs may run at once.
                    *("-XX:+UseSerialGC", "-Xmx256m"),
                    # Kafka logs errors of the coordinator only, none for a request it rejects.
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                    *("-cp", os.pathsep.join(map(str, (classes, *jars)))),
                    "kafkagroup.oracle.Main",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)
        self.reset(0)

    @property
    def _log_path(self) -> Path:
        return Path(self._log.name, "stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def reset(self, seed: int) -> None:
        """Start anew: no groups and no topics, the time at a fixed epoch, random ids from `seed`.

        Responses of the world before are dropped.
        """
        # Commands of the world before would only be run to be forgotten.
        self._commands.clear()
        self._commands += _RESET.pack(1, seed, len(self.settings))
        for name, value in self.settings.items():
            self._commands += _string(name) + _string(value)

    def submit(self, request: bytes) -> int:
        """Send one request: header and body, without the length. Returns its ticket."""
        self._ticket += 1
        self._commands += _SUBMIT.pack(2, self._ticket, len(request))
        self._commands += request
        return self._ticket

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and run the timers that are due, in order."""
        self._commands += _ADVANCE.pack(3, milliseconds)

    def set_topics(self, topics: Mapping[str, tuple[uuid.UUID, int]]) -> None:
        """Replace the metadata image: topic name -> id and partition count."""
        self._commands += _SET_TOPICS.pack(4, len(topics))
        for name, (topic_id, partitions) in topics.items():
            self._commands += _string(name) + topic_id.bytes + _INT.pack(partitions)

    def reload(self) -> None:
        """Let the coordinator resign and load its log, as when its broker restarts.

        Pending requests are answered with NOT_COORDINATOR.
        """
        self._commands.append(5)

    def responses(self) -> list[tuple[int, bytes]]:
        """Return the responses since the last call, in order: the ticket, and header and body
        without the length.

        Raises: LocalKafkaError with the stack trace if the Java program fails; call `reset` then.
        """
        commands, self._commands = self._commands, bytearray()
        try:
            self._input.write(_INT.pack(len(commands)))
            self._input.write(commands)
            self._input.flush()
        except BrokenPipeError:
            raise self._died() from None
        (size,) = _INT.unpack(self._read(_INT.size))
        response = self._read(size)
        if response[0]:
            raise LocalKafkaError(f"Apache's coordinator failed: {response[1:].decode()}")
        _, self.until_next_timer, count = _ANSWER.unpack_from(response)
        return _decode(count, response)

    def _read(self, size: int) -> bytes:
        data = self._output.read(size)
        if len(data) < size:
            raise self._died()
        return data

    def _died(self) -> LocalKafkaError:
        return LocalKafkaError(f"the JVM of Apache's coordinator ended: {tail(self._log_path)}")

    def close(self) -> None:
        """End the JVM."""
        try:
            # The program ends with its input.
            self._input.close()
            self._process.wait(_EXIT_TIMEOUT)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            self._output.close()
            self._log.cleanup()


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT.pack(len(encoded)) + encoded


def _decode(count: int, response: bytes) -> list[tuple[int, bytes]]:
    responses = []
    start = _ANSWER.size
    for _ in range(count):
        ticket, size = _TICKET.unpack_from(response, start)
        start += _TICKET.size
        responses.append((ticket, response[start : start + size]))
        start += size
    return responses


def _compile(java: str, jars: list[Path]) -> Path:
    """Return a folder with the program's classes, compiled once for each state of its sources."""
    sources = sorted(_SOURCES.glob("*.java"))
    state = hashlib.sha256(RELEASE.encode())
    for source in sources:
        state.update(source.name.encode() + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    folder = cache / "kafkagroup" / f"oracle-{state.hexdigest()[:16]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # In the cache's own file system, because a rename across file systems is not atomic.
    scratch = Path(tempfile.mkdtemp(prefix=".oracle-", dir=folder.parent))
    try:
        _run_compiler(java, jars, sources, scratch)
        scratch.chmod(0o755)
        scratch.rename(folder)
    except OSError:
        # Another process was faster: rename does not replace a folder that is not empty.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _run_compiler(java: str, jars: list[Path], sources: list[Path], target: Path) -> None:
    done = subprocess.run(
        [
            *(java, "-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main"),
            *("-nowarn", "-proc:none", "-cp", os.pathsep.join(map(str, jars)), "-d", str(target)),
            *map(str, sources),
        ],
        capture_output=True,
        timeout=_COMPILE_TIMEOUT,
        check=False,
    )
    if done.returncode == 0:
        return
    output = (done.stdout + done.stderr).decode(errors="replace")
    if "jdk.compiler not found" in output:
        raise LocalKafkaUnavailable(f"{java} belongs to a Java without a compiler: install a JDK")
    raise LocalKafkaError(f"javac failed ({done.returncode}): {output[-4000:]}")

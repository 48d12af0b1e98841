"""Real ZooKeeper as child processes: one JVM a node, on loopback, gone when this process is.

For groups that are kept in ZooKeeper. All calls block; how the jars come here is in `_jars`.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from kafkagroup.errors import ConfigurationError, IllegalStateError
from kafkagroup.testing._jars import (
    LocalKafkaError,
    LocalKafkaUnavailable,
    find_java,
    resolve,
    tail,
)
from kafkagroup.testing._releases import HOST, ZOOKEEPER
from kafkagroup.testing.local import (
    _LOG_LEVEL,
    _ZOOKEEPER,
    _make_directory,
    _reserve_ports,
    _Server,
)

__all__ = ["LocalZooKeeper"]

_SETTINGS = {
    "clientPortAddress": HOST,
    "dataDir": "./data",
    "initLimit": "20",
    "syncLimit": "4",
    "maxSessionTimeout": "60000",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}


@attrs.define(eq=False, kw_only=True)
class _Node(_Server):
    """One server of the ensemble. Its data and ports outlive its process."""

    id: int
    port: int
    main: Sequence[str] = _ZOOKEEPER

    def serves(self) -> bool:
        """Whether it is part of a quorum."""
        return re.search(rb"Mode: (standalone|leader|follower)", self.say(b"srvr")) is not None

    def say(self, command: bytes) -> bytes:
        """The answer to a command of four letters; nothing while there is none."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.settimeout(1.0)
                connection.sendall(command)
                with connection.makefile("rb") as stream:
                    return stream.read()
        except OSError:
            return b""


@attrs.define(eq=False)
class LocalZooKeeper:
    """Apache ZooKeeper 3.9.3 on this machine, as a context manager.

    ```python
    with LocalZooKeeper() as zookeeper:
        ZooKeeperMembership(zookeeper.hosts)
    ```

    Needs Java and a POSIX system. The jars are those in the folder that `KAFKAGROUP_ZOOKEEPER_JARS`
    names, else of the cache, as LocalKafka's are. One node is up in 1 s, three in 4. Nodes are
    numbered from 1. Not safe to use from two threads at once.
    """

    nodes: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    tick_ms: int = attrs.field(default=500, kw_only=True)
    """A session is at least two of these, and followers tell the leader of theirs each half."""
    config: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """Settings for `zoo.cfg`; they win over the ones that are set here."""
    directory: Path | None = attrs.field(
        default=None, kw_only=True, converter=attrs.converters.optional(Path)
    )
    """Where data and output go: absent or empty, and kept. None: a temporary one, removed."""
    jvm_options: Sequence[str] = attrs.field(
        default=("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"), kw_only=True
    )
    start_timeout: float = attrs.field(default=60.0, kw_only=True)
    """Seconds until it answers."""

    _java: tuple[str, ...] = attrs.field(default=(), init=False)
    _ensemble: dict[int, _Node] = attrs.field(factory=dict, init=False)
    _started: ExitStack | None = attrs.field(default=None, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def hosts(self) -> str:
        """`host:port` of every node, comma-separated, whether it runs at the moment or not."""
        return ",".join(self.address(node) for node in range(1, self.nodes + 1))

    def address(self, node: int) -> str:
        """`host:port` of one node."""
        return f"{HOST}:{self._node(node).port}"

    @property
    def leader(self) -> int:
        """The node that leads. Raises: LocalKafkaError while none does."""
        for node in self._running():
            if re.search(rb"Mode: (standalone|leader)", node.say(b"srvr")):
                return node.id
        raise LocalKafkaError("no node leads")

    def start(self) -> None:
        """Start every node; return when each serves.

        Raises: LocalKafkaUnavailable without Java or jars; LocalKafkaError if a JVM ends or the
        ensemble is not up within `start_timeout`.
        """
        if self._started is not None:
            raise IllegalStateError("this LocalZooKeeper is started already")
        if os.name != "posix":
            raise LocalKafkaUnavailable("a local ZooKeeper needs a POSIX system: signals and sh")
        java = find_java()
        jars = resolve(ZOOKEEPER, java)
        with ExitStack() as undo:
            self._java = (java, _LOG_LEVEL, *self.jvm_options, "-cp", f"{jars}/*")
            self._lay_out(_make_directory(self.directory, undo), undo)
            undo.callback(self._kill_all)
            for node in self._ensemble.values():
                node.spawn(self._java)
            self._await_quorum()
            self._started = undo.pop_all()
        atexit.register(self._stop_at_exit, os.getpid())

    def stop(self) -> None:
        """Kill every node and remove a temporary directory. Does nothing when not started."""
        if self._started is not None:
            atexit.unregister(self._stop_at_exit)
            started, self._started = self._started, None
            started.close()

    def kill(self, node: int) -> None:
        """SIGKILL: the node is gone at once."""
        self._node(node).end(signal.SIGKILL)

    def start_node(self, node: int) -> None:
        """Start a node that was killed, on its data and port; return when all that run serve."""
        self._node(node).spawn(self._java)
        self._await_quorum()

    def pause(self, node: int) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """SIGCONT: the node goes on where it stopped."""
        self._signal(node, signal.SIGCONT)

    def _signal(self, node: int, number: int) -> None:
        server = self._node(node)
        if server.process is None:
            raise IllegalStateError(f"node {node} is not running")
        server.process.send_signal(number)
        server.paused = number == signal.SIGSTOP

    def _node(self, node: int) -> _Node:
        if node not in self._ensemble:
            raise ConfigurationError(f"no node {node}: they are 1 to {self.nodes}, once started")
        return self._ensemble[node]

    def _running(self) -> Iterator[_Node]:
        return (n for n in self._ensemble.values() if n.process is not None and not n.paused)

    def _lay_out(self, directory: Path, undo: ExitStack) -> None:
        ports = iter(_reserve_ports(3 * self.nodes, undo))
        numbers = range(1, self.nodes + 1)
        peers = {f"server.{n}": f"{HOST}:{next(ports)}:{next(ports)}" for n in numbers}
        self._ensemble = {}
        for number in numbers:
            home, port = directory / f"node-{number}", next(ports)
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(str(number), "ascii")
            settings = {
                **_SETTINGS,
                "clientPort": str(port),
                "tickTime": str(self.tick_ms),
                "minSessionTimeout": str(2 * self.tick_ms),
                **(peers if self.nodes > 1 else {}),
                **self.config,
            }
            lines = "".join(f"{key}={value}\n" for key, value in settings.items())
            (home / "zoo.cfg").write_text(lines, "ascii")
            self._ensemble[number] = _Node(directory=home, id=number, port=port)

    def _await_quorum(self) -> None:
        deadline = time.monotonic() + self.start_timeout
        for node in self._running():
            while not node.serves():
                node.raise_if_ended(f"node {node.id}")
                if time.monotonic() > deadline:
                    raise LocalKafkaError(
                        f"node {node.id} did not serve within {self.start_timeout:g} s:\n"
                        f"{tail(node.output)}"
                    )
                time.sleep(0.03)

    def _kill_all(self) -> None:
        running = [node for node in self._ensemble.values() if node.process is not None]
        for node in running:
            assert node.process is not None
            node.process.kill()
        for node in running:
            node.end(signal.SIGKILL)

    def _stop_at_exit(self, owner: int) -> None:
        # A forked child runs its parent's exit handlers, and would take the ensemble from it.
        if os.getpid() == owner:
            self.stop()

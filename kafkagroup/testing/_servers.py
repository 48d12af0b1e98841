"""JVM child processes: the servers of a cluster on loopback, which end with this process.

Only this module starts, stops, kills and pauses servers. All calls block; nothing here uses an
event loop. `_jars` provides the jars. Each running JVM has a watchdog process, which kills the JVM
if its owner dies.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

import attrs

from kafkagroup.errors import ConfigurationError, IllegalStateError
from kafkagroup.testing._jars import LocalKafkaError, LocalKafkaUnavailable, find_java, tail
from kafkagroup.testing._releases import HOST

__all__ = ["Node", "Server", "Servers", "reserve_ports"]

_STOP_TIMEOUT = 30.0
"""Seconds for a clean stop of one node. It takes 0.3 s while a quorum remains."""

_LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"

# Blocks on a pipe from the owner until the owner ends, in whatever way, then kills the JVM. $0 is
# the JVM's PID, $1 the node's mark. The PID may have been reused by then, so the process must have
# the mark in its command line (read with `ps` where there is no /proc).
_WATCHDOG = """
read -r _
if grep -qsF -- "$1" "/proc/$0/cmdline" || ps -o args= -p "$0" 2>/dev/null | grep -qF -- "$1"
then kill -KILL "$0"
fi
"""


@attrs.define(eq=False, kw_only=True)
class Server:
    """A server: its own directory, and at most one running JVM at a time."""

    directory: Path
    main: Sequence[str]
    """Main class and arguments."""
    process: subprocess.Popen[bytes] | None = None
    watchdog: subprocess.Popen[bytes] | None = None
    is_paused: bool = False

    @property
    def mark(self) -> str:
        """A JVM option that only this server's command line contains."""
        return f"-Dkafkagroup.node={self.directory}"

    @property
    def output(self) -> Path:
        return self.directory / "output.log"

    @property
    def is_running(self) -> bool:
        """Whether the JVM runs, paused or not."""
        return self.process is not None and self.process.poll() is None

    def signal(self, name: Literal["SIGSTOP", "SIGCONT"]) -> None:
        """Pause or resume the JVM. The signal is a name, because the module `signal` lacks both on
        Windows, where this file is imported, too."""
        assert self.process is not None
        self.process.send_signal(signal.Signals[name])
        self.is_paused = name == "SIGSTOP"
        if self.is_paused and sys.platform == "linux":  # macOS has no waitid
            # Each of its threads is stopped on its own, and may answer until then.
            with suppress(ChildProcessError):  # it has ended, and another thread knows it
                os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def spawn(self, java: Sequence[str]) -> None:
        """Start the JVM and its watchdog."""
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                # Native libraries are unpacked to the temporary directory. A killed JVM leaves them
                # there, so it is the server's own directory.
                [*java, self.mark, f"-Djava.io.tmpdir={self.directory}", *self.main],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Otherwise Ctrl-C would end the brokers before the tests that still use them.
                start_new_session=True,
            )
        self.watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, str(self.process.pid), self.mark],
            stdin=subprocess.PIPE,
            # If our stdout is a pipe, its reader would wait for the watchdog to close it.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self, timeout: float | None = None) -> bool:
        """Stop the JVM, and kill it after `timeout` seconds; without a timeout, kill it at once.
        Wait until it has exited. Return False if it was killed after the timeout."""
        assert self.process is not None
        if timeout is None:
            self.process.kill()
        else:
            self.process.terminate()
        in_time = True
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            in_time = False
            self.process.kill()
            self.process.wait()
        # Not in a `finally`: if the wait is interrupted, a JVM that may be alive needs its
        # watchdog.
        self.forget()
        return in_time

    def forget(self) -> None:
        """Drop an exited JVM and kill its watchdog."""
        if self.watchdog is not None:
            self.watchdog.kill()
            self.watchdog.communicate()
        self.process = self.watchdog = None
        self.is_paused = False

    def raise_if_ended(self, name: str) -> None:
        """Raises: LocalKafkaError with the JVM's output if the JVM has exited."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            raise LocalKafkaError(f"{name} ended while starting ({code}):\n{tail(self.output)}")


@attrs.define(eq=False, kw_only=True)
class Node(Server):
    """A numbered server. Its data and ports outlive its process."""

    id: int

    def __str__(self) -> str:
        return f"node {self.id}"


N = TypeVar("N", bound=Node)


@attrs.define(eq=False)
class Servers(ABC, Generic[N]):
    """The nodes of one cluster, numbered from 1."""

    config: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """Settings of every node; they override the settings that this library makes."""
    directory: Path | None = attrs.field(
        default=None, kw_only=True, converter=attrs.converters.optional(Path)
    )
    """Directory for data and output: it must be absent or empty, and is kept. None: a temporary
    directory, which is removed."""
    start_timeout: float = attrs.field(default=60.0, kw_only=True)
    """Most seconds from the first JVM's start until all servers answer; also for `start_node`.
    Downloads do not count."""
    jvm_options: Sequence[str] = attrs.field(default=(), kw_only=True)
    """Options of each JVM."""

    _java: tuple[str, ...] = attrs.field(default=(), init=False)
    """The start of each JVM's command, up to the class path."""
    _nodes: dict[int, N] = attrs.field(factory=dict, init=False)
    """Number -> node."""
    _started: ExitStack | None = attrs.field(default=None, init=False)
    """Undoes the start; None if the servers are not started."""

    # ------------------------------------------------------------ implemented by each subclass

    @abstractmethod
    def _find_jars(self, java: str) -> Sequence[Path]:
        """Return the folders whose jars form the class path. Raises: ConfigurationError for invalid
        options, LocalKafkaUnavailable."""

    @abstractmethod
    def _lay_out(self, directory: Path, undo: ExitStack) -> None:
        """Write the servers' configuration files, and fill `_nodes`. `undo` is closed when the
        servers stop or cannot be started."""

    def _prepare(self, deadline: float) -> None:
        """Prepare the first start, before any node runs. `deadline`: as everywhere in this class,
        on the clock of `time.monotonic`."""

    def _spawn(self, node: N, deadline: float) -> None:
        """Start a node. A subclass may wait before, at most until the deadline."""
        node.spawn(self._java)

    @abstractmethod
    def _serves(self, node: N) -> bool:
        """Whether the node answers, and knows the other running nodes."""

    def _others(self) -> Iterable[Server]:
        """Return the servers that are not nodes."""
        return ()

    # ------------------------------------------------------------ common to all

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

    def start(self) -> None:
        """Start every node; return when each answers and knows all others.

        Raises: LocalKafkaUnavailable without Java or jars; LocalKafkaError if a JVM exits or the
        nodes are not up within `start_timeout`; ConfigurationError for invalid options, or a
        `directory` in use. After an error, only the contents of `directory` remain.
        """
        if self._started is not None:
            raise IllegalStateError(f"this {type(self).__name__} is started already")
        if os.name != "posix":
            raise LocalKafkaUnavailable("servers on this machine need a POSIX system: signals, sh")
        java = find_java()
        jars = ":".join(f"{folder}/*" for folder in self._find_jars(java))
        with ExitStack() as undo:
            self._java = (java, _LOG_LEVEL, *self.jvm_options, "-cp", jars)
            self._lay_out(_make_directory(self.directory, undo), undo)
            # Registered last, so done first: the directory must not be removed under the JVMs.
            undo.callback(self._kill_all)
            deadline = time.monotonic() + self.start_timeout
            self._prepare(deadline)
            for node in self._nodes.values():
                self._spawn(node, deadline)
            self._await_all(deadline)
            self._started = undo.pop_all()
        # Remove the temporary directory if the caller does not stop. (Watchdogs end the JVMs.)
        atexit.register(self._stop_at_exit, os.getpid())

    def stop(self) -> None:
        """Kill every node and remove a temporary directory. Does nothing when not started."""
        if self._started is not None:
            atexit.unregister(self._stop_at_exit)
            started, self._started = self._started, None
            started.close()

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL. The other nodes notice that when the node's session expires."""
        self._running(node).end()

    def stop_node(self, node: int) -> None:
        """Stop a node cleanly: it hands over its leadership, then exits.

        Raises: LocalKafkaError if that takes more than 30 s (no quorum remains, or the node is
        paused); the node is killed then.
        """
        if not self._running(node).end(_STOP_TIMEOUT):
            raise LocalKafkaError(
                f"node {node} did not stop within {_STOP_TIMEOUT:.0f} s, and was killed:\n"
                f"{self.output(node)}"
            )

    def start_node(self, node: int) -> None:
        """Start a stopped or killed node with its data and ports; return when it is back.

        It is back when it and the other running nodes, except paused ones, know each other.
        Raises: LocalKafkaError as `start` does (the JVM is then left as it is); IllegalStateError
        if the node runs.
        """
        stopped = self._node(node)
        if stopped.is_running:
            raise IllegalStateError(f"node {node} is running")
        stopped.forget()
        deadline = time.monotonic() + self.start_timeout
        self._spawn(stopped, deadline)
        self._await_all(deadline)

    def restart(self, node: int) -> None:
        """Stop a node cleanly and start it again; return when it is back."""
        self.stop_node(node)
        self.start_node(node)

    def pause(self, node: int) -> None:
        """Pause a node with SIGSTOP: its connections stay open, and it answers nothing."""
        self._running(node).signal("SIGSTOP")

    def resume(self, node: int) -> None:
        """Resume a paused node with SIGCONT. Does not wait until the other nodes notice."""
        self._running(node).signal("SIGCONT")

    def output(self, node: int) -> str:
        """Return the end of what a node's JVMs printed: warnings and errors."""
        return tail(self._node(node).output)

    def _must_be_started(self) -> None:
        if self._started is None:
            raise IllegalStateError(f"this {type(self).__name__} is not started")

    def _node(self, node: int) -> N:
        self._must_be_started()
        if node not in self._nodes:
            raise ConfigurationError(f"no node {node}: they are 1 to {len(self._nodes)}")
        return self._nodes[node]

    def _running(self, node: int) -> N:
        running = self._node(node)
        if not running.is_running:
            raise IllegalStateError(f"node {node} is not running")
        return running

    def _unpaused(self) -> list[N]:
        """Return the nodes that were started and are not paused."""
        return [n for n in self._nodes.values() if n.process is not None and not n.is_paused]

    def _await_all(self, deadline: float) -> None:
        for node in self._unpaused():
            ready = partial(self._serves, node)
            self._await(ready, node, str(node), f"{node} did not serve", deadline)

    def _await(
        self, ready: Callable[[], bool], server: Server, name: str, failure: str, deadline: float
    ) -> None:
        """Return when `ready()`. Raises: LocalKafkaError if the server exits, or with the text
        `failure` after the deadline."""
        while not ready():
            server.raise_if_ended(name)
            if time.monotonic() > deadline:
                raise LocalKafkaError(
                    f"{failure} within {self.start_timeout:g} s:\n{tail(server.output)}"
                )
            time.sleep(0.03)

    def _kill_all(self) -> None:
        # Signal all, then wait: a node whose peers vanish one by one logs a lot about it.
        servers: list[Server] = [*self._nodes.values(), *self._others()]
        running = [server for server in servers if server.process is not None]
        for server in running:
            assert server.process is not None
            server.process.kill()
        for server in running:
            server.end()

    def _stop_at_exit(self, owner: int) -> None:
        # A forked child inherits the exit handlers, and must not stop its parent's servers.
        if os.getpid() == owner:
            self.stop()


def _make_directory(directory: Path | None, undo: ExitStack) -> Path:
    if directory is None:
        temporary = Path(tempfile.mkdtemp(prefix="kafkagroup-"))
        undo.callback(shutil.rmtree, temporary)
        return temporary
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigurationError(f"{directory} is not empty: local servers start from nothing")
    return directory.resolve()


def reserve_ports(count: int, undo: ExitStack) -> list[int]:
    """Return free loopback ports, reserved for our JVMs until `undo` where the system can do that.

    A bound socket that does not listen lets a JVM listen on its port (both set SO_REUSEADDR), while
    the system gives that port to no other process, also while the node is down. Only Linux behaves
    this way; elsewhere the ports are merely likely to stay free.
    """
    holders = ExitStack()
    ports: list[int] = []
    for _ in range(count):
        holder = holders.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        ports.append(holder.getsockname()[1])
    if sys.platform == "linux":
        undo.callback(holders.close)
    else:
        holders.close()
    return ports

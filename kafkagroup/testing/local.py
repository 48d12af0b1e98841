"""Real Apache Kafka as child processes: one JVM a node, on loopback, gone when this process is.

Only here are JVMs started, stopped, killed and frozen. All calls block; nothing here knows of an
event loop. What depends on Kafka's version is in `_releases`, and how its jars come here in
`_jars`. A JVM that runs has a watchdog, so that it does not outlive its owner.
"""

from __future__ import annotations

import atexit
import base64
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
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
    resolve_jars,
    tail,
)
from kafkagroup.testing._listeners import SCRAM, Listener
from kafkagroup.testing._releases import HOST, Ports, Release, find_release

__all__ = ["Listener", "LocalKafka", "LocalKafkaError", "LocalKafkaUnavailable"]

_STOP_TIMEOUT = 30.0
"""Seconds that a clean stop of one node may take. It takes 0.3 where a quorum is left."""

_CLIENT = "CLIENT"
"""The listener that every node has for clients."""

_LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_BROKER = ("kafka.Kafka", "server.properties")
_ZOOKEEPER = ("org.apache.zookeeper.server.quorum.QuorumPeerMain", "./zoo.cfg")

# One second is the shortest session (two ticks) that a broker can ask for, a minute the longest.
_ZOO_CFG = """\
clientPortAddress={host}
clientPort={port}
dataDir=./data
tickTime=500
maxSessionTimeout=60000
admin.enableServer=false
4lw.commands.whitelist=dump
"""

# Reads until its owner is gone, however it went, and the pipe between them with it; then kills the
# JVM. The number may be another process's by then: it must have the node's own mark in its command
# line (`ps` where there is no /proc).
_WATCHDOG = """
read -r _
if grep -qsF -- "$1" "/proc/$0/cmdline" || ps -o args= -p "$0" 2>/dev/null | grep -qF -- "$1"
then kill -KILL "$0"
fi
"""


@attrs.define(eq=False, kw_only=True)
class _Server:
    """One JVM at a time, in a directory of its own that outlives it."""

    directory: Path
    main: Sequence[str] = _BROKER
    """Main class and its arguments."""
    process: subprocess.Popen[bytes] | None = None
    watchdog: subprocess.Popen[bytes] | None = None
    paused: bool = False

    @property
    def mark(self) -> str:
        """What only this server's JVM has in its command line."""
        return f"-Dkafkagroup.node={self.directory}"

    @property
    def output(self) -> Path:
        return self.directory / "output.log"

    def spawn(self, java: Sequence[str]) -> None:
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                # Native libraries are unpacked there, and a killed JVM leaves them behind.
                [*java, self.mark, f"-Djava.io.tmpdir={self.directory}", *self.main],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Else Ctrl-C at a terminal ends the brokers before the tests that still use them.
                start_new_session=True,
            )
        self.watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, str(self.process.pid), self.mark],
            stdin=subprocess.PIPE,
            # Our own may be pipes, whose readers would wait for it.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self, signal_number: int, timeout: float | None = None) -> bool:
        """Signal the JVM and wait until it is gone. False: it had to be killed after `timeout`."""
        assert self.process is not None
        self.process.send_signal(signal_number)
        in_time = True
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            in_time = False
            self.process.kill()
            self.process.wait()
        # Not if the wait is interrupted: the watchdog of a JVM that may be alive must stay.
        self.forget()
        return in_time

    def forget(self) -> None:
        """Let go of a JVM that is gone, and of its watchdog."""
        if self.watchdog is not None:
            self.watchdog.kill()
            self.watchdog.communicate()
        self.process = self.watchdog = None
        self.paused = False

    def raise_if_ended(self, name: str) -> None:
        """Raises: LocalKafkaError, with what the JVM printed, if it is gone."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            raise LocalKafkaError(f"{name} ended while starting ({code}):\n{tail(self.output)}")


@attrs.define(eq=False, kw_only=True)
class _Node(_Server):
    """One broker. Its data and ports outlive its process."""

    id: int
    ports: Ports
    data: Path
    """The first of its log directories."""

    @property
    def cluster_id(self) -> str | None:
        """The id that its cluster has given itself; None before the node has learnt it."""
        try:
            lines = (self.data / "meta.properties").read_text("ascii").splitlines()
        except FileNotFoundError:
            return None
        return next((line[len(_ID) :] for line in lines if line.startswith(_ID)), None)


_ID = "cluster.id="


@attrs.define(eq=False, kw_only=True)
class _ZooKeeper(_Server):
    """The one ZooKeeper node of a cluster that needs one."""

    port: int
    main: Sequence[str] = _ZOOKEEPER

    def brokers(self) -> frozenset[int] | None:
        """Ids whose sessions are alive; None while ZooKeeper does not answer."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(b"dump")
                with connection.makefile("rb") as stream:
                    answer = stream.read()
        except OSError:
            return None
        return frozenset(map(int, re.findall(rb"/brokers/ids/(\d+)\s", answer)))


@attrs.define(eq=False)
class LocalKafka:
    """Apache Kafka on this machine, as a context manager.

    ```python
    with LocalKafka() as kafka:
        connect(kafka.bootstrap_servers)
    ```

    Needs Java 17 and a POSIX system; the jars are found or fetched as `resolve_jars` says. One node
    is up in 2 to 4 s. Group rebalances start without delay, topics are not made on demand,
    internal topics have 3 partitions, and with three nodes they outlive any one of them. Nodes are
    numbered from 1. Ports are the system's choice and stay a node's own over restarts.

    Every node of 3.9.1 and 4.3.1 is a broker and a controller (KRaft). Beside the brokers of 2.4.1
    runs one ZooKeeper node, which is no node of the cluster and is never stopped by itself.

    Each node listens as CLIENT (the addresses in `bootstrap_servers`), INTERNAL (between brokers)
    and, with KRaft, CONTROLLER, all PLAINTEXT. `listeners` adds others beside them, with TLS and
    SASL, so that one cluster serves every kind of client (not with 2.4.1):

    ```python
    secure = Listener(certificate=key_and_chain, mechanisms=["SCRAM-SHA-256"])
    with LocalKafka(listeners={"SECURE": secure}, users={"ann": "a secret"}) as kafka:
        connect(kafka.bootstrap_servers_of("SECURE"))
    ```

    Not safe to use from two threads at once.
    """

    version: str = "4.3.1"
    """Release of Apache Kafka: 4.3.1, 3.9.1 or 2.4.1."""
    nodes: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """How many brokers."""
    config: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """Broker settings for `server.properties`; they win over the ones that are set here."""
    listeners: Mapping[str, Listener] = attrs.field(factory=dict, kw_only=True)
    """More addresses of every node, by names of your own in capitals."""
    users: Mapping[str, str] = attrs.field(factory=dict, kw_only=True, repr=False)
    """Name -> password of who may come by PLAIN and SCRAM."""
    directory: Path | None = attrs.field(
        default=None, kw_only=True, converter=attrs.converters.optional(Path)
    )
    """Where data and output go: absent or empty, and kept. None: a temporary one, removed."""
    jvm_options: Sequence[str] = attrs.field(
        # Half the CPU of a start, which counts when three nodes share two cores.
        default=("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        kw_only=True,
    )
    """Options of each JVM. For throughput, leave the last of the default ones out."""
    start_timeout: float = attrs.field(default=60.0, kw_only=True)
    """Seconds from the first JVM to a cluster that answers. Fetching jars is bounded apart."""

    _java: tuple[str, ...] = attrs.field(default=(), init=False)
    _zookeeper: _ZooKeeper | None = attrs.field(default=None, init=False)
    _cluster: dict[int, _Node] = attrs.field(factory=dict, init=False)
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
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, comma-separated, whether it runs at the moment or not."""
        return self.bootstrap_servers_of(_CLIENT)

    def bootstrap_servers_of(self, listener: str) -> str:
        """The same, for one of `listeners`."""
        self._must_be_started()
        return ",".join(self.address(node, listener) for node in self._cluster)

    def address(self, node: int, listener: str = _CLIENT) -> str:
        """`host:port` of one node."""
        ports = self._node(node).ports
        if listener not in ports:
            raise ConfigurationError(f"no listener {listener!r}: there are {', '.join(ports)}")
        return f"{HOST}:{ports[listener]}"

    def output(self, node: int) -> str:
        """The end of what a node's JVMs printed: Kafka's warnings and errors."""
        return tail(self._node(node).output)

    def start(self) -> None:
        """Format and start every node; return when each answers and knows of all the others.

        Raises: LocalKafkaUnavailable without Java or jars; LocalKafkaError if a JVM ends or the
        cluster is not up within `start_timeout`; ConfigurationError for an unknown version,
        `listeners` that cannot be, or a directory in use. Nothing but what is in `directory` is
        left behind then.
        """
        if self._started is not None:
            raise IllegalStateError("this LocalKafka is started already")
        if os.name != "posix":
            raise LocalKafkaUnavailable("a local Kafka needs a POSIX system: signals and sh")
        release = find_release(self.version)
        release.check_listeners(self.listeners, self.nodes)
        java = find_java()
        jars = resolve_jars(self.version, java)
        deadline = time.monotonic() + self.start_timeout
        with ExitStack() as undo:
            self._java = (java, _LOG_LEVEL, *self.jvm_options, "-cp", f"{jars}/*")
            self._lay_out(release, _make_directory(self.directory, undo), undo)
            undo.callback(self._kill_all)
            self._format(release, deadline)
            if self._zookeeper is not None:
                self._zookeeper.spawn(self._java)
            for node in self._cluster.values():
                self._spawn(node, deadline)
            self._await_cluster(deadline)
            self._started = undo.pop_all()
        # A kafka that nobody stopped must not leave its folder behind. (Its JVMs have watchdogs.)
        atexit.register(self._stop_at_exit, os.getpid())

    def stop(self) -> None:
        """Kill every node and remove a temporary directory. Does nothing when not started."""
        if self._started is not None:
            atexit.unregister(self._stop_at_exit)
            started, self._started = self._started, None
            started.close()

    def kill(self, node: int) -> None:
        """SIGKILL: the node is gone at once, and the others learn of it by its silence."""
        self._running(node).end(signal.SIGKILL)

    def stop_node(self, node: int) -> None:
        """Clean stop: the node hands over what it leads, then ends.

        Raises: LocalKafkaError if that took more than 30 s (no quorum is left, or the node is
        paused); it has been killed then.
        """
        if not self._running(node).end(signal.SIGTERM, _STOP_TIMEOUT):
            raise LocalKafkaError(
                f"node {node} did not stop within {_STOP_TIMEOUT:.0f} s, and was killed:\n"
                f"{self.output(node)}"
            )

    def start_node(self, node: int) -> None:
        """Start a node that was stopped or killed, on its data and ports; return when it is back.

        Back means that it and every other running node list each other. Raises: LocalKafkaError as
        `start` does (the JVM is then left as it is); IllegalStateError if the node runs.
        """
        stopped = self._node(node)
        if stopped.process is not None and stopped.process.poll() is None:
            raise IllegalStateError(f"node {node} is running")
        stopped.forget()
        deadline = time.monotonic() + self.start_timeout
        self._spawn(stopped, deadline)
        self._await_cluster(deadline)

    def restart(self, node: int) -> None:
        """Stop a node cleanly and start it again; return when it is back."""
        self.stop_node(node)
        self.start_node(node)

    def pause(self, node: int) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        running = self._running(node)
        assert running.process is not None
        running.process.send_signal(signal.SIGSTOP)
        running.paused = True

    def resume(self, node: int) -> None:
        """SIGCONT: the node goes on where it stopped. Does not wait until the others list it."""
        running = self._running(node)
        assert running.process is not None
        running.process.send_signal(signal.SIGCONT)
        running.paused = False

    def _must_be_started(self) -> None:
        if self._started is None:
            raise IllegalStateError("this LocalKafka is not started")

    def _node(self, node: int) -> _Node:
        self._must_be_started()
        if node not in self._cluster:
            raise ConfigurationError(f"no node {node}: they are 1 to {self.nodes}")
        return self._cluster[node]

    def _running(self, node: int) -> _Node:
        running = self._node(node)
        if running.process is None or running.process.poll() is not None:
            raise IllegalStateError(f"node {node} is not running")
        return running

    def _lay_out(self, release: Release, directory: Path, undo: ExitStack) -> None:
        names = (*release.listeners, *self.listeners)
        ports = iter(_reserve_ports(self.nodes * len(names) + release.zookeeper, undo))
        cluster = {
            number: {name: next(ports) for name in names} for number in range(1, self.nodes + 1)
        }
        zookeeper_port = next(ports) if release.zookeeper else None
        self._zookeeper = None
        if zookeeper_port is not None:
            home = directory / "zookeeper"
            home.mkdir()
            (home / "zoo.cfg").write_text(_ZOO_CFG.format(host=HOST, port=zookeeper_port), "ascii")
            self._zookeeper = _ZooKeeper(directory=home, port=zookeeper_port)
        self._cluster = {}
        for number in cluster:
            home = directory / f"node-{number}"
            home.mkdir()
            properties = release.server_properties(
                number, cluster, zookeeper_port, self.listeners, self.users
            )
            properties |= self.config
            lines = [f"{key}={_escape(value)}\n" for key, value in properties.items()]
            (home / "server.properties").write_text("".join(lines), "ascii")
            data = home / properties["log.dirs"].split(",")[0].strip()
            self._cluster[number] = _Node(
                directory=home, id=number, ports=cluster[number], data=data
            )

    def _spawn(self, node: _Node, deadline: float) -> None:
        """Start the JVM of a node, once ZooKeeper, if there is one, would let it in."""
        if (zookeeper := self._zookeeper) is not None:
            # A broker whose name is still held, by the session of a JVM that was killed, gives up.
            while (alive := zookeeper.brokers()) is None or node.id in alive:
                zookeeper.raise_if_ended("ZooKeeper")
                if time.monotonic() > deadline:
                    raise LocalKafkaError(
                        f"ZooKeeper was not ready for node {node.id} within "
                        f"{self.start_timeout:g} s:\n{tail(zookeeper.output)}"
                    )
                time.sleep(0.03)
        node.spawn(self._java)

    def _format(self, release: Release, deadline: float) -> None:
        """Format the data directories, all at a time: most of it is the JVM's start."""
        # A leading "-" (the bits 111110) would read as an option.
        number = uuid.uuid4().int & (1 << 127) - 1
        cluster_id = base64.urlsafe_b64encode(number.to_bytes(16)).decode()[:22]
        by_scram = any(set(SCRAM) & set(one.mechanisms) for one in self.listeners.values())
        command = release.format_command(cluster_id, self.users if by_scram else {})
        if not command:
            return
        running = []
        with ExitStack() as undo:
            for node in self._cluster.values():
                log = undo.enter_context(node.output.open("wb"))
                process = subprocess.Popen(
                    [*self._java, *command],
                    cwd=node.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                undo.callback(process.wait)
                undo.callback(process.kill)
                running.append((node, process))
            for node, process in running:
                try:
                    code = process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise LocalKafkaError(
                        f"node {node.id} was not formatted within {self.start_timeout:g} s"
                    ) from None
                if code != 0:
                    raise LocalKafkaError(
                        f"node {node.id} could not be formatted ({code}):\n{tail(node.output)}"
                    )

    def _await_cluster(self, deadline: float) -> None:
        """Return when every node that runs lists every node that runs."""
        awaited = [
            node for node in self._cluster.values() if node.process is not None and not node.paused
        ]
        ids = {node.id for node in awaited}
        for node in awaited:
            while not (
                ids <= _brokers(node.ports["INTERNAL"], node.cluster_id)
                # The listeners open one after the other.
                and all(_accepts(node.ports[name]) for name in (_CLIENT, *self.listeners))
            ):
                node.raise_if_ended(f"node {node.id}")
                if time.monotonic() > deadline:
                    raise LocalKafkaError(
                        f"node {node.id} did not list the nodes {sorted(ids)} within "
                        f"{self.start_timeout:g} s:\n{tail(node.output)}"
                    )
                time.sleep(0.03)

    def _kill_all(self) -> None:
        # All first, then wait: a broker whose peers vanish one by one has much to say about it.
        servers: list[_Server] = [*self._cluster.values()]
        if self._zookeeper is not None:
            servers.append(self._zookeeper)
        running = [server for server in servers if server.process is not None]
        for server in running:
            assert server.process is not None
            server.process.kill()
        for server in running:
            server.end(signal.SIGKILL)

    def _stop_at_exit(self, owner: int) -> None:
        # A forked child runs its parent's exit handlers, and would take the cluster from it.
        if os.getpid() == owner:
            self.stop()


def _escape(value: str) -> str:
    """A value as Java's properties format has it: what is not plain ASCII as UTF-16 escapes."""
    units = (unit for (unit,) in struct.iter_unpack(">H", value.encode("utf-16-be")))
    return "".join(
        chr(unit) if 0x20 < unit < 0x7F and unit != ord("\\") else f"\\u{unit:04x}"
        for unit in units
    )


def _make_directory(directory: Path | None, undo: ExitStack) -> Path:
    if directory is None:
        temporary = Path(tempfile.mkdtemp(prefix="kafkagroup-"))
        undo.callback(shutil.rmtree, temporary)
        return temporary
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigurationError(f"{directory} is not empty: a local Kafka starts from nothing")
    return directory.resolve()


def _reserve_ports(count: int, undo: ExitStack) -> list[int]:
    """Free loopback ports, kept from everyone but our JVMs until `undo` where that can be done.

    A socket that is bound and does not listen lets a JVM listen on the same port (both reuse the
    address), while no other process is given that port: not at the start, and not while its node
    is down. Only Linux has this rule; elsewhere the ports are merely likely to stay free.
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


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _brokers(port: int, cluster_id: str | None) -> frozenset[int]:
    """Ids of the brokers that the one at `port` lists; none while it does not answer as ours."""
    # Version 2 is the lowest that tells the cluster's id: another server may have taken the port.
    request = struct.pack(">hhihi", 3, 2, 0, -1, 0)
    try:
        with (
            socket.create_connection((HOST, port), timeout=1.0) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", stream.read(4))
            cluster, ids = _parse_metadata(stream.read(max(0, min(size, 1 << 16))))
    except (OSError, struct.error, UnicodeDecodeError):
        return frozenset()
    return ids if cluster == cluster_id else frozenset()


def _parse_metadata(answer: bytes) -> tuple[str, frozenset[int]]:
    """Cluster id and broker ids of a Metadata answer, version 2.

    By hand, so that the judge of a cluster shares no code with the client that is tested on it.
    """
    (count,) = struct.unpack_from(">i", answer, 4)
    position = 8
    ids = []
    for _ in range(count):
        number, host_length = struct.unpack_from(">ih", answer, position)
        # Id, host and its length, port.
        position += 4 + 2 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", answer, position)
        position += 2 + max(0, rack_length)
        ids.append(number)
    (length,) = struct.unpack_from(">h", answer, position)
    return answer[position + 2 : position + 2 + max(0, length)].decode(), frozenset(ids)

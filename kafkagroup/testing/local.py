"""Real Apache Kafka as child processes: one JVM per node, on loopback, ended with this process.

`_servers` runs the JVMs, `_releases` holds what depends on Kafka's version, and `_jars` provides
the jars. All calls block; nothing here uses an event loop.
"""

from __future__ import annotations

import base64
import re
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from kafkagroup.errors import ConfigurationError
from kafkagroup.testing._jars import (
    LocalKafkaError,
    LocalKafkaUnavailable,
    resolve_jars,
    tail,
)
from kafkagroup.testing._listeners import SCRAM_MECHANISMS, Listener
from kafkagroup.testing._releases import HOST, Ports, Release, find_release
from kafkagroup.testing._servers import Node, Server, Servers, reserve_ports

__all__ = ["Listener", "LocalKafka", "LocalKafkaError", "LocalKafkaUnavailable"]

_CLIENT = "CLIENT"
"""The name of every node's listener for clients."""

_CLUSTER_ID = "cluster.id="
"""The beginning of a line in `meta.properties`."""

# Main classes and their arguments.
_BROKER_MAIN = ("kafka.Kafka", "server.properties")
ZOOKEEPER_MAIN = ("org.apache.zookeeper.server.quorum.QuorumPeerMain", "./zoo.cfg")

# Brokers can request sessions from one second (two ticks) to a minute.
_ZOO_CFG = """\
clientPortAddress={host}
clientPort={port}
dataDir=./data
tickTime=500
maxSessionTimeout=60000
admin.enableServer=false
4lw.commands.whitelist=dump
"""


@attrs.define(eq=False, kw_only=True)
class _Node(Node):
    """One broker."""

    main: Sequence[str] = _BROKER_MAIN
    ports: Ports
    data: Path
    """The first log directory of the node."""

    @property
    def cluster_id(self) -> str | None:
        """The cluster id that the node has stored; None before it has one."""
        try:
            lines = (self.data / "meta.properties").read_text("ascii").splitlines()
        except FileNotFoundError:
            return None
        return next(
            (line[len(_CLUSTER_ID) :] for line in lines if line.startswith(_CLUSTER_ID)), None
        )


@attrs.define(eq=False, kw_only=True)
class _ZooKeeper(Server):
    """The ZooKeeper node of a cluster that uses ZooKeeper."""

    port: int
    main: Sequence[str] = ZOOKEEPER_MAIN

    def registered_brokers(self) -> frozenset[int] | None:
        """Ids of the brokers with a live session; None while ZooKeeper does not answer."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(b"dump")
                with connection.makefile("rb") as stream:
                    response = stream.read()
        except OSError:
            return None
        return frozenset(map(int, re.findall(rb"/brokers/ids/(\d+)\s", response)))


@attrs.define(eq=False)
class LocalKafka(Servers[_Node]):
    """Apache Kafka on this machine, as a context manager.

    ```python
    with LocalKafka() as kafka:
        connect(kafka.bootstrap_servers)
    ```

    Needs Java 17 and a POSIX system; `resolve_jars` finds or downloads the jars. One node is up in
    2 to 4 s. Group rebalances start without delay, topics are not created automatically, records
    are kept whatever their timestamps, internal topics have 3 partitions, and with three nodes they
    survive the loss of any one. Nodes are numbered from 1. The system chooses the ports, and a node
    keeps its ports over restarts.

    Every node of 3.9.1 and 4.3.1 is a broker and a controller (KRaft). The brokers of 2.4.1 use one
    ZooKeeper node, which is not a node of the cluster and runs until the whole cluster stops.

    Each node has the listeners CLIENT (the addresses in `bootstrap_servers`), INTERNAL (between
    brokers) and, with KRaft, CONTROLLER, all PLAINTEXT. `listeners` adds others with TLS and SASL,
    so that one cluster serves every kind of client (not with 2.4.1):

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
    """Number of nodes."""
    listeners: Mapping[str, Listener] = attrs.field(factory=dict, kw_only=True)
    """Additional listeners of every node, by name, in capitals."""
    users: Mapping[str, str] = attrs.field(factory=dict, kw_only=True, repr=False)
    """Name -> password of the users of PLAIN and SCRAM."""
    jvm_options: Sequence[str] = attrs.field(
        # These halve the CPU time of a start, which matters when three nodes share two cores.
        default=("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        kw_only=True,
    )
    """Options of each JVM. To measure throughput, drop the last of the default ones."""

    _zookeeper: _ZooKeeper | None = attrs.field(default=None, init=False)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, running or not, comma-separated."""
        return self.bootstrap_servers_of(_CLIENT)

    def bootstrap_servers_of(self, listener: str) -> str:
        """`host:port` of every node for one of `listeners`, comma-separated."""
        self._must_be_started()
        return ",".join(self.address(node, listener) for node in self._nodes)

    def address(self, node: int, listener: str = _CLIENT) -> str:
        """`host:port` of one node."""
        ports = self._node(node).ports
        if listener not in ports:
            raise ConfigurationError(f"no listener {listener!r}: there are {', '.join(ports)}")
        return f"{HOST}:{ports[listener]}"

    def _find_jars(self, java: str) -> Sequence[Path]:
        find_release(self.version).check_listeners(self.listeners, self.nodes)
        return [resolve_jars(self.version, java)]

    def _lay_out(self, directory: Path, undo: ExitStack) -> None:
        release = find_release(self.version)
        names = (*release.listeners, *self.listeners)
        ports = iter(reserve_ports(self.nodes * len(names) + int(release.uses_zookeeper), undo))
        # Node -> listener -> port.
        cluster = {
            number: {name: next(ports) for name in names} for number in range(1, self.nodes + 1)
        }
        zookeeper_port = next(ports) if release.uses_zookeeper else None
        self._zookeeper = None
        if zookeeper_port is not None:
            home = directory / "zookeeper"
            home.mkdir()
            (home / "zoo.cfg").write_text(_ZOO_CFG.format(host=HOST, port=zookeeper_port), "ascii")
            self._zookeeper = _ZooKeeper(directory=home, port=zookeeper_port)
        self._nodes = {}
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
            self._nodes[number] = _Node(directory=home, id=number, ports=cluster[number], data=data)

    def _prepare(self, deadline: float) -> None:
        self._format(find_release(self.version), deadline)
        if self._zookeeper is not None:
            self._zookeeper.spawn(self._java)

    def _others(self) -> Iterable[Server]:
        return () if self._zookeeper is None else (self._zookeeper,)

    def _spawn(self, node: _Node, deadline: float) -> None:
        """Start a node's JVM, after its previous ZooKeeper session, if any, has expired."""
        if (zookeeper := self._zookeeper) is not None:

            def is_unregistered() -> bool:
                # A broker exits at startup while its id is still registered by the session of its
                # killed predecessor.
                registered = zookeeper.registered_brokers()
                return registered is not None and node.id not in registered

            timeout_message = f"ZooKeeper was not ready for {node}"
            self._await(is_unregistered, zookeeper, "ZooKeeper", timeout_message, deadline)
        node.spawn(self._java)

    def _format(self, release: Release, deadline: float) -> None:
        """Format the data directories concurrently: JVM startup dominates the time."""
        # The top bit is cleared: a leading "-" (bits 111110) would be parsed as an option.
        number = uuid.uuid4().int & (1 << 127) - 1
        cluster_id = base64.urlsafe_b64encode(number.to_bytes(16)).decode()[:22]
        uses_scram = any(
            set(SCRAM_MECHANISMS) & set(one.mechanisms) for one in self.listeners.values()
        )
        command = release.format_command(cluster_id, self.users if uses_scram else {})
        if not command:
            return
        running = []
        with ExitStack() as undo:
            for node in self._nodes.values():
                log = undo.enter_context(node.output.open("wb"))
                process = subprocess.Popen(
                    [*self._java, *command],
                    cwd=node.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                # Called in reverse order: kill, then wait.
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

    def _serves(self, node: _Node) -> bool:
        """Whether the node lists every running node, and its listeners accept connections."""
        listed = _listed_brokers(node.ports["INTERNAL"], node.cluster_id)
        return {other.id for other in self._unpaused()} <= listed and all(
            # The listeners open one after another.
            _accepts(node.ports[name])
            for name in (_CLIENT, *self.listeners)
        )


def _escape(value: str) -> str:
    """Escape a value for Java's properties format: UTF-16 escapes for all but visible ASCII, and
    for the backslash."""
    units = (unit for (unit,) in struct.iter_unpack(">H", value.encode("utf-16-be")))
    return "".join(
        chr(unit) if 0x20 < unit < 0x7F and unit != ord("\\") else f"\\u{unit:04x}"
        for unit in units
    )


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _listed_brokers(port: int, cluster_id: str | None) -> frozenset[int]:
    """Return the ids of the brokers that the broker at `port` lists; none before it responds, or if
    its cluster has another id, as another server may have taken the port."""
    # Metadata of no topics, without a client id, in the lowest version with a cluster id: 2. The
    # fields: API key, version, correlation id, length of the client id (-1: null), topic count.
    request = struct.pack(">hhihi", 3, 2, 0, -1, 0)
    try:
        with (
            socket.create_connection((HOST, port), timeout=1.0) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(struct.pack(">i", len(request)) + request)
            # The size is limited: another server may listen at the port.
            (size,) = struct.unpack(">i", stream.read(4))
            cluster, ids = _parse_metadata(stream.read(max(0, min(size, 1 << 16))))
    except (OSError, struct.error, UnicodeDecodeError):
        return frozenset()
    return ids if cluster == cluster_id else frozenset()


def _parse_metadata(response: bytes) -> tuple[str, frozenset[int]]:
    """Return the cluster id and broker ids of a Metadata response, version 2.

    Decoded by hand, so that this check shares no code with the client under test.
    """
    # After the correlation id; version 2 has no throttle time.
    (count,) = struct.unpack_from(">i", response, 4)
    position = 8
    ids = []
    for _ in range(count):
        number, host_length = struct.unpack_from(">ih", response, position)
        # Id, host and its length, port.
        position += 4 + 2 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", response, position)
        position += 2 + max(0, rack_length)
        ids.append(number)
    (length,) = struct.unpack_from(">h", response, position)
    return response[position + 2 : position + 2 + max(0, length)].decode(), frozenset(ids)

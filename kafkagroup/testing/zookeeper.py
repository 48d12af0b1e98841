"""Real ZooKeeper as child processes: one JVM per node, on loopback, ended with this process.

For groups whose membership is kept in ZooKeeper. All calls block; `_jars` provides the jars.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from kafkagroup.testing._jars import LocalKafkaError, resolve
from kafkagroup.testing._releases import HOST, NETTY, ZOOKEEPER
from kafkagroup.testing._servers import Node, Servers, reserve_ports
from kafkagroup.testing.local import ZOOKEEPER_MAIN

__all__ = ["LocalZooKeeper"]

# The limits are in ticks, the session timeout in milliseconds.
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
class _Node(Node):
    """One server of the ensemble."""

    main: Sequence[str] = ZOOKEEPER_MAIN
    port: int
    secure_port: int

    def serves(self) -> bool:
        """Whether the server is part of a quorum."""
        status = self.send_command(b"srvr")
        return re.search(rb"Mode: (standalone|leader|follower)", status) is not None

    def send_command(self, command: bytes) -> bytes:
        """Return the response to a four-letter command; empty if there is none."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.settimeout(1.0)
                connection.sendall(command)
                with connection.makefile("rb") as stream:
                    return stream.read()
        except OSError:
            return b""


@attrs.define(eq=False)
class LocalZooKeeper(Servers[_Node]):
    """Apache ZooKeeper 3.9.3 on this machine, as a context manager.

    ```python
    with LocalZooKeeper() as zookeeper:
        ZooKeeperMembership(zookeeper.hosts)
    ```

    Needs Java and a POSIX system. The jars come from the folder that `KAFKAGROUP_ZOOKEEPER_JARS`
    names, or from the cache, like LocalKafka's. One node is up in 1 s, three in 4 s. Nodes are
    numbered from 1. Not safe to use from two threads at once.
    """

    nodes: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Number of nodes."""
    tick_ms: int = attrs.field(default=500, kw_only=True)
    """The tick. A session lasts at least two ticks; followers report their sessions to the leader
    every half tick."""
    certificate: str | None = attrs.field(default=None, kw_only=True, repr=False)
    """PEM: a private key (PKCS #8), then the certificate chain, the servers' own first. If set, the
    servers also accept TLS, at `secure_hosts`; this needs Netty, whose jars are downloaded in the
    same way (`KAFKAGROUP_NETTY_JARS`)."""
    client_ca: str | None = attrs.field(default=None, kw_only=True)
    """PEM of the CA that signs client certificates. If set, clients must present one over TLS."""
    jvm_options: Sequence[str] = attrs.field(
        default=("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"), kw_only=True
    )
    """Options of each JVM."""

    @property
    def hosts(self) -> str:
        """`host:port` of every node, running or not, comma-separated."""
        return ",".join(self.address(node) for node in range(1, self.nodes + 1))

    @property
    def secure_hosts(self) -> str:
        """`host:port` of every node's TLS port, comma-separated; nothing listens there without
        `certificate`."""
        return ",".join(f"{HOST}:{self._node(n).secure_port}" for n in range(1, self.nodes + 1))

    def address(self, node: int) -> str:
        """`host:port` of one node."""
        return f"{HOST}:{self._node(node).port}"

    @property
    def leader(self) -> int:
        """The leader's node id; that of the only node, if there is one. Raises: LocalKafkaError
        while there is no leader."""
        for node in self._unpaused():
            if re.search(rb"Mode: (standalone|leader)", node.send_command(b"srvr")):
                return node.id
        raise LocalKafkaError("no node leads")

    def _find_jars(self, java: str) -> Sequence[Path]:
        sets = [ZOOKEEPER, *([NETTY] if self.certificate else [])]
        return [resolve(jars, java) for jars in sets]

    def _serves(self, node: _Node) -> bool:
        return node.serves()

    def _lay_out(self, directory: Path, undo: ExitStack) -> None:
        # Of each node: two for the other servers, one for clients, one for clients with TLS.
        ports = iter(reserve_ports(4 * self.nodes, undo))
        numbers = range(1, self.nodes + 1)
        peers = {f"server.{n}": f"{HOST}:{next(ports)}:{next(ports)}" for n in numbers}
        self._nodes = {}
        for number in numbers:
            home, port, secure_port = directory / f"node-{number}", next(ports), next(ports)
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(str(number), "ascii")
            settings = {
                **_SETTINGS,
                "clientPort": str(port),
                "tickTime": str(self.tick_ms),
                "minSessionTimeout": str(2 * self.tick_ms),
                **(peers if self.nodes > 1 else {}),
                **self._tls(home, secure_port),
                **self.config,
            }
            lines = "".join(f"{key}={value}\n" for key, value in settings.items())
            (home / "zoo.cfg").write_text(lines, "ascii")
            self._nodes[number] = _Node(
                directory=home, id=number, port=port, secure_port=secure_port
            )

    def _tls(self, home: Path, port: int) -> dict[str, str]:
        """Write the TLS files of a node and return the settings for TLS at `port`; empty without
        `certificate` and `client_ca`."""
        settings: dict[str, str] = {}
        for store, pem in (("keyStore", self.certificate), ("trustStore", self.client_ca)):
            if pem is not None:
                path = home / f"{store}.pem"
                path.touch(0o600)
                path.write_text(pem, "ascii")
                settings |= {f"ssl.{store}.location": f"./{path.name}", f"ssl.{store}.type": "PEM"}
        if self.certificate is not None:
            settings |= {
                "secureClientPort": str(port),
                "secureClientPortAddress": HOST,
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.clientAuth": "none" if self.client_ca is None else "need",
            }
        return settings

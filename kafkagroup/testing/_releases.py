"""What differs between the releases of Apache Kafka that run here: one frozen value for each.

Only here does anything depend on a version: what a release is made of, how it is configured, and
whether it keeps its cluster in ZooKeeper or in a quorum of its own (KRaft). Nothing here starts a
process or touches a file. A new release is a new row, and its `kafka-<version>.sha256`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from kafkagroup.errors import ConfigurationError
from kafkagroup.testing._listeners import SCRAM, Listener

__all__ = ["HOST", "NETTY", "ZOOKEEPER", "JarSet", "Ports", "Release", "find_release"]

HOST = "127.0.0.1"

Ports = Mapping[str, int]
"""Listener name -> port, of one node."""

# Kafka takes others too, and reads their settings under the name in small letters.
_LISTENER_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


@attrs.frozen
class JarSet:
    """The jars of one class path."""

    product: str
    version: str
    artefacts: tuple[tuple[str, str, str], ...]
    """(group, artefact, version)."""
    variable: str
    """Name of the environment variable that may say where they are."""
    mark: str
    """Pattern of a jar that is among them."""
    closed: bool = False
    """Whether they are all that there is; else the class path is their closure."""

    @property
    def name(self) -> str:
        """Of the cache folder and of the list of checksums."""
        return f"{self.product.lower()}-{self.version}"


ZOOKEEPER = JarSet(
    "ZooKeeper",
    "3.9.3",
    # Not its closure: that has native libraries for five platforms, of which a server without TLS
    # needs none, and lacks what it does need to start.
    (
        ("org.apache.zookeeper", "zookeeper", "3.9.3"),
        ("org.apache.zookeeper", "zookeeper-jute", "3.9.3"),
        ("commons-io", "commons-io", "2.17.0"),
        ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
        ("org.slf4j", "slf4j-api", "1.7.30"),
        ("org.slf4j", "slf4j-simple", "1.7.30"),
        ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    ),
    variable="KAFKAGROUP_ZOOKEEPER_JARS",
    mark="zookeeper-3.9.3.jar",
    closed=True,
)


_NETTY = "4.1.113.Final"

NETTY = JarSet(
    "Netty",
    _NETTY,
    # The parts that ZooKeeper's servers need for TLS.
    tuple(
        ("io.netty", f"netty-{part}", _NETTY)
        for part in (
            "common",
            "buffer",
            "resolver",
            "transport",
            "codec",
            "handler",
            "transport-native-unix-common",
            "transport-classes-epoll",
        )
    ),
    variable="KAFKAGROUP_NETTY_JARS",
    mark=f"netty-handler-{_NETTY}.jar",
    closed=True,
)


@attrs.frozen
class Release:
    """How to run one release. The nodes of a cluster are given as node id -> its ports."""

    version: str
    logger: str
    """Version of slf4j-simple. The one of Kafka's own slf4j, as Maven takes the nearest version of
    slf4j's API where Ivy takes the highest: the jars, and so the checksums, would be others."""
    zookeeper: bool = False
    """Whether the cluster is kept by a ZooKeeper node beside the brokers. It is in Kafka's jars."""
    logs: tuple[str, ...] = ("transaction.state.log",)
    """Internal topics, by what their settings begin with, that have a `min.isr` of their own."""
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """What only this release knows."""

    @property
    def artefacts(self) -> tuple[tuple[str, str, str], ...]:
        """(group, artefact, version) of what the class path is the closure of."""
        return (
            ("org.apache.kafka", "kafka_2.13", self.version),
            # Kafka brings slf4j's API and nothing behind it: a broker that fails would not say why.
            ("org.slf4j", "slf4j-simple", self.logger),
        )

    @property
    def jars(self) -> JarSet:
        """Its jars, and those that they need."""
        return JarSet(
            "Kafka",
            self.version,
            self.artefacts,
            variable="KAFKAGROUP_KAFKA_JARS",
            mark=f"kafka_2.*-{self.version}.jar",
        )

    @property
    def listeners(self) -> tuple[str, ...]:
        """Names of the listeners that every node has."""
        return ("CLIENT", "INTERNAL") if self.zookeeper else ("CLIENT", "INTERNAL", "CONTROLLER")

    def check_listeners(self, added: Mapping[str, Listener], nodes: int) -> None:
        """Raises: ConfigurationError if so many nodes cannot have these beside their own."""
        if added and self.zookeeper:
            raise ConfigurationError(f"Kafka {self.version} runs here without more listeners")
        for name, listener in added.items():
            if name in self.listeners or not _LISTENER_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"listener {name!r}: give a name of capitals, digits and underscores that is"
                    f" none of {', '.join(self.listeners)}"
                )
            if listener.advertised_ports and len(listener.advertised_ports) != nodes:
                raise ConfigurationError(
                    f"listener {name!r}: {len(listener.advertised_ports)} advertised_ports for"
                    f" {nodes} nodes; give one for each"
                )

    def format_command(
        self, cluster_id: str, scram_users: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Main class and arguments that prepare a node's directory; empty if nothing has to.

        `scram_users` maps the names of users that may come by SCRAM to their passwords.
        """
        if self.zookeeper:
            return ()
        tool = ("kafka.tools.StorageTool", "format", "--config", "server.properties")
        added = (
            argument
            for mechanism in SCRAM
            for name, password in (scram_users or {}).items()
            for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
        )
        return (*tool, "--cluster-id", cluster_id, *added)

    def server_properties(
        self,
        node: int,
        cluster: Mapping[int, Ports],
        zookeeper_port: int | None,
        listeners: Mapping[str, Listener] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """The settings of one node; `listeners` are those beside its own, by name."""
        copies = min(3, len(cluster))
        ports = cluster[node]
        added = listeners or {}
        properties = {
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": ",".join(
                f"{name}:{added[name].protocol if name in added else 'PLAINTEXT'}" for name in ports
            ),
            "listeners": _addresses(ports),
            # Relative to the node's directory: no path has to survive this file's quoting.
            "log.dirs": "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # Tests date their records as they like; what is dated 1970 would be deleted by age half
            # a minute after the start, whether it was read or not.
            "log.retention.ms": "-1",
            # Only the lower bound, so that a test may ask for less; the default stays Kafka's.
            "group.min.session.timeout.ms": "100",
            # Kafka's 50 partitions cost a second when a group is first asked for.
            "offsets.topic.num.partitions": "3",
            "offsets.topic.replication.factor": str(copies),
            # 128 MiB by default, taken from the heap at the start.
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            # Kafka's 15 s are how long a test waits until something is compacted.
            "log.cleaner.backoff.ms": "1000",
        }
        for log in self.logs:
            properties[f"{log}.num.partitions"] = "3"
            properties[f"{log}.replication.factor"] = str(copies)
            # One less than the copies, or a topic stands still while a node is down.
            properties[f"{log}.min.isr"] = str(max(1, copies - 1))
        if self.zookeeper:
            properties |= _with_zookeeper(node, zookeeper_port)
        else:
            properties |= _with_quorum(node, cluster)
        advertised = {
            name: listener.advertised_ports[node - 1]
            for name, listener in added.items()
            if listener.advertised_ports
        }
        if advertised:
            # Kafka refuses to advertise a controller's, and takes what is left out as not there.
            public = {name: port for name, port in ports.items() if name != "CONTROLLER"}
            properties["advertised.listeners"] = _addresses(public | advertised)
        for name, listener in added.items():
            for key, value in listener.properties(users or {}).items():
                properties[f"listener.name.{name.lower()}.{key}"] = value
        return {**properties, **self.settings}


def _addresses(ports: Ports) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


def _with_quorum(node: int, cluster: Mapping[int, Ports]) -> dict[str, str]:
    """Every node a broker and a controller."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(
            f"{peer}@{HOST}:{ports['CONTROLLER']}" for peer, ports in cluster.items()
        ),
        "controller.listener.names": "CONTROLLER",
        # Kafka's 9 s are how long a killed node's partitions have no leader.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
    }


def _with_zookeeper(node: int, port: int | None) -> dict[str, str]:
    return {
        "broker.id": str(node),
        "zookeeper.connect": f"{HOST}:{port}",
        # As long as a session of KRaft's above. Kafka's is 18 s.
        "zookeeper.session.timeout.ms": "6000",
    }


_RELEASES: Mapping[str, Release] = {
    release.version: release
    for release in (
        Release(
            "4.3.1",
            logger="1.7.36",
            logs=("transaction.state.log", "share.coordinator.state.topic"),
            settings={
                "group.consumer.min.session.timeout.ms": "1000",
                "group.consumer.min.heartbeat.interval.ms": "100",
            },
        ),
        Release("3.9.1", logger="1.7.36"),
        Release("2.4.1", logger="1.7.28", zookeeper=True),
    )
}


def find_release(version: str) -> Release:
    """The release of that version. Raises: ConfigurationError, with the versions there are."""
    if version not in _RELEASES:
        known = ", ".join(_RELEASES)
        raise ConfigurationError(f"no local Kafka {version!r}: the ones that run here are {known}")
    return _RELEASES[version]

"""The differences between the supported releases of Apache Kafka: one frozen value per release.

Only this module depends on Kafka's version: which jars a release needs, how it is configured, and
whether it uses ZooKeeper or KRaft. Nothing here starts a process or touches a file. To support
another release, add a row to `_RELEASES` and its `kafka-<version>.sha256`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from kafkagroup.errors import ConfigurationError
from kafkagroup.testing._listeners import SCRAM_MECHANISMS, Listener

__all__ = ["HOST", "NETTY", "TOOLS", "ZOOKEEPER", "JarSet", "Ports", "Release", "find_release"]

HOST = "127.0.0.1"

Ports = Mapping[str, int]
"""Listener name -> port, of one node."""

# Kafka looks up the settings of a listener by its name in lower case: two names that differ only by
# case would share them.
_LISTENER_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


@attrs.frozen
class JarSet:
    """Jars of one version of a product, for a class path."""

    product: str
    version: str
    artefacts: tuple[tuple[str, str, str], ...]
    """Tuples of (group, artefact, version)."""
    variable: str
    """Name of the environment variable that can point to a folder with the jars."""
    required_jar: str
    """Glob pattern of a jar that the folder must contain."""
    is_complete: bool = False
    """Whether `artefacts` are all jars; if not, their dependencies belong to the set too."""

    @property
    def name(self) -> str:
        """Name of the cache folder and of the list of checksums."""
        return f"{self.product.lower()}-{self.version}"


# A ZooKeeper server that runs alone, for members that are kept in ZooKeeper; that of a Kafka before
# 4.0 is in the jars of its release.
ZOOKEEPER = JarSet(
    "ZooKeeper",
    "3.9.3",
    # All listed by hand: ZooKeeper's declared dependencies include native libraries that a server
    # without TLS does not need, and lack jars without which it does not start.
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
    required_jar="zookeeper-3.9.3.jar",
    is_complete=True,
)


_NETTY = "4.1.113.Final"

NETTY = JarSet(
    "Netty",
    _NETTY,
    # The modules that ZooKeeper servers need for TLS.
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
    required_jar=f"netty-handler-{_NETTY}.jar",
    is_complete=True,
)

TOOLS = JarSet(
    "Kafka-tools",
    "4.3.1",
    # Used together with a broker's jars, which have all that kafka-topics and the like depend on.
    (("org.apache.kafka", "kafka-tools", "4.3.1"),),
    variable="KAFKAGROUP_KAFKA_TOOLS_JARS",
    required_jar="kafka-tools-4.3.1.jar",
    is_complete=True,
)


@attrs.frozen
class Release:
    """How to run one release. A cluster is given as node id, from 1 on -> the node's ports."""

    version: str
    slf4j_version: str
    """Version of slf4j-simple. It must be that of the slf4j-api that this Kafka depends on:
    otherwise Maven (nearest version) and Ivy (highest version) resolve different jars, whose
    checksums do not match."""
    uses_zookeeper: bool = False
    """Whether the cluster uses a ZooKeeper node (which is part of Kafka's jars) instead of
    KRaft."""
    internal_topic_settings: tuple[str, ...] = ("transaction.state.log",)
    """Setting prefixes of the internal topics that have their own `min.isr`."""
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """Additional settings of this release."""

    @property
    def artefacts(self) -> tuple[tuple[str, str, str], ...]:
        """(group, artefact, version) of the artefacts that, with their dependencies, form the class
        path."""
        return (
            ("org.apache.kafka", "kafka_2.13", self.version),
            # Kafka ships only slf4j's API: without a backend, a failing broker logs nothing.
            ("org.slf4j", "slf4j-simple", self.slf4j_version),
        )

    @property
    def jars(self) -> JarSet:
        """The artefacts as a JarSet with their dependencies."""
        return JarSet(
            "Kafka",
            self.version,
            self.artefacts,
            variable="KAFKAGROUP_KAFKA_JARS",
            required_jar=f"kafka_2.*-{self.version}.jar",
        )

    @property
    def listeners(self) -> tuple[str, ...]:
        """Names of the built-in listeners of every node."""
        return (
            ("CLIENT", "INTERNAL") if self.uses_zookeeper else ("CLIENT", "INTERNAL", "CONTROLLER")
        )

    def check_listeners(self, added: Mapping[str, Listener], nodes: int) -> None:
        """Check that this number of nodes can have these listeners. Raises: ConfigurationError."""
        if added and self.uses_zookeeper:
            raise ConfigurationError(
                f"Kafka {self.version} runs here on ZooKeeper, without additional listeners;"
                " choose a release that runs on KRaft"
            )
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
        """Return the main class and arguments that format a node's directory; empty for ZooKeeper.

        `scram_users` maps the names of users that authenticate with SCRAM to their passwords.
        Raises: ConfigurationError for what the tool would read as something else.
        """
        if self.uses_zookeeper:
            return ()
        for text in (*(scram_users or {}), *(scram_users or {}).values()):
            if "," in text or text[:1] == '"' or text[-1:] == '"':
                raise ConfigurationError(
                    "Kafka's storage tool takes no name or password for SCRAM that has a comma, or"
                    " a double quote at an end"
                )
        tool = ("kafka.tools.StorageTool", "format", "--config", "server.properties")
        added = (
            argument
            for mechanism in SCRAM_MECHANISMS
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
        """Return the settings of one node. `zookeeper_port` is None with KRaft; `listeners` are the
        additional ones, by name; `users` are those of PLAIN, name -> password."""
        replicas = min(3, len(cluster))
        ports = cluster[node]
        added = listeners or {}
        properties = {
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": ",".join(
                f"{name}:{added[name].protocol if name in added else 'PLAINTEXT'}" for name in ports
            ),
            "listeners": _addresses(ports),
            # Relative to the node's directory, so that no path has to be escaped in this file.
            "log.dirs": "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # Tests produce records with arbitrary timestamps: retention would delete records from
            # 1970 half a minute after the start, consumed or not.
            "log.retention.ms": "-1",
            # So that tests can use short sessions. The upper bound is Kafka's.
            "group.min.session.timeout.ms": "100",
            # Kafka's default of 50 partitions delays the first group by a second.
            "offsets.topic.num.partitions": "3",
            "offsets.topic.replication.factor": str(replicas),
            # 128 MiB by default, allocated from the heap at the start.
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            # With Kafka's default, a test would wait 15 s for compaction.
            "log.cleaner.backoff.ms": "1000",
        }
        for log in self.internal_topic_settings:
            properties[f"{log}.num.partitions"] = "3"
            properties[f"{log}.replication.factor"] = str(replicas)
            # One less than the replicas, or writes to the topic fail while a node is down.
            properties[f"{log}.min.isr"] = str(max(1, replicas - 1))
        if self.uses_zookeeper:
            properties |= _with_zookeeper(node, zookeeper_port)
        else:
            properties |= _with_quorum(node, cluster)
        advertised = {
            name: listener.advertised_ports[node - 1]
            for name, listener in added.items()
            if listener.advertised_ports
        }
        if advertised:
            # Kafka does not advertise listeners that are omitted here. CONTROLLER is left out: its
            # address is that of `listeners`, and older releases refuse it here.
            public = {name: port for name, port in ports.items() if name != "CONTROLLER"}
            properties["advertised.listeners"] = _addresses(public | advertised)
        for name, listener in added.items():
            for key, value in listener.properties(users or {}).items():
                properties[f"listener.name.{name.lower()}.{key}"] = value
        return {**properties, **self.settings}


def _addresses(ports: Ports) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


def _with_quorum(node: int, cluster: Mapping[int, Ports]) -> dict[str, str]:
    """Return the settings of a KRaft cluster in which every node is a broker and a controller."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(
            f"{peer}@{HOST}:{ports['CONTROLLER']}" for peer, ports in cluster.items()
        ),
        "controller.listener.names": "CONTROLLER",
        # With Kafka's default, the partitions of a killed node have no leader for 9 s.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
    }


def _with_zookeeper(node: int, port: int | None) -> dict[str, str]:
    return {
        "broker.id": str(node),
        "zookeeper.connect": f"{HOST}:{port}",
        # As long as the KRaft session above. It is 2.4.1's default, but not that of later releases.
        "zookeeper.session.timeout.ms": "6000",
    }


_RELEASES: Mapping[str, Release] = {
    release.version: release
    for release in (
        Release(
            "4.3.1",
            slf4j_version="1.7.36",
            internal_topic_settings=("transaction.state.log", "share.coordinator.state.topic"),
            # Kafka's minima (45 s, 5 s) are longer than a test.
            settings={
                "group.consumer.min.session.timeout.ms": "1000",
                "group.consumer.min.heartbeat.interval.ms": "100",
            },
        ),
        Release("3.9.1", slf4j_version="1.7.36"),
        Release("2.4.1", slf4j_version="1.7.28", uses_zookeeper=True),
    )
}


def find_release(version: str) -> Release:
    """Return the release of a version. Raises: ConfigurationError, with the supported versions."""
    if version not in _RELEASES:
        known = ", ".join(_RELEASES)
        raise ConfigurationError(f"no local Kafka {version!r}: the ones that run here are {known}")
    return _RELEASES[version]

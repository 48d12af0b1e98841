"""LocalKafka: the sources of its jars and Java, and its nodes under misuse."""

from __future__ import annotations

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from certificates import authority
from confluent_kafka.admin import AdminClient

from kafkagroup.errors import ConfigurationError, IllegalStateError
from kafkagroup.testing import _jars
from kafkagroup.testing._jars import (
    LocalKafkaError,
    LocalKafkaUnavailable,
    find_java,
    resolve_jars,
    verify_jars,
)
from kafkagroup.testing._listeners import Listener
from kafkagroup.testing._releases import find_release
from kafkagroup.testing.local import LocalKafka, _escape

VERSION = "4.3.1"
VERSIONS = ["4.3.1", "3.9.1", "2.4.1"]


@pytest.fixture(scope="module")
def jars() -> Path:
    return _find_jars(VERSION)


@pytest.fixture(
    params=[
        VERSION,
        pytest.param("3.9.1", marks=pytest.mark.brokers),
        pytest.param("2.4.1", marks=pytest.mark.brokers),
    ]
)
def version(request: pytest.FixtureRequest) -> str:
    """Return each release that runs here; old ones, which have separate jars, on request."""
    _find_jars(request.param)
    return str(request.param)


def _find_jars(version: str) -> Path:
    """Return Kafka's jars; skip the test, with the reason, without them."""
    try:
        return resolve_jars(version, find_java())
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a shell script on an otherwise empty `PATH`, next to an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KAFKAGROUP_KAFKA_JARS", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # PySpark may be installed where the tests run.
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages"), *_without_pyspark()])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)

    def add(name: str, script: str) -> Path:
        command = folder / name
        command.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        command.chmod(0o755)
        return command

    return add


def _without_pyspark() -> list[str]:
    return [entry for entry in sys.path if not Path(entry, "pyspark").is_dir()]


def _add_pyspark(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "pyspark"
    (package / "jars").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('found, never imported')")
    (package / "jars" / "ivy-2.5.3.jar").touch()


def _link(source: Path, target: Path) -> Path:
    target.mkdir(parents=True)
    for jar in source.glob("*.jar"):
        (target / jar.name).symlink_to(jar)
    return target


def _cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "kafkagroup" / f"kafka-{VERSION}"


def _left_in_cache(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache" / "kafkagroup").iterdir()]


class TestJava:
    def test_java_home_takes_precedence(
        self, commands: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        on_path = commands("java", "")
        assert find_java() == str(on_path)
        home = tmp_path / "home" / "bin" / "java"
        home.parent.mkdir(parents=True)
        shutil.copy(on_path, home)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        assert find_java() == str(home)

    def test_a_java_home_without_java_is_an_error(
        self, commands: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        commands("java", "")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
        with pytest.raises(LocalKafkaUnavailable) as caught:
            LocalKafka().start()
        assert str(caught.value) == f"JAVA_HOME is {tmp_path}/old, which holds no bin/java"

    def test_a_missing_java_is_an_error(self, commands: Callable[[str, str], Path]) -> None:
        with pytest.raises(LocalKafkaUnavailable) as caught:
            LocalKafka().start()
        assert str(caught.value) == "no Java: JAVA_HOME is not set and no java command is on PATH"


class TestResolution:
    def test_an_unknown_version_is_a_configuration_error(self) -> None:
        for call in (lambda: resolve_jars("2.4", "java"), LocalKafka("2.4").start):
            with pytest.raises(ConfigurationError) as caught:
                call()
            assert str(caught.value) == (
                "no local Kafka '2.4': the ones that run here are 4.3.1, 3.9.1, 2.4.1"
            )

    def test_the_folder_of_the_environment_variable_is_used_unchanged(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "kafka_2.13-4.3.1.jar").write_text("whatever its owner put there")
        # The JVMs have other working directories: a relative name would find nothing there.
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KAFKAGROUP_KAFKA_JARS", ".")
        assert resolve_jars(VERSION, "java") == tmp_path

    def test_a_folder_without_kafka_is_an_error_that_names_the_variable(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "kafka_2.13-4.2.0.jar").touch()
        monkeypatch.setenv("KAFKAGROUP_KAFKA_JARS", str(tmp_path))
        with pytest.raises(LocalKafkaUnavailable) as caught:
            resolve_jars(VERSION, "java")
        assert str(caught.value) == (
            f"KAFKAGROUP_KAFKA_JARS is {tmp_path}, which holds no kafka_2.*-4.3.1.jar"
        )

    def test_a_filled_cache_needs_no_command(
        self, jars: Path, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        cache = _link(jars, _cache(tmp_path))
        assert resolve_jars(VERSION, "java") == cache

    def test_maven_fills_the_cache(
        self, jars: Path, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        commands("mvn", f"grep -q '<version>4.3.1</version>' pom.xml && cp -r '{jars}' jars")
        assert resolve_jars(VERSION, "java") == _cache(tmp_path)
        verify_jars(_cache(tmp_path), VERSION)
        assert _left_in_cache(tmp_path) == [f"kafka-{VERSION}"]

    def test_ivy_fills_the_cache_where_maven_cannot(
        self, jars: Path, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        commands("mvn", "exit 1")
        _add_pyspark(tmp_path)
        java = commands("java", f"grep -q 'rev=\"4.3.1\"' ivy.xml && cp -r '{jars}' jars")
        assert resolve_jars(VERSION, str(java)) == _cache(tmp_path)
        assert _left_in_cache(tmp_path) == [f"kafka-{VERSION}"]

    def test_two_concurrent_downloads_end_with_one_complete_folder(
        self, jars: Path, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        both = "touch ../$$.here; while [ $(ls .. | grep -c here) -lt 2 ]; do sleep 0.01; done"
        commands("mvn", f"{both}; cp -r '{jars}' jars")
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(resolve_jars, VERSION, "java") for _ in range(2)]
            assert [one.result() for one in found] == [_cache(tmp_path)] * 2
        verify_jars(_cache(tmp_path), VERSION)
        assert sorted(_left_in_cache(tmp_path))[2:] == [f"kafka-{VERSION}"]

    def test_without_a_download_tool_each_is_named_with_the_reason(
        self, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        with pytest.raises(LocalKafkaUnavailable) as caught:
            resolve_jars(VERSION, "java")
        assert str(caught.value) == (
            f"Kafka 4.3.1 is not in {_cache(tmp_path)}, and cannot be fetched: no mvn command is "
            "on PATH; PySpark, whose Ivy jar would do, is not installed. KAFKAGROUP_KAFKA_JARS may "
            "name a folder with its jars"
        )

    def test_a_failed_download_shows_the_tools_output(
        self, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        commands("mvn", "echo 'the network is down'; exit 3")
        with pytest.raises(LocalKafkaUnavailable, match=r"mvn failed \(3\): the network is down"):
            resolve_jars(VERSION, "java")

    def test_downloads_have_a_timeout(self, commands: Callable[[str, str], Path]) -> None:
        commands("mvn", "exec sleep 60")
        started = time.monotonic()
        with pytest.raises(LocalKafkaUnavailable, match="mvn was not done in the time left"):
            resolve_jars(VERSION, "java", timeout=0.2)
        assert time.monotonic() - started < 30

    def test_fetched_jars_that_differ_never_reach_the_cache(
        self, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        commands("mvn", "mkdir jars; echo evil > jars/kafka_2.13-4.3.1.jar")
        with pytest.raises(
            LocalKafkaUnavailable, match=r"kafka_2\.13-4\.3\.1\.jar has another checksum"
        ):
            resolve_jars(VERSION, "java")
        assert _left_in_cache(tmp_path) == []

    def test_a_damaged_cache_is_reported_with_its_jars_and_the_remedy(
        self, jars: Path, commands: Callable[[str, str], Path], tmp_path: Path
    ) -> None:
        cache = _link(jars, _cache(tmp_path))
        (cache / "re2j-1.8.jar").unlink()
        (cache / "snakeyaml-2.5.jar").unlink()
        (cache / "snakeyaml-2.5.jar").write_text("other bytes")
        (cache / "stranger.jar").touch()
        with pytest.raises(LocalKafkaUnavailable) as caught:
            resolve_jars(VERSION, "java")
        assert str(caught.value) == (
            "the jars are not those of Kafka 4.3.1: re2j-1.8.jar is missing, snakeyaml-2.5.jar has "
            f"another checksum, stranger.jar does not belong; delete {cache} to have them fetched "
            "again"
        )


class TestReleases:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_the_checksums_match_the_requested_artifacts(self, version: str) -> None:
        """Of two versions of slf4j's API, Maven takes the nearest and Ivy the highest: there must
        be only one, or the download of one tool is rejected."""
        listed = Path(_jars.__file__).with_name(f"kafka-{version}.sha256").read_text("ascii")
        names = {line.split()[1] for line in listed.splitlines()}
        asked = find_release(version).artefacts
        assert [group for group, _, _ in asked] == ["org.apache.kafka", "org.slf4j"]
        assert {f"{artefact}-{number}.jar" for _, artefact, number in asked} <= names
        logger = asked[1][2]
        assert [name for name in names if name.startswith("slf4j-api-")] == [
            f"slf4j-api-{logger}.jar"
        ]

    def test_the_configuration_of_a_node_with_zookeeper(self) -> None:
        release = find_release("2.4.1")
        cluster = {1: {"CLIENT": 11, "INTERNAL": 12}, 2: {"CLIENT": 21, "INTERNAL": 22}}
        assert release.listeners == ("CLIENT", "INTERNAL")
        assert release.format_command("id") == ()
        assert release.server_properties(2, cluster, 99) == {
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "listeners": "CLIENT://127.0.0.1:21,INTERNAL://127.0.0.1:22",
            "log.dirs": "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.ms": "-1",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "3",
            "offsets.topic.replication.factor": "2",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.cleaner.backoff.ms": "1000",
            "transaction.state.log.num.partitions": "3",
            "transaction.state.log.replication.factor": "2",
            "transaction.state.log.min.isr": "1",
            "broker.id": "2",
            "zookeeper.connect": "127.0.0.1:99",
            "zookeeper.session.timeout.ms": "6000",
        }

    def test_the_configuration_of_a_node_of_a_quorum(self) -> None:
        release = find_release("3.9.1")
        cluster = {
            node: {"CLIENT": 10 * node, "INTERNAL": 10 * node + 1, "CONTROLLER": 10 * node + 2}
            for node in (1, 2, 3)
        }
        assert release.listeners == tuple(cluster[1])
        assert release.format_command("id") == (
            "kafka.tools.StorageTool",
            "format",
            "--config",
            "server.properties",
            "--cluster-id",
            "id",
        )
        assert release.server_properties(2, cluster, None) == {
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": (
                "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "listeners": "CLIENT://127.0.0.1:20,INTERNAL://127.0.0.1:21,CONTROLLER://127.0.0.1:22",
            "log.dirs": "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.ms": "-1",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "3",
            "offsets.topic.replication.factor": "3",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.cleaner.backoff.ms": "1000",
            "transaction.state.log.num.partitions": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "process.roles": "broker,controller",
            "node.id": "2",
            "controller.quorum.voters": "1@127.0.0.1:12,2@127.0.0.1:22,3@127.0.0.1:32",
            "controller.listener.names": "CONTROLLER",
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "1000",
        }


@pytest.mark.parametrize("release", [VERSION, pytest.param("3.9.1", marks=pytest.mark.brokers)])
def test_one_node_serves_several_listeners(release: str) -> None:
    """One node accepts the same user by TLS with a password, by a password only, and by neither."""
    _find_jars(release)
    users = {"ann": 'a "secret"; of \\ann\'s=', "bob": "another"}
    listeners = {
        "SECURE": Listener(certificate=authority().issue().pem, mechanisms=["PLAIN"]),
        "BARE": Listener(mechanisms=["SCRAM-SHA-256", "SCRAM-SHA-512"]),
    }
    options = {"sasl.username": "ann", "sasl.password": users["ann"]}
    with LocalKafka(release, listeners=listeners, users=users) as kafka:
        addresses = [kafka.address(1)]
        for listener, protocol, mechanism in (
            ("SECURE", "SASL_SSL", "PLAIN"),
            ("BARE", "SASL_PLAINTEXT", "SCRAM-SHA-256"),
            ("BARE", "SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ):
            address = kafka.bootstrap_servers_of(listener)
            addresses.append(address)
            admin = AdminClient(
                {
                    "bootstrap.servers": address,
                    "security.protocol": protocol,
                    "sasl.mechanism": mechanism,
                    "ssl.ca.pem": authority().pem,
                    **options,
                }
            )
            (broker,) = admin.list_topics(timeout=10).brokers.values()
            # A listener advertises its own address.
            assert f"{broker.host}:{broker.port}" == address == kafka.address(1, listener)
        assert len(set(addresses)) == 3
        with pytest.raises(ConfigurationError, match="CLIENT, INTERNAL, CONTROLLER, SECURE, BARE"):
            kafka.address(1, "SSL")
        assert users["ann"] not in f"{kafka}{kafka.output(1)}"


class TestListeners:
    KEY = "-----BEGIN PRIVATE KEY-----\nkey\n-----END PRIVATE KEY-----"
    CHAIN = (
        "-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"
        "-----BEGIN CERTIFICATE-----\nits CA's\n-----END CERTIFICATE-----"
    )

    def test_listener_settings_are_added_to_the_nodes(self) -> None:
        release = find_release("4.3.1")
        ports = {"CLIENT": 1, "INTERNAL": 2, "CONTROLLER": 3}
        bare = release.server_properties(1, {1: ports}, None)
        listener = Listener(
            certificate=f"a comment\n{self.CHAIN}\n{self.KEY}\n",
            client_ca=self.CHAIN,
            mechanisms=["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"],
            settings={"connections.max.reauth.ms": "1500", "ssl.client.auth": "requested"},
        )
        secured = release.server_properties(
            1, {1: ports | {"S_1": 4}}, None, {"S_1": listener}, {"ann": 'a "\\', "bob": "b"}
        )
        modules = "org.apache.kafka.common.security"
        assert {key: value for key, value in secured.items() if bare.get(key) != value} == {
            "listener.security.protocol.map": (
                "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,S_1:SASL_SSL"
            ),
            "listeners": (
                "CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:2,CONTROLLER://127.0.0.1:3,"
                "S_1://127.0.0.1:4"
            ),
            "listener.name.s_1.ssl.keystore.type": "PEM",
            "listener.name.s_1.ssl.keystore.key": self.KEY,
            "listener.name.s_1.ssl.keystore.certificate.chain": self.CHAIN,
            "listener.name.s_1.ssl.client.auth": "requested",
            "listener.name.s_1.ssl.truststore.type": "PEM",
            "listener.name.s_1.ssl.truststore.certificates": self.CHAIN,
            "listener.name.s_1.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "listener.name.s_1.plain.sasl.jaas.config": (
                f'{modules}.plain.PlainLoginModule required user_ann="a \\"\\\\" user_bob="b";'
            ),
            "listener.name.s_1.scram-sha-256.sasl.jaas.config": (
                f"{modules}.scram.ScramLoginModule required;"
            ),
            "listener.name.s_1.oauthbearer.sasl.jaas.config": (
                f"{modules}.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "listener.name.s_1.connections.max.reauth.ms": "1500",
        }
        assert bare.keys() <= secured.keys()

    @pytest.mark.parametrize(
        ("listener", "protocol"),
        [
            (Listener(), "PLAINTEXT"),
            (Listener(certificate=KEY + CHAIN), "SSL"),
            (Listener(mechanisms=["PLAIN"]), "SASL_PLAINTEXT"),
            (Listener(certificate=KEY + CHAIN, mechanisms=["PLAIN"]), "SASL_SSL"),
        ],
    )
    def test_listeners_use_the_given_mechanisms(self, listener: Listener, protocol: str) -> None:
        assert listener.protocol == protocol

    @pytest.mark.parametrize("users", [{"a,b": "c"}, {"a": "b,c"}, {"a": '"b"'}])
    def test_scram_users_that_the_tool_would_split_are_refused(self, users: dict[str, str]) -> None:
        with pytest.raises(ConfigurationError, match="a comma, or a double quote at an end"):
            find_release("4.3.1").format_command("id", users)

    def test_scram_users_exist_at_the_start(self) -> None:
        bare = find_release("4.3.1").format_command("id")
        assert find_release("4.3.1").format_command("id", {"ann": "a"}) == (
            *bare,
            *("--add-scram", "SCRAM-SHA-256=[name=ann,password=a]"),
            *("--add-scram", "SCRAM-SHA-512=[name=ann,password=a]"),
        )

    @pytest.mark.parametrize(
        "certificate",
        [KEY, CHAIN, KEY.replace("PRIVATE", "ENCRYPTED PRIVATE") + CHAIN, 2 * KEY + CHAIN],
        ids=["no certificate", "no key", "encrypted", "two keys"],
    )
    def test_a_malformed_certificate_is_refused(self, certificate: str) -> None:
        listener = Listener(certificate=certificate)
        with pytest.raises(ConfigurationError, match="one private key") as raised:
            listener.properties({})
        assert certificate not in f"{listener}{raised.value}"

    def test_an_unknown_mechanism_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"\['GSSAPI'\]"):
            Listener(mechanisms=["PLAIN", "GSSAPI"])

    def test_without_tls_there_are_no_client_certificates(self) -> None:
        with pytest.raises(ConfigurationError, match="client_ca needs certificate"):
            Listener(client_ca=self.CHAIN, mechanisms=["PLAIN"])

    @pytest.mark.parametrize("name", ["CLIENT", "CONTROLLER", "lower", "A-B", ""])
    def test_invalid_listener_names_are_refused(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=f"listener {name!r}"):
            find_release("4.3.1").check_listeners({name: Listener()}, 1)

    def test_a_listener_may_advertise_a_proxy(self) -> None:
        release = find_release("4.3.1")
        ports = {"CLIENT": 1, "INTERNAL": 2, "CONTROLLER": 3, "PROXIED": 4}
        cluster = {1: ports, 2: ports}
        bare = release.server_properties(2, cluster, None, {"PROXIED": Listener()})
        proxied = release.server_properties(
            2, cluster, None, {"PROXIED": Listener(advertised_ports=[71, 72])}
        )
        assert proxied == bare | {
            "advertised.listeners": (
                "CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:2,PROXIED://127.0.0.1:72"
            )
        }

    def test_a_proxy_needs_a_port_for_each_node(self) -> None:
        proxied = {"PROXIED": Listener(advertised_ports=[71, 72])}
        find_release("4.3.1").check_listeners(proxied, 2)
        with pytest.raises(ConfigurationError, match="'PROXIED': 2 advertised_ports for 3 nodes"):
            find_release("4.3.1").check_listeners(proxied, 3)

    def test_old_releases_have_no_extra_listeners(self) -> None:
        kafka = LocalKafka("2.4.1", listeners={"SECURE": Listener()})
        with pytest.raises(ConfigurationError, match=r"2\.4\.1"):
            kafka.start()


class TestMisuse:
    def test_calls_before_the_start(self) -> None:
        kafka = LocalKafka()
        kafka.stop()
        for call in (
            lambda: kafka.bootstrap_servers,
            lambda: kafka.kill(1),
            lambda: kafka.start_node(1),
        ):
            with pytest.raises(IllegalStateError, match="not started"):
                call()

    def test_a_cluster_without_nodes_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="'nodes' must be >= 1"):
            LocalKafka(nodes=0)

    def test_a_directory_in_use_is_left_alone(self, jars: Path, tmp_path: Path) -> None:
        (tmp_path / "precious").touch()
        with pytest.raises(ConfigurationError, match="is not empty"):
            LocalKafka(directory=tmp_path).start()
        assert [path.name for path in tmp_path.iterdir()] == ["precious"]

    def test_properties_are_quoted_for_java(self) -> None:
        assert _escape("a=b\\c é\n😀") == "a=b\\u005cc\\u0020\\u00e9\\u000a\\ud83d\\ude00"


def _ask_api_versions(address: str, timeout: float = 5.0) -> int:
    """Request ApiVersions (version 0); return its error code. Raises: OSError without a
    response."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout) as connection:
        connection.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        response = connection.makefile("rb").read(10)
    if len(response) < 10:
        raise ConnectionResetError("closed")
    _, correlation_id, error = struct.unpack(">iih", response)
    assert correlation_id == 7
    return int(error)


class TestOneNode:
    def test_a_node_answers_and_leaves_nothing_behind(
        self, version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with LocalKafka(version) as kafka:
            address = kafka.bootstrap_servers
            assert kafka.address(1) == address
            assert _ask_api_versions(address) == 0
            with pytest.raises(IllegalStateError, match="started already"):
                kafka.start()
            with pytest.raises(IllegalStateError, match="node 1 is running"):
                kafka.start_node(1)
            with pytest.raises(ConfigurationError, match="no node 2: they are 1 to 1"):
                kafka.kill(2)
        with pytest.raises(ConnectionRefusedError):
            _ask_api_versions(address)
        assert list(tmp_path.iterdir()) == []

    def test_a_jvm_that_exits_at_the_start_shows_its_output(
        self, version: str, tmp_path: Path
    ) -> None:
        config = {"authorizer.class.name": "no.such.Class"}
        kafka = LocalKafka(version, config=config, directory=tmp_path)
        with pytest.raises(LocalKafkaError, match=r"(?s)node 1 ended .*: no\.such\.Class"):
            kafka.start()
        with pytest.raises(IllegalStateError, match="not started"):
            kafka.output(1)
        assert "no.such.Class" in (tmp_path / "node-1" / "output.log").read_text()

    @pytest.mark.brokers
    def test_a_zookeeper_that_exits_shows_its_output(self, tmp_path: Path) -> None:
        _find_jars("2.4.1")
        with LocalKafka("2.4.1", directory=tmp_path) as kafka:
            kafka.kill(1)
            assert kafka._zookeeper is not None
            kafka._zookeeper.end()
            (tmp_path / "zookeeper" / "zoo.cfg").write_text("tickTime=often\n")
            kafka._zookeeper.spawn(kafka._java)
            with pytest.raises(LocalKafkaError, match=r'(?s)ZooKeeper ended .* string: "often"'):
                kafka.start_node(1)

    @pytest.mark.brokers
    def test_a_restarted_node_waits_for_its_old_session_to_expire(self) -> None:
        """A broker of 2.4 that finds its own name registered in ZooKeeper exits at once."""
        _find_jars("2.4.1")
        with LocalKafka("2.4.1", config={"zookeeper.session.timeout.ms": "2000"}) as kafka:
            kafka.kill(1)
            kafka.start_timeout = 0.3
            with pytest.raises(LocalKafkaError, match=r"not ready for node 1 within 0\.3 s"):
                kafka.start_node(1)
            kafka.start_timeout = 60.0
            kafka.start_node(1)
            assert _ask_api_versions(kafka.address(1)) == 0

    def test_an_invalid_setting_is_an_error(self, jars: Path) -> None:
        with pytest.raises(LocalKafkaError, match=r"(?s)could not be formatted \(1\).*many"):
            LocalKafka(config={"num.io.threads": "many"}).start()

    def test_a_start_has_a_timeout(
        self, jars: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.raises(LocalKafkaError, match=r"node 1 .* within 0\.1 s"):
            LocalKafka(start_timeout=0.1).start()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.long
class TestThreeNodes:
    def test_nodes_can_be_killed_frozen_and_restarted(self, version: str) -> None:
        # Sooner than by default, as a killed node may only come back when its session is over.
        config = {
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "300",
            "zookeeper.session.timeout.ms": "2000",
        }
        with LocalKafka(version, nodes=3, config=config) as kafka:
            addresses = kafka.bootstrap_servers.split(",")
            assert addresses == [kafka.address(node) for node in (1, 2, 3)]

            kafka.kill(1)
            with pytest.raises(IllegalStateError, match="node 1 is not running"):
                kafka.kill(1)
            with pytest.raises(ConnectionRefusedError):
                _ask_api_versions(addresses[0])
            assert [_ask_api_versions(address) for address in addresses[1:]] == [0, 0]
            kafka.start_node(1)
            assert [_ask_api_versions(address) for address in addresses] == [0, 0, 0]

            kafka.pause(2)
            with pytest.raises(TimeoutError):
                _ask_api_versions(addresses[1], timeout=0.3)
            kafka.resume(2)
            assert _ask_api_versions(addresses[1]) == 0

            kafka.restart(3)
            assert kafka.bootstrap_servers.split(",") == addresses
            assert [_ask_api_versions(address) for address in addresses] == [0, 0, 0]


OWNER = """
import sys
from kafkagroup.testing.local import LocalKafka

kafka = LocalKafka(sys.argv[1])
kafka.start()
print(kafka.bootstrap_servers, flush=True)
sys.stdin.read()
"""


def _configured_ports(folder: Path) -> list[int]:
    """Return the ports in the configuration files of a cluster in `folder`."""
    ports = []
    for file in (*folder.glob("*/*/server.properties"), *folder.glob("*/*/zoo.cfg")):
        ports += re.findall(r"(?:://127\.0\.0\.1:|clientPort=)(\d+)", file.read_text("ascii"))
    return list(map(int, ports))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("killed", [False, True])
def test_no_jvm_outlives_its_owner(version: str, tmp_path: Path, killed: bool) -> None:
    """Neither an owner that does not stop its Kafka nor a killed owner leaves a JVM."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, version],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        assert _ask_api_versions(address) == 0
        ports = _configured_ports(tmp_path)
        # The broker's, and ZooKeeper's where there is one.
        release = find_release(version)
        assert len(ports) == len(release.listeners) + release.uses_zookeeper
        assert all(map(_listens, ports))
        if killed:
            owner.send_signal(signal.SIGKILL)
        else:
            assert owner.stdin is not None
            owner.stdin.close()
    deadline = time.monotonic() + 10
    while any(map(_listens, ports)):
        assert time.monotonic() < deadline, "the JVM outlived its owner by 10 s"
    # Who is killed cannot clean up: its folder stays.
    assert bool(list(tmp_path.iterdir())) == killed

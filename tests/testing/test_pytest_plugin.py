"""The `kafka` fixture in a user's test run: each test here runs its own pytest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from docker_daemon import DockerUnavailable, docker_daemon

from kafkagroup.testing._jars import LocalKafkaUnavailable, find_java, resolve_jars

pytest_plugins = ["pytester"]

ASK = """
import socket
import struct

def test_ask(kafka):
    host, _, port = kafka.split(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        answer = connection.makefile("rb").read(10)
    assert struct.unpack(">iih", answer)[1:] == (7, 0)
"""
CONSUME = """
import asyncio

from kafkagroup import Admin, Consumer, Producer
from kafkagroup.admin import NewTopic

async def consume(servers):
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topics([NewTopic(name="orders", partitions=2)])
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_many("orders", [b"one", b"two"])
    async with Consumer("orders", bootstrap_servers=servers, group_id="g") as consumer:
        values = {(await consumer.getone()).value for _ in range(2)}
        await consumer.commit()
        return values, sum(found.offset for found in (await consumer.committed()).values())

def test_consume(kafka):
    assert asyncio.run(consume(kafka)) == ({b"one", b"two"}, 2)
"""
IMAGE = "kafkagroup-test:7.0.0"
MACHINE = dict(os.environ)
"""The environment before `bare` takes things away."""


@pytest.fixture(scope="module")
def jars() -> Path:
    """Return Kafka's jars; skip the test, with the reason, without them."""
    try:
        return resolve_jars("4.3.1", find_java())
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove every source of brokers except the embedded one."""
    monkeypatch.delenv("KAFKAGROUP_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("KAFKAGROUP_KAFKA", raising=False)
    monkeypatch.setenv("KAFKAGROUP_KAFKA_IMAGE", IMAGE)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")


def give_back(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name in MACHINE:
        monkeypatch.setenv(name, MACHINE[name])
    else:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a working Docker: the machine's, or a daemon of this module."""
    with ExitStack() as running:
        try:
            yield running.enter_context(docker_daemon(tmp_path_factory.mktemp("docker")))
        except DockerUnavailable as error:
            pytest.skip(f"NOT TESTED, containers: {error}")


@pytest.fixture(scope="module")
def image(jars: Path, docker_host: str) -> str:
    """Return an image of Kafka that Docker can run."""
    pytest.importorskip("testcontainers", reason="testcontainers is not installed")
    environment = {**MACHINE, "KAFKAGROUP_KAFKA_JARS": str(jars), "DOCKER_HOST": docker_host}
    build = [sys.executable, str(Path(__file__).with_name("build_image.py")), IMAGE]
    trial = ["docker", "run", "--rm", "--publish", "127.0.0.1::9", IMAGE, "sh", "-c", ":"]
    for command in (build, trial):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120, env=environment)
        except subprocess.SubprocessError as error:
            why = getattr(error, "stderr", None) or b""
            pytest.skip(f"NOT TESTED, containers: {error}: {why.decode(errors='replace')[-300:]}")
    return IMAGE


@pytest.fixture
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def run(
    pytester: pytest.Pytester, source: str = ASK, *options: str
) -> tuple[dict[str, int], list[str]]:
    """Return the outcomes of a run with warnings as errors, and the lines of its Kafka section."""
    pytester.makepyfile(source)
    options = ("-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider", *options)
    result = pytester.runpytest_subprocess(*options, timeout=120)
    lines = iter(result.outlines)
    if not any(line.strip("= ") == "kafka" for line in lines):
        return result.parseoutcomes(), []
    section = []
    for line in lines:
        if line.startswith("="):
            break
        if line:
            section.append(line)
    return result.parseoutcomes(), section


def test_a_run_without_the_fixture_starts_and_prints_nothing(pytester: pytest.Pytester) -> None:
    assert run(pytester, "def test_other(): pass") == ({"passed": 1}, [])


def test_the_plugin_imports_pytest_and_the_standard_library_only() -> None:
    script = """
import pytest, sys
before = set(sys.modules)
import kafkagroup.testing.pytest_plugin
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("kafkagroup\n", "")


def test_the_address_of_the_environment_takes_precedence(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    servers = f"127.0.0.1:1, {listener}"
    monkeypatch.setenv("KAFKAGROUP_BOOTSTRAP_SERVERS", servers)
    source = f"def test_address(kafka): assert kafka == {servers!r}"
    assert run(pytester, source) == ({"passed": 1}, [f"taken: address, at {servers}"])


def test_one_broker_serves_the_whole_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    monkeypatch.setenv("KAFKAGROUP_BOOTSTRAP_SERVERS", listener)
    source = "def test_one(kafka): pass\ndef test_two(kafka): pass"
    assert run(pytester, source) == ({"passed": 2}, [f"taken: address, at {listener}"])


EMBEDDED = "taken: embedded, at 127.0.0.1:"


def test_the_default_broker_is_the_embedded_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a test that needed any broker took 35 s, to start a JVM or look for Docker."""
    give_back(monkeypatch, "JAVA_HOME")
    outcomes, section = run(pytester)
    assert (outcomes, len(section)) == ({"passed": 1}, 1)
    assert section[0].startswith(EMBEDDED)
    assert section[0].endswith("; KAFKAGROUP_KAFKA=real uses real Kafka")


def test_an_address_that_does_not_answer_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test run with a given broker must not use another one."""
    monkeypatch.setenv("KAFKAGROUP_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    reason = (
        "not address: KAFKAGROUP_BOOTSTRAP_SERVERS does not answer (127.0.0.1:1: [Errno 111]"
        " Connection refused)"
    )
    assert run(pytester) == ({"errors": 1}, [reason])


@pytest.mark.parametrize("choice", ["the environment", "a marker"])
def test_real_kafka_never_falls_back_to_the_embedded_broker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    source = "import pytest\n@pytest.mark.real_kafka\ndef test_one(kafka): pass"
    if choice == "the environment":
        monkeypatch.setenv("KAFKAGROUP_KAFKA", "real")
        source = ASK
    outcomes, section = run(pytester, source, "--strict-markers")
    assert outcomes == {"errors": 1}
    assert [line.split()[:2] for line in section] == [
        ["not", "address:"],
        ["not", "container:"],
        ["not", "local:"],
    ]


@pytest.mark.long
def test_any_falls_back_to_the_embedded_broker_with_the_reasons(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKAGROUP_KAFKA", "any")
    monkeypatch.setenv("KAFKAGROUP_BOOTSTRAP_SERVERS", "127.0.0.1:1,nonsense")
    outcomes, section = run(pytester)
    assert outcomes == {"passed": 1}
    address, container, local, taken = section
    assert address == (
        "not address: KAFKAGROUP_BOOTSTRAP_SERVERS does not answer (127.0.0.1:1: [Errno 111] "
        "Connection refused; nonsense: invalid literal for int() with base 10: 'nonsense')"
    )
    assert container.startswith("not container: Docker does not answer (")
    assert local == "not local: JAVA_HOME is /nowhere, which holds no bin/java"
    assert taken.startswith(EMBEDDED)


@pytest.mark.long
def test_the_workers_of_xdist_have_a_broker_each_and_report_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary of a worker is never printed: the run looked as if it had used no broker."""
    monkeypatch.setenv("KAFKAGROUP_KAFKA", "any")
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    source = f"{ASK}\ndef test_once_more(kafka): test_ask(kafka)"
    outcomes, section = run(pytester, source, "-n", "2", "--dist", "load")
    assert outcomes == {"passed": 2}
    assert [line.partition(":")[0] for line in section].count("not local") == 1
    taken = [line for line in section if line.startswith(EMBEDDED)]
    assert len(set(taken)) == 2


@pytest.fixture
def mute() -> Iterator[str]:
    """Provide a peer whose kernel accepts connections, and that never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def unreachable() -> Iterator[str]:
    """Provide a peer that neither accepts nor refuses connections: its queue is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.long
def test_sources_that_hang_time_out(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, unreachable: str, mute: str
) -> None:
    """A hanging Docker must not block tests that do not need it."""
    monkeypatch.setenv("KAFKAGROUP_KAFKA", "any")
    monkeypatch.setenv("KAFKAGROUP_BOOTSTRAP_SERVERS", unreachable)
    monkeypatch.setenv("DOCKER_HOST", f"tcp://{mute}")
    pytester.makeconftest(
        "from kafkagroup.testing import pytest_plugin\npytest_plugin._START_TIMEOUT = 0.3"
    )
    outcomes, section = run(pytester)
    assert outcomes == {"passed": 1}
    address, container, local, taken = section
    assert address == (
        f"not address: KAFKAGROUP_BOOTSTRAP_SERVERS does not answer ({unreachable}: timed out)"
    )
    assert container.startswith("not container: Docker does not answer (")
    assert "(read timeout=0.3)" in container
    assert local.startswith("not local: ")
    assert taken.startswith(EMBEDDED)


@pytest.mark.parametrize(
    ("forced", "reason"),
    [
        ("address", "KAFKAGROUP_BOOTSTRAP_SERVERS is not set"),
        ("local", "JAVA_HOME is /nowhere, which holds no bin/java"),
    ],
)
def test_a_forced_source_that_fails_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, forced: str, reason: str
) -> None:
    monkeypatch.setenv("KAFKAGROUP_KAFKA", forced)
    assert run(pytester) == ({"errors": 1}, [f"not {forced}: {reason}"])


def test_an_unknown_source_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKAGROUP_KAFKA", "redpanda")
    pytester.makepyfile(ASK)
    result = pytester.runpytest_subprocess("-p", "no:asyncio")
    result.assert_outcomes(errors=1)
    expected = "one of address, container, local, embedded, real, any"
    result.stdout.fnmatch_lines([f"KAFKAGROUP_KAFKA is 'redpanda'; expected {expected}"])


@pytest.mark.long
def test_a_run_on_local_kafka(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, jars: Path
) -> None:
    give_back(monkeypatch, "JAVA_HOME")
    # The run has another home, so another cache.
    monkeypatch.setenv("KAFKAGROUP_KAFKA_JARS", str(jars))
    monkeypatch.setenv("KAFKAGROUP_KAFKA", "local")
    outcomes, section = run(pytester)
    assert (outcomes, len(section)) == ({"passed": 1}, 1)
    assert section[0].startswith("taken: local, at 127.0.0.1:")


@pytest.mark.long
class TestContainer:
    @pytest.fixture(autouse=True)
    def docker(self, monkeypatch: pytest.MonkeyPatch, image: str, docker_host: str) -> None:
        monkeypatch.setenv("DOCKER_HOST", docker_host)
        monkeypatch.setenv("KAFKAGROUP_KAFKA_IMAGE", image)
        monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
        monkeypatch.setenv("KAFKAGROUP_KAFKA", "container")

    def test_a_run_on_a_container(self, pytester: pytest.Pytester) -> None:
        outcomes, section = run(pytester)
        assert (outcomes, len(section)) == ({"passed": 1}, 1)
        assert section[0].startswith("taken: container, at ")

    def test_a_consumer_reads_records_produced_in_a_container(
        self, pytester: pytest.Pytester
    ) -> None:
        assert run(pytester, CONSUME)[0] == {"passed": 1}

    def test_an_absent_image_is_not_pulled(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KAFKAGROUP_KAFKA_IMAGE", "kafkagroup-absent:7.0.0")
        reason = (
            "not container: Docker has no image kafkagroup-absent:7.0.0, and none is pulled; "
            "KAFKAGROUP_KAFKA_IMAGE names another"
        )
        assert run(pytester) == ({"errors": 1}, [reason])

    def test_the_image_of_the_reaper_is_not_pulled(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "false")
        monkeypatch.setenv("RYUK_CONTAINER_IMAGE", "kafkagroup-absent:reaper")
        reason = (
            "not container: Docker has no image kafkagroup-absent:reaper, and none is pulled; "
            "TESTCONTAINERS_RYUK_DISABLED=true does without"
        )
        assert run(pytester) == ({"errors": 1}, [reason])

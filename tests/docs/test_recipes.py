"""The programs of the recipes, run as readers do: as files, in processes of their own.

A block with a title is the file of that name.
"""

from __future__ import annotations

import base64
import http.server
import io
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pytest
import yaml
from certificates import authority
from doc_blocks import ROOT, blocks
from example_process import end, output_of, started
from http_servers import serving

from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire import NewRecord, encode_batch
from kafkagroup.wire.embedded_protocol import decode_assignment
from kafkagroup.wire.messages.group import JoinGroupRequest

DOCS = ROOT / "docs"


def program(page: str, containing: str) -> str:
    """Return the one Python block of a page with this text."""
    (text,) = (
        block.text
        for block in blocks(DOCS / page)
        if block.language == "python" and not block.hidden and containing in block.text
    )
    return text


@contextmanager
def running(
    program: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run a program with nothing but this in its environment; kill it at the end."""
    file = folder / "program.py"
    file.write_text(program, "utf-8")
    own = {"PYTHONPATH": str(ROOT), **environment}
    with started("-X", "dev", "-u", file, environment=own) as process:
        yield process


@pytest.fixture
def trusted(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the system trusts the authority of the tests."""
    file = tmp_path / "system.pem"
    file.write_text(authority().pem, "ascii")
    return {"SSL_CERT_FILE": str(file)}


def consumes(
    kafka: EmbeddedKafka, source: str, folder: Path, environment: Mapping[str, str]
) -> None:
    """Assert that a program prints what is in `orders`, and that Ctrl-C commits it."""
    kafka.produce("orders", ["one", "two"])
    with running(source, folder, environment) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        _, errors = end(process, signal.SIGINT)
    assert lines == ["0 0 b'one'\n", "0 1 b'two'\n"], errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert kafka.group_state("billing") == "Empty"
    assert kafka.committed("billing", "orders")[0] >= 1


def test_the_retry_page_shows_the_example() -> None:
    example = ROOT / "examples" / "retry_dead_letter.py"
    assert program("retry.md", "dead letter") == example.read_text("utf-8")


CONNECTION_STRING = (
    "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=read;SharedAccessKey=c2VjcmV0="
)


def test_event_hubs(tmp_path: Path, trusted: dict[str, str]) -> None:
    tls = authority().server_context(authority().issue(), tmp_path)
    users = {"$ConnectionString": CONNECTION_STRING}
    with EmbeddedKafka({"orders": 1}, tls=tls, users=users, mechanisms=["PLAIN"]) as kafka:
        host, _, port = kafka.bootstrap_servers.partition(":")
        # The endpoint's port is always 9093; here the system chose it.
        source = program("cloud.md", "$ConnectionString").replace(":9093", f":{port}")
        names = {"EVENT_HUBS_NAMESPACE": host, "EVENT_HUB": "orders", "CONSUMER_GROUP": "billing"}
        secret = {"EVENT_HUBS_CONNECTION_STRING": CONNECTION_STRING}
        consumes(kafka, source, tmp_path, {**trusted, **names, **secret})


def test_msk_with_iam(tmp_path: Path, trusted: dict[str, str]) -> None:
    """The token is one of Amazon's library: a URL that it has signed, for the region."""
    seen = []

    def user_of(token: str) -> str | None:
        url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        seen.append(url)
        key = re.search(r"X-Amz-Credential=([A-Z0-9]+)%2F\d+%2Feu-central-1%2Fkafka-cluster", url)
        return key[1] if key and "&X-Amz-Signature=" in url else None

    tls = authority().server_context(authority().issue(), tmp_path)
    with EmbeddedKafka({"orders": 1}, tls=tls, token_user=user_of) as kafka:
        environment = {
            "MSK_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        consumes(
            kafka, program("cloud.md", "MSKAuthTokenProvider"), tmp_path, {**trusted, **environment}
        )
    assert seen[0].startswith("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster")


@pytest.mark.long  # as Event Hubs, with other names
def test_confluent_cloud(tmp_path: Path, trusted: dict[str, str]) -> None:
    tls = authority().server_context(authority().issue(), tmp_path)
    users = {"ABCDEFGH12345678": "a/secret+of=64"}
    with EmbeddedKafka({"orders": 1}, tls=tls, users=users, mechanisms=["PLAIN"]) as kafka:
        environment = {
            "CONFLUENT_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "CONFLUENT_API_KEY": "ABCDEFGH12345678",
            "CONFLUENT_API_SECRET": "a/secret+of=64",
        }
        consumes(
            kafka, program("cloud.md", "CONFLUENT_API_KEY"), tmp_path, {**trusted, **environment}
        )


# ---------------------------------------------------------------- stopping


def test_a_signal_finishes_the_record_in_flight(tmp_path: Path) -> None:
    with EmbeddedKafka({"orders": 1}) as kafka:
        kafka.produce("orders", ["one"])
        source = program("shutdown.md", "stop_on_signal")
        source = source.replace("localhost:9092", kafka.bootstrap_servers)
        with running(source, tmp_path, {}) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "processed b'one'\n"
            assert end(process, signal.SIGTERM) == ("", "")
        assert process.returncode == 0
        assert kafka.committed("billing", "orders") == {0: 1}
        assert kafka.group_state("billing") == "Empty"


@pytest.mark.long
def test_a_second_signal_gives_the_record_in_flight_back(tmp_path: Path) -> None:
    source = program("shutdown.md", "stop_on_signal")
    source = source.replace(
        'print("processed", record.value)', 'print("begun"); await anyio.sleep(60)'
    )
    with EmbeddedKafka({"orders": 1}) as kafka:
        kafka.produce("orders", ["one"])
        source = source.replace("localhost:9092", kafka.bootstrap_servers)
        with running(source, tmp_path, {}) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            assert end(process, signal.SIGTERM) == ("", "")
        assert process.returncode == 0
        assert kafka.committed("billing", "orders") == {0: 0}
        assert kafka.group_state("billing") == "Empty"


# ---------------------------------------------------------------- Kubernetes

MANIFESTS = {
    manifest["kind"]: manifest
    for block in blocks(DOCS / "kubernetes.md")
    if block.language == "yaml"
    for manifest in yaml.safe_load_all(block.text)
}
POD = MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
WORKER = program("kubernetes.md", "async def live")


def numbers(name: str) -> float:
    found = re.search(rf"{name}=([\d_.]+)", WORKER)
    assert found
    return float(found[1])


def test_the_manifests_belong_together() -> None:
    assert set(MANIFESTS) == {"Service", "StatefulSet", "PodDisruptionBudget", "Deployment"}
    stateful = MANIFESTS["StatefulSet"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert stateful["serviceName"] == MANIFESTS["Service"]["metadata"]["name"]
    ports = {port["name"] for port in CONTAINER["ports"]}
    probes = (CONTAINER["readinessProbe"], CONTAINER["livenessProbe"])
    assert {probe["httpGet"]["port"] for probe in probes} == ports
    given = {variable["name"] for variable in CONTAINER["env"]}
    required = set(re.findall(r'environ\["(\w+)"\]', WORKER))
    optional = set(re.findall(r'environ\.get\("(\w+)"', WORKER))
    assert required <= given <= required | optional


def test_the_times_of_the_manifest_fit_those_of_the_program() -> None:
    grace = POD["terminationGracePeriodSeconds"]
    wait = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    session, close = numbers("session_timeout_ms") / 1000, numbers("close_timeout")
    starting = 30
    liveness = CONTAINER["livenessProbe"]
    assert wait + close < grace
    assert grace + starting < session
    assert 6 <= session <= 30 * 60  # what brokers allow, unless configured
    assert liveness["timeoutSeconds"] <= liveness["periodSeconds"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] < 300  # `max_poll_interval_ms`
    page = (DOCS / "kubernetes.md").read_text("utf-8")
    for name, seconds in [
        ("`close_timeout`", close),
        ("`preStop`", wait),
        ("`terminationGracePeriodSeconds`", grace),
        ("`session_timeout_ms`", session),
        ("liveness", liveness["periodSeconds"] * liveness["failureThreshold"]),
    ]:
        assert f"| {name} | {seconds:g} s |" in page


def unused_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def status(port: str, probe: str) -> int | None:
    """Return the status that the probe of the manifest gets; None without an answer."""
    path = CONTAINER[probe]["httpGet"]["path"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_worker_answers_its_probes_and_keeps_its_place_over_a_restart(tmp_path: Path) -> None:
    assert CONTAINER["command"] == ["python", "worker.py"]
    port = unused_port()
    with EmbeddedKafka({"orders": 2}) as kafka:
        environment = {
            variable["name"]: variable.get("value", "billing-0") for variable in CONTAINER["env"]
        }
        environment |= {"BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "PORT": port}
        generations = []
        for offset in range(2):
            kafka.produce("orders", ["one"], partition=1)
            with running(WORKER, tmp_path, environment) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == f"processed 1/{offset}\n"
                wait_until(lambda: status(port, "readinessProbe") == 200)
                assert status(port, "livenessProbe") == 200
                began = time.monotonic()
                assert end(process, signal.SIGTERM) == ("", "")
                assert time.monotonic() - began < numbers("close_timeout")
            assert process.returncode == 0
            assert kafka.committed("billing", "orders")[1] == offset + 1
            (member,) = kafka.describe_group("billing").members
            assert member.group_instance_id == "billing-0"
            generations.append(kafka._cluster.classic_coordinator.groups["billing"].generation)
        assert generations[0] == generations[1]  # its return was no rebalance


def test_the_hook_before_the_stop_exists() -> None:
    program, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert subprocess.run([program, str(float(seconds) / 100)], check=True).returncode == 0


@pytest.mark.long
def test_the_worker_is_not_ready_before_it_has_joined(tmp_path: Path) -> None:
    port = unused_port()
    environment = {"TOPIC": "t", "GROUP": "g", "PORT": port}
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.fail(JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        environment["BOOTSTRAP_SERVERS"] = kafka.bootstrap_servers
        with running(WORKER, tmp_path, environment) as process:
            wait_until(lambda: status(port, "livenessProbe") == 200)
            wait_until(lambda: bool(kafka.requests(JoinGroupRequest)))
            assert status(port, "readinessProbe") == 503
            assert end(process, signal.SIGTERM)[0] == ""


# ---------------------------------------------------------------- gunicorn and uvicorn

SERVERS = [
    line
    for block in blocks(DOCS / "web-servers.md")
    if block.language == "sh"
    for line in block.text.splitlines()
]


def owned_by_each(kafka: EmbeddedKafka, group: str) -> list[int]:
    """Return how many partitions each member of a stable group has; nothing of another group."""
    if kafka.group_state(group) != "Stable":
        return []
    members = kafka.describe_group(group).members
    return [len(decode_assignment(member.member_assignment)) for member in members]


@pytest.mark.long
@pytest.mark.parametrize("command", SERVERS)
def test_each_worker_of_a_web_server_is_a_member(command: str, tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(program("web-servers.md", "lifespan"), "utf-8")
    assert " 8000" in command or ":8000" in command
    words = command.replace("8000", unused_port()).split()
    with EmbeddedKafka({"orders": 4}) as kafka:
        environment = {"TOPIC": "orders", "GROUP": "billing", "HOME": str(tmp_path)}
        with subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env={
                **environment,
                "PYTHONPATH": str(ROOT),
                "BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                wait_until(lambda: owned_by_each(kafka, "billing") == [2, 2])
                kafka.produce("orders", map(str, range(40)))
                wait_until(lambda: sum(kafka.committed("billing", "orders").values()) == 40)
            finally:
                process.send_signal(signal.SIGTERM)
                output, _ = process.communicate(timeout=30)
        assert "Traceback" not in output
        assert process.returncode == 0
        assert kafka.group_state("billing") == "Empty"
    found = re.findall(r"worker (\d+): (\d/\d+)", output)
    assert sorted(place for _, place in found) == sorted(
        f"{p}/{o}" for p in range(4) for o in range(10)
    )
    assert len({worker for worker, _ in found}) == 2


# ---------------------------------------------------------------- Avro

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "currency", "type": "string"}]}


class SchemaRegistry(http.server.BaseHTTPRequestHandler):
    """Has the schemas 7 and 258. Does not work the first time."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        schema = {"/schemas/ids/7": OLD, "/schemas/ids/258": NEW}.get(self.path)
        code = 503 if len(self.asked) == 1 else 404 if schema is None else 200
        self.send_response(code)
        self.end_headers()
        if code == 200:
            self.wfile.write(json.dumps({"schema": json.dumps(schema)}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    SchemaRegistry.asked.clear()
    with serving(SchemaRegistry) as address:
        yield address


def framed(number: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, value)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def test_avro_with_a_registry(registry: str, tmp_path: Path) -> None:
    values = [framed(7, OLD, {"id": n}) for n in range(3)]
    values += [framed(258, NEW, {"id": 3, "currency": "CHF"})]
    with EmbeddedKafka({"orders": 1}) as kafka:
        kafka.append("orders", 0, encode_batch([NewRecord(None, v) for v in (*values, None)]))
        environment = {
            "TOPIC": "orders",
            "GROUP": "billing",
            "BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "REGISTRY_URL": registry,
        }
        with running(program("avro.md", "class Registry"), tmp_path, environment) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            kafka.append("orders", 0, encode_batch([NewRecord(None, b"\0\0\0\0\x09?")]))
            _, errors = output_of(process)
        assert lines == [
            *(f"{n} {{'id': {n}, 'currency': 'EUR'}}\n" for n in range(3)),
            "3 {'id': 3, 'currency': 'CHF'}\n",
            "4 None\n",
        ], errors
        assert "DeserializationError: value_deserializer failed on orders/0 at offset 5" in errors
        assert kafka.committed("billing", "orders") == {0: 5}
    ids = (7, 7, 258, 9)  # the first time it did not work; each schema is fetched once
    assert SchemaRegistry.asked == [f"/schemas/ids/{number}" for number in ids]

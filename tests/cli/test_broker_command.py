"""`kafkagroup broker` as scripts start and end it."""

from __future__ import annotations

import json
import signal
import socket

import anyio
import pytest
from cli.programs import TIMEOUT, running
from click.testing import CliRunner

from kafkagroup.broker import Broker
from kafkagroup.cli._app import app


async def topics_at(address: str) -> tuple[int, dict[str, int]]:
    """Return the number of nodes, and the partitions of each topic."""
    host, _, port = address.partition(":")
    async with Broker.open(host, int(port)) as broker:
        response = await broker.request_metadata()
    return len(response.brokers), {topic.name: len(topic.partitions) for topic in response.topics}


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_a_signal_or_the_end_of_stdin(ending: signal.Signals) -> None:
    with running("broker", "--port", "0", "--topic", "t:2", "--topic", "u") as process:
        address = process.stdout.readline().decode().strip()
        assert anyio.run(topics_at, address) == (1, {"t": 2, "u": 1})
        process.send_signal(ending)
        assert process.communicate(timeout=TIMEOUT) == (b"", b"")
    assert process.returncode == 0


def test_several_nodes_and_json() -> None:
    with running("broker", "--port", "0", "--nodes", "3", "--topic", "t:4", "--json") as process:
        printed = json.loads(process.stdout.readline())
        addresses = printed["bootstrap_servers"].split(",")
        assert (len(addresses), printed["topics"]) == (3, {"t": 4})
        for address in addresses:
            assert anyio.run(topics_at, address) == (3, {"t": 4})


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = CliRunner().invoke(app, ["broker", "--port", str(port)])
    assert found.exit_code == 1
    assert found.stderr == (
        f"kafkagroup: cannot listen on 127.0.0.1:{port}: Address already in use; give another"
        " --port, or 0 for any free one\n"
    )


def test_a_reader_that_has_closed_the_pipe_is_no_failure() -> None:
    """It was reported as an address on which the broker could not listen."""
    with running("broker", "--port", "0") as process:
        process.stdout.close()
        process.stdout = None
        assert process.communicate(timeout=TIMEOUT) == (None, b"")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--topic", "t:0"), "broker: Invalid value for '--topic': 't:0'; expected NAME or NAME:P"),
        (("--topic", "t:10001"), "broker: Invalid value for '--topic': 't:10001'; expected NAME "),
        (("--topic", "a b"), "broker: Invalid value for '--topic': 'a b'; expected NAME or NAME:"),
        (("--topic", "t", "--topic", "t:2"), "broker: --topic t is given twice"),
        (("--nodes", "0"), "broker: Invalid value for '--nodes': 0 is not in the range 1<=x<=100"),
        (("--port", "65535", "--nodes", "2"), "broker: --port 65535 leaves no room for 2 nodes"),
    ],
)
def test_wrong_arguments_are_an_error(arguments: tuple[str, ...], line: str) -> None:
    found = CliRunner().invoke(app, ["broker", *arguments])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"kafkagroup: {line}")
    assert found.stderr.count("\n") == 1

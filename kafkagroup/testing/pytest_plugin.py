"""The pytest fixture `kafka`: the address of a broker, whatever this machine has to offer.

pytest loads this file in every run wherever the library is installed: it imports pytest and the
standard library and nothing else, and starts nothing until a test asks for the fixture.

Taken is the first of these that works; the terminal summary says which one, and why not those
before it:

- `address`: the broker at `KAFKAGROUP_BOOTSTRAP_SERVERS`, if one of its hosts accepts a connection;
- `container`: testcontainers' `KafkaContainer`, if Docker answers and has the image
  `KAFKAGROUP_KAFKA_IMAGE` (in Confluent's layout; testcontainers' own default when unset). Nothing
  is pulled;
- `local`: `LocalKafka`, real Apache Kafka, if there is Java;
- `embedded`: `EmbeddedKafka`, the broker inside this process.

Each has 10 s to answer; the JVM of `local`, which takes 4 s on a machine with nothing else to do,
has 60 s. Fetching Kafka's jars, which `local` does once in the life of a cache, has
`DOWNLOAD_TIMEOUT` (120 s) of its own. `KAFKAGROUP_KAFKA` names the only one to be tried: if it does
not work, the tests that use the fixture fail.

With pytest-xdist each worker has a broker of its own, except that all of them use the one at
`KAFKAGROUP_BOOTSTRAP_SERVERS`. The summary lists the brokers of all workers.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

__all__ = ["kafka"]

_START_TIMEOUT = 10.0
_REPORT = pytest.StashKey[list[str]]()
"""The lines of the terminal summary; absent in a run that never used the fixture."""
_WORKER_REPORT = "kafkagroup.testing"
"""The key under which a worker of pytest-xdist sends its lines to the process that prints them."""


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """Bootstrap servers (`host:port`, comma-separated) of a Kafka that lives as long as the run.

    All tests share it: use topics and groups of your own. Synchronous, so that it serves tests on
    any event loop. The docstring of this module says what is behind it.
    """
    report = request.config.stash.setdefault(_REPORT, [])
    forced = os.environ.get("KAFKAGROUP_KAFKA")
    if forced and forced not in _SOURCES:
        pytest.fail(
            f"KAFKAGROUP_KAFKA is {forced!r}, and can be {', '.join(_SOURCES)}", pytrace=False
        )
    with ExitStack() as running:
        for name in [forced] if forced else _SOURCES:
            try:
                address = running.enter_context(_SOURCES[name]())
            # Whatever a source fails with, from three libraries' trees of exceptions, is the reason
            # to go on to the next.
            except Exception as error:
                reason = str(error) or repr(error)
                report.append(f"not {name}: {reason.splitlines()[0]}")
                if forced:
                    pytest.fail(f"KAFKAGROUP_KAFKA is {forced}: {reason}", pytrace=False)
            else:
                report.append(f"taken: {name}, at {address}")
                yield address
                return
        pytest.fail("no Kafka: " + "; ".join(report), pytrace=False)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _REPORT in config.stash:
        terminalreporter.section("kafka")
        for line in config.stash[_REPORT]:
            terminalreporter.line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Only workers of pytest-xdist have this attribute. Their own summary is never printed.
    output = getattr(session.config, "workeroutput", None)
    if output is not None and _REPORT in session.config.stash:
        output[_WORKER_REPORT] = session.config.stash[_REPORT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # A worker that has crashed sent nothing.
    lines = getattr(node, "workeroutput", {}).get(_WORKER_REPORT, ())
    if lines:
        report = node.config.stash.setdefault(_REPORT, [])
        report.extend(line for line in lines if line not in report)


class _Absent(Exception):
    """A source has nothing to offer here. The message says what is missing."""


@contextmanager
def _address() -> Iterator[str]:
    given = os.environ.get("KAFKAGROUP_BOOTSTRAP_SERVERS")
    if not given:
        raise _Absent("KAFKAGROUP_BOOTSTRAP_SERVERS is not set")
    deadline = time.monotonic() + _START_TIMEOUT
    reasons = []
    for server in given.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            # A connection is all that is asked: no request has an answer before TLS and SASL.
            socket.create_connection(
                (host.strip("[]"), int(port)), max(0.1, deadline - time.monotonic())
            ).close()
        except (OSError, ValueError) as error:
            reasons.append(f"{server.strip()}: {error}")
        else:
            break
    else:
        raise _Absent(f"KAFKAGROUP_BOOTSTRAP_SERVERS does not answer ({'; '.join(reasons)})")
    yield given


@contextmanager
def _container() -> Iterator[str]:
    # Under "-W error" a warning at the import of others' modules would look as if they were absent.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            settings = importlib.import_module("testcontainers.core.config").testcontainers_config
            docker_errors = importlib.import_module("docker.errors")
            try:
                kafka_module = importlib.import_module("testcontainers.community.kafka")
            except ModuleNotFoundError:
                # Its place before release 4.15.
                kafka_module = importlib.import_module("testcontainers.kafka")
        except ImportError as error:
            raise _Absent(f"testcontainers is not installed ({error})") from error
    image = os.environ.get("KAFKAGROUP_KAFKA_IMAGE")
    silence = ""
    try:
        container = kafka_module.KafkaContainer(
            *([image] if image else []), docker_client_kw={"timeout": _START_TIMEOUT}
        )
    except docker_errors.DockerException as error:
        silence = str(error)
    if silence:
        # Its client leaves the socket that it could not connect to the collector; collected later,
        # it would be a warning, and so an error, in somebody's test.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        raise _Absent(f"Docker does not answer ({silence})")
    try:
        images = container.get_docker_client().client.images
        needed = {container.image: "KAFKAGROUP_KAFKA_IMAGE names another"}
        if not settings.ryuk_disabled:
            needed[settings.ryuk_image] = "TESTCONTAINERS_RYUK_DISABLED=true does without"
        for name, remedy in needed.items():
            try:
                images.get(name)
            except docker_errors.ImageNotFound as error:
                raise _Absent(
                    f"Docker has no image {name}, and none is pulled; {remedy}"
                ) from error
        container.with_kraft().start(timeout=_START_TIMEOUT)
        yield container.get_bootstrap_server()
    finally:
        container.stop()


@contextmanager
def _local() -> Iterator[str]:
    from kafkagroup.testing.local import LocalKafka

    with LocalKafka() as running:
        yield running.bootstrap_servers


@contextmanager
def _embedded() -> Iterator[str]:
    from kafkagroup.testing import EmbeddedKafka

    with EmbeddedKafka() as running:
        yield running.bootstrap_servers


_SOURCES: Mapping[str, Callable[[], AbstractContextManager[str]]] = {
    "address": _address,
    "container": _container,
    "local": _local,
    "embedded": _embedded,
}
"""Name, as `KAFKAGROUP_KAFKA` takes it -> a context manager with the address; in order."""

"""The pytest fixture `kafka`: the address of a broker, from the best source on this machine.

pytest loads this file in every run wherever the library is installed: it imports only pytest and
the standard library, and starts nothing until a test requests the fixture.

Without a choice, the source is `address` if `KAFKAGROUP_BOOTSTRAP_SERVERS` is set, else `embedded`,
which starts in milliseconds. Two ways to choose:

- the environment variable `KAFKAGROUP_KAFKA`: the name of a source; `real`, the first of `address`,
  `container` and `local` that works; or `any`, the first of all four;
- the marker `real_kafka` of a test: unless the variable is set, the whole run uses `real`.

If no chosen source works, the tests that use the fixture fail. The terminal summary names the
source, and says why those before it did not work. The sources, in this order:

- `address`: the broker at `KAFKAGROUP_BOOTSTRAP_SERVERS`, if one of its hosts accepts a connection;
- `container`: testcontainers' `KafkaContainer`, if Docker answers and has the image
  `KAFKAGROUP_KAFKA_IMAGE` (in Confluent's layout; testcontainers' own default when unset), and that
  of Ryuk unless TESTCONTAINERS_RYUK_DISABLED is set. Nothing is pulled;
- `local`: `LocalKafka`, real Apache Kafka, if there is Java;
- `embedded`: `EmbeddedKafka`, the broker inside this process.

`address` and Docker have 10 s to answer. The JVM of `container` and `local`, which starts in 4 s on
an idle machine, has 60 s. The download of Kafka's jars, which `local` needs once per cache, has
another 120 s.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

__all__ = ["kafka"]

_START_TIMEOUT = 10.0
"""Seconds that `address` and Docker have to answer."""
_JVM_TIMEOUT = 60.0
"""Seconds for the start of the container's JVM. `LocalKafka` has a timeout of its own."""
_REPORT = pytest.StashKey[list[str]]()
"""The lines of the terminal summary; absent in a run that does not use the fixture."""
_NEEDS_REAL = pytest.StashKey[bool]()
"""Whether a test of the run has the marker `real_kafka`."""
_WORKER_REPORT = "kafkagroup.testing"
"""The key under which a pytest-xdist worker sends its lines to the controller."""


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """Bootstrap servers (`host:port`, comma-separated) of a Kafka that runs until the session ends.

    All tests share it: use your own topics and groups. The fixture is synchronous, so it works with
    any event loop. The docstring of this module describes the sources.
    """
    report = request.config.stash.setdefault(_REPORT, [])
    sources = _chosen_sources(request.config)
    with ExitStack() as running:
        for name in sources:
            try:
                address = running.enter_context(_SOURCES[name]())
            # Any error, from three libraries' exception hierarchies, is a reason to try the next
            # source.
            except Exception as error:
                reason = str(error) or repr(error)
                report.append(f"not {name}: {reason.splitlines()[0]}")
            else:
                hint = "" if name != "embedded" else "; KAFKAGROUP_KAFKA=real uses real Kafka"
                report.append(f"taken: {name}, at {address}{hint}")
                yield address
                return
        pytest.fail("no Kafka: " + "; ".join(report), pytrace=False)


def _chosen_sources(config: pytest.Config) -> Sequence[str]:
    """Return the names of the sources to try, in order."""
    choice = os.environ.get("KAFKAGROUP_KAFKA")
    if choice is None:
        if config.stash.get(_NEEDS_REAL, False):
            choice = "real"
        else:
            choice = "address" if os.environ.get("KAFKAGROUP_BOOTSTRAP_SERVERS") else "embedded"
    if choice in _SOURCES:
        return (choice,)
    if choice in _CHOICES:
        return _CHOICES[choice]
    values = ", ".join((*_SOURCES, *_CHOICES))
    return pytest.fail(f"KAFKAGROUP_KAFKA is {choice!r}; expected one of {values}", pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "real_kafka: the fixture `kafka` of this run is real Apache Kafka, unless KAFKAGROUP_KAFKA"
        " is set",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    marked = any(item.get_closest_marker("real_kafka") for item in session.items)
    session.config.stash[_NEEDS_REAL] = marked


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _REPORT in config.stash:
        terminalreporter.section("kafka")
        for line in config.stash[_REPORT]:
            terminalreporter.line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Only workers of pytest-xdist have this attribute; their own summary is never printed.
    output = getattr(session.config, "workeroutput", None)
    if output is not None and _REPORT in session.config.stash:
        output[_WORKER_REPORT] = session.config.stash[_REPORT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # `node` has a type of pytest-xdist, which need not be installed. A crashed worker sent nothing.
    lines = getattr(node, "workeroutput", {}).get(_WORKER_REPORT, ())
    if lines:
        report = node.config.stash.setdefault(_REPORT, [])
        report.extend(line for line in lines if line not in report)


class _Absent(Exception):
    """This source does not work on this machine. The message says what is missing."""


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
            # Only connect: with TLS or SASL, no request is answered before authentication.
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
    # Under "-W error", a warning while importing these modules would look as if they were absent.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            settings = importlib.import_module("testcontainers.core.config").testcontainers_config
            docker_errors = importlib.import_module("docker.errors")
            try:
                kafka_module = importlib.import_module("testcontainers.community.kafka")
            except ModuleNotFoundError:
                # The module's location before testcontainers 4.15.
                kafka_module = importlib.import_module("testcontainers.kafka")
        except ImportError as error:
            raise _Absent(f"testcontainers is not installed ({error})") from error
    image = os.environ.get("KAFKAGROUP_KAFKA_IMAGE")
    problem = ""
    try:
        container = kafka_module.KafkaContainer(
            *([image] if image else []), docker_client_kw={"timeout": _START_TIMEOUT}
        )
    except docker_errors.DockerException as error:
        problem = str(error)
    if problem:
        # Docker's client leaves its unconnected socket to the garbage collector. Collected later,
        # it would raise a ResourceWarning, hence an error, in an unrelated test. Not in the
        # `except` above, where the traceback still refers to the socket.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        raise _Absent(f"Docker does not answer ({problem})")
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
        container.with_kraft().start(timeout=_JVM_TIMEOUT)
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
"""Name -> a context manager that returns the address; in the order in which they are tried."""

_CHOICES: Mapping[str, Sequence[str]] = {
    "real": ("address", "container", "local"),
    "any": tuple(_SOURCES),
}
"""Values of `KAFKAGROUP_KAFKA` that stand for several sources."""

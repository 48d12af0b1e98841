"""What happens behind an output of a page, where a line of hidden code would not do."""

from __future__ import annotations

import errno
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import virtual
from anyio.from_thread import start_blocking_portal
from certificates import HOST, Authority

from kafkagroup import Consumer
from kafkagroup.runtime.member import membership_log
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport import dialing
from kafkagroup.wire.batch_writing import NewRecord

__all__ = [
    "billing_group",
    "checkpoint",
    "log_of_a_dead_broker",
    "log_of_a_slow_application",
    "log_of_rebalances",
    "operators_cluster",
    "watched_group",
]

_TIMEOUT = 30.0


@contextmanager
def _member(servers: str, name: str, client_id: str) -> Iterator[tuple[Consumer, Any]]:
    """Run a member of the group `billing` in a thread; provide it, and a function that commits."""
    with start_blocking_portal() as portal:
        consumer = Consumer(
            "orders",
            bootstrap_servers=servers,
            group_id="billing",
            group_instance_id=name,
            client_id=client_id,
            enable_auto_commit=False,
            leave_group_on_close=True,
        )
        with portal.wrap_async_context_manager(consumer):
            _until(consumer.assignment)
            yield consumer, lambda offsets: portal.call(consumer.commit, offsets)


def _until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def billing_group(kafka: EmbeddedKafka) -> Iterator[None]:
    """Run a group of two members, which lag behind by a minute and by 20 s."""
    now = time.time()
    committed = {0: 120, 1: 80, 2: 100, 3: 100}
    for partition, offset in committed.items():
        kafka.produce("orders", ["processed"] * offset, partition=partition)
    for partition, count, age in ((1, 60, 60), (3, 1, 20)):
        record = NewRecord(None, b"not processed", timestamp=int((now - age) * 1000))
        kafka.produce("orders", [record] * count, partition=partition)
    servers = kafka.bootstrap_servers
    with (
        _member(servers, "node-1", "billing-a") as one,
        _member(servers, "node-2", "billing-b") as other,
    ):
        _until(lambda: len(one[0].assignment()) == len(other[0].assignment()) == 2)
        for member, commit in (one, other):
            commit({tp: committed[tp.partition] for tp in member.assignment()})
        yield


def watched_group(servers: str, variables: MutableMapping[str, str]) -> list[str]:
    """Return what `kafkagroup watch billing` prints while a second member joins."""
    command = ["kafkagroup", "watch", "billing", "--every", "2"]
    with (
        _member(servers, "node-1", "billing-a"),
        subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as watch,
        ExitStack() as closing,
    ):
        closing.callback(watch.terminate)
        assert watch.stdout is not None
        first = watch.stdout.readline().rstrip()
        with _member(servers, "node-2", "billing-b"):
            return [first, watch.stdout.readline().rstrip()]


PROFILE = """
[profiles.operator]
bootstrap.servers = "localhost:{port}"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "operator"
ssl.ca.location = "{authority}"
"""


@contextmanager
def operators_cluster(
    folder: Path, variables: MutableMapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Run a cluster with TLS and SASL that advertises a port without a listener, and write a
    profile for it; provide its address, and the one that it advertises."""
    authority = Authority()
    context = authority.server_context(authority.issue(HOST, "localhost"), folder)
    users = {"operator": "secret"}
    with EmbeddedKafka(
        tls=context, users=users, mechanisms=("SCRAM-SHA-512",), cluster_id="fPZhKxf5RrS8fEjoBVPYpQ"
    ) as kafka:
        _, _, port = kafka.bootstrap_servers.partition(":")
        kafka._cluster.nodes[1].port = 1
        (folder / "ca.pem").write_text(authority.pem, "ascii")
        (folder / "kafkagroup.toml").write_text(
            PROFILE.format(port=port, authority=folder / "ca.pem"), "utf-8"
        )
        del variables["KAFKAGROUP_BOOTSTRAP_SERVERS"]
        variables["XDG_CONFIG_HOME"] = str(folder)
        variables["KAFKAGROUP_SASL_PASSWORD"] = "secret"
        yield f"localhost:{port}", f"{HOST}:1"


def checkpoint(folder: Path) -> Path:
    """Write the checkpoint of a query that has ended a batch, as Spark 4.3 does."""
    for name in ("commits", "offsets"):
        (folder / name).mkdir()
    log = (
        "v1",
        '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}',
        '{"orders":{"0":1288,"1":930}}',
    )
    (folder / "offsets" / "0").write_text("\n".join(log), "utf-8")
    (folder / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}', "utf-8")
    return folder


def log_of_a_dead_broker() -> list[str]:
    """Return the warnings of a consumer, in virtual time, one of whose brokers is down."""

    async def story(kafka: EmbeddedKafka) -> None:
        dial = dialing.connect

        async def connect(family: int, address: tuple[Any, ...], source: Any) -> Any:
            if address[0] == "kafka-2":
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            return await dial(family, address, source)

        with mock.patch.object(dialing, "connect", connect):
            async with Consumer("orders", bootstrap_servers="kafka-1:9092", group_id="billing"):
                await anyio.sleep(15)

    with _kept("kafkagroup", logging.WARNING) as log:
        virtual.run(story, {"orders": 4}, nodes=2)
    return log


def log_of_rebalances() -> list[str]:
    """Return what a consumer, and a second one that joins and leaves again, log about it."""

    async def story(kafka: EmbeddedKafka) -> None:
        async with anyio.create_task_group() as tasks, _host(1) as first:
            tasks.start_soon(_takes_part, first)
            await _owns(first, 4)
            async with _host(2) as second:
                tasks.start_soon(_takes_part, second)
                await _owns(first, 2)
                await _owns(second, 2)
            await _owns(first, 4)
            await first.stop()

    with _kept(membership_log.__name__, logging.INFO) as log:
        virtual.run(story, {"orders": 4})
    ids = {"host-1": "9a32e43b", "host-2": "51c80d07"}
    return [re.sub(r"(host-.)-[0-9a-f-]{36}", lambda m: f"{m[1]}-{ids[m[1]]}", t) for t in log]


def log_of_a_slow_application() -> list[str]:
    """Return the warnings of a consumer whose application does not request records any more."""

    async def story(kafka: EmbeddedKafka) -> None:
        async with _host(1) as consumer:
            await consumer.wait_assignment()
            await consumer.getmany(timeout=0)
            await anyio.sleep(301)

    with _kept("kafkagroup", logging.WARNING) as log:
        virtual.run(story, {"orders": 4})
    return log


def _host(number: int) -> Consumer:
    return Consumer(
        "orders",
        bootstrap_servers="kafka-1:9092",
        group_id="billing",
        client_id=f"host-{number}",
    )


async def _takes_part(consumer: Consumer) -> None:
    async for _ in consumer:
        pass


async def _owns(consumer: Consumer, count: int) -> None:
    while len(consumer.assignment()) != count:
        await anyio.sleep(0.01)


@contextmanager
def _kept(name: str, level: int) -> Iterator[list[str]]:
    """Provide the messages of a logger, from this level on."""
    log: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.append(record.getMessage())

    handler, logger = Keeping(level), logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield log
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)

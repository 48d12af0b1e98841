"""What happens behind an output of a page, where a line of hidden code would not do."""

from __future__ import annotations

import errno
import logging
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
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport import dialing
from kafkagroup.wire.batch_writing import NewRecord

__all__ = [
    "billing_group",
    "checkpoint",
    "log_of_a_dead_broker",
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
    log: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.append(record.getMessage())

    async def story(kafka: EmbeddedKafka) -> None:
        dial = dialing.connect

        async def connect(family: int, address: tuple[Any, ...], source: Any) -> Any:
            if address[0] == "kafka-2":
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            return await dial(family, address, source)

        with mock.patch.object(dialing, "connect", connect):
            async with Consumer("orders", bootstrap_servers="kafka-1:9092", group_id="billing"):
                await anyio.sleep(15)

    handler = Keeping(logging.WARNING)
    logger = logging.getLogger("kafkagroup")
    logger.addHandler(handler)
    try:
        virtual.run(story, {"orders": 4}, nodes=2)
    finally:
        logger.removeHandler(handler)
    return log

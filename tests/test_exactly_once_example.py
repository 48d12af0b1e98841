"""The example of exactly once into a database: late owners and crashes store nothing twice."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from inspect import signature
from pathlib import Path
from typing import Any

import anyio
import exactly_once_database as example
import pytest
from example_process import end, output_of, running, started
from memory_network import network

import kafkagroup
from kafkagroup import Batch, Consumer, OffsetOutOfRangeError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings

__all__ = ["network"]

pytestmark = pytest.mark.anyio

AWAY = 1 + signature(Consumer).parameters["max_poll_interval_ms"].default / 1000
"""Seconds without a poll, after which a partition is assigned to another member."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def connect(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that connects to an empty database."""
    if request.param == "sqlite":
        return lambda: sqlite3.connect(tmp_path / "store.db")
    pg8000 = pytest.importorskip(
        "pg8000.dbapi", reason="NOT TESTED on PostgreSQL: pg8000 is not installed"
    )
    monkeypatch.setattr(pg8000, "paramstyle", "named")
    socket = request.getfixturevalue("postgresql")
    with closing(pg8000.connect("postgres", unix_sock=socket)) as connection:
        connection.autocommit = True
        connection.cursor().execute("DROP SCHEMA public CASCADE")
        connection.cursor().execute("CREATE SCHEMA public")
    return lambda: pg8000.connect("postgres", unix_sock=socket)


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the socket of a server of PostgreSQL, as Debian packages it."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/initdb"), shutil.which("initdb")]
    if not any(found):
        pytest.skip("NOT TESTED on PostgreSQL: it is not installed (apt-get install postgresql)")
    programs = Path(str(next(filter(None, found)))).parent
    folder = tmp_path_factory.mktemp("postgresql")
    # It refuses to run as root, and the folders of the tests belong to their user alone.
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        as_user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        folder = Path("/tmp") / f"kafkagroup-{folder.name}-{os.getpid()}"
        folder.mkdir(mode=0o700)
        shutil.chown(folder, "nobody", "nogroup")
    data = folder / "data"
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    control = [programs / "pg_ctl", "--pgdata", data, "--wait", "--silent"]
    try:
        for command in (
            [programs / "initdb", "--auth=trust", "--username=postgres", "--no-sync", data],
            [*control, "--log", folder / "log", "--options", options, "start"],
        ):
            subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **as_user)
        yield f"{folder}/.s.PGSQL.5432"
        subprocess.run([*control, "--mode=fast", "stop"], check=True, cwd=folder, **as_user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SlowWorker(example.Worker):
    """Is away between the delivery of its first batch and the transaction that stores it."""

    away = AWAY
    is_away = False

    async def process(self, batch: Batch) -> None:
        if not self.is_away:
            self.is_away = True
            await anyio.sleep(self.away)
        await super().process(batch)


@asynccontextmanager
async def cluster(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"payments": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("payments", ["alice 5", "bob 7"] * 3)
        with anyio.fail_after(20 * AWAY):
            yield kafka


def worker(connection: Any, kind: Any = example.Worker) -> Any:
    database = example.Database(connection)
    return kind("kafka-1", "payments", "accounts", database, max_records=4)


def stored(connection: Any) -> tuple[dict[str, int], list[int]]:
    """Return the balances and the positions."""
    cursor = connection.cursor()
    cursor.execute("SELECT account, amount FROM balances")
    balances = dict(tuple(row) for row in cursor.fetchall())
    cursor.execute("SELECT next FROM positions")
    positions = [next_one for (next_one,) in cursor.fetchall()]
    connection.rollback()
    return balances, positions


async def until_stored(connection: Any, position: int) -> None:
    while stored(connection)[1] != [position]:
        await anyio.sleep(1)


async def test_a_late_owner_cannot_store_its_batch_a_second_time(
    network: Any, connect: Any
) -> None:
    """It got records, and was away until another member had stored them."""
    with closing(connect()) as one, closing(connect()) as other:
        async with cluster(network), anyio.create_task_group() as tasks:
            late = worker(one, SlowWorker)

            async def fail() -> None:
                with pytest.raises(example.PositionMovedError, match="not 0 any more"):
                    await late.run()

            tasks.start_soon(fail)
            while not late.is_away:
                await anyio.sleep(1)
            successor = worker(other)
            tasks.start_soon(successor.run)
            await until_stored(other, 6)
            while not late.consumer.closed:
                await anyio.sleep(1)
            await successor.consumer.stop()
        assert stored(other) == ({"alice": 15, "bob": 21}, [6])


async def test_a_new_owner_notices_that_the_late_one_was_faster(network: Any, connect: Any) -> None:
    """Both read the same position; the late owner stored first, and the new one begins again."""
    with closing(connect()) as one, closing(connect()) as other:
        async with cluster(network), anyio.create_task_group() as tasks:
            late = worker(one, SlowWorker)

            async def fail() -> None:
                with pytest.raises(example.PositionMovedError):
                    await successor.run()

            tasks.start_soon(late.run)
            while not late.is_away:
                await anyio.sleep(1)
            await anyio.sleep(AWAY - 10)
            successor = worker(other, SlowWorker)
            successor.away = 10
            tasks.start_soon(fail)
            await until_stored(other, 4)
            assert successor.is_away
            while not successor.consumer.closed:
                await anyio.sleep(1)
            await until_stored(other, 6)
            await late.consumer.stop()
        assert stored(other) == ({"alice": 15, "bob": 21}, [6])


async def test_a_batch_that_fails_leaves_neither_effects_nor_a_position(
    network: Any, connect: Any
) -> None:
    with closing(connect()) as connection:
        async with cluster(network) as kafka:
            database = example.Database(connection)
            database.begin("topic", {0: 0})
            with pytest.raises(TypeError):
                database.store("topic", 0, 0, 2, [("alice", 5), None])  # type: ignore[list-item]
            assert stored(connection) == ({}, [0])
            kafka.produce("payments", ["carol nothing"])
            with pytest.raises(ValueError, match="nothing"):
                await worker(connection).run()
            assert stored(connection) == ({"alice": 15, "bob": 21}, [0, 6])


async def test_records_that_were_deleted_before_they_were_stored_are_an_error(
    network: Any, connect: Any
) -> None:
    with closing(connect()) as connection:
        async with cluster(network) as kafka:
            first = worker(connection)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first.run)
                await until_stored(connection, 6)
                await first.consumer.stop()
            kafka.produce("payments", ["alice 1"] * 3)
            kafka.delete_records("payments", 0, before=8)
            with pytest.raises(OffsetOutOfRangeError):
                await worker(connection).run()


async def test_a_recreated_topic_begins_anew(network: Any, connect: Any) -> None:
    """A worker that runs meanwhile knows the old topic's position only, and ends."""
    with closing(connect()) as connection:
        async with cluster(network) as kafka, anyio.create_task_group() as tasks:
            first = worker(connection)

            async def fail() -> None:
                with pytest.raises(RuntimeError, match="payments-0 was recreated"):
                    await first.run()

            tasks.start_soon(fail)
            await until_stored(connection, 6)
            kafka.delete_topic("payments")
            kafka.create_topic("payments")
            kafka.produce("payments", ["carol 1"])
            await anyio.sleep(400)
            assert stored(connection) == ({"alice": 15, "bob": 21}, [6])
            successor = worker(connection)
            tasks.start_soon(successor.run)
            while len(stored(connection)[1]) < 2:
                await anyio.sleep(1)
            await anyio.sleep(1)
            await successor.consumer.stop()
        assert stored(connection) == ({"alice": 15, "bob": 21, "carol": 1}, [6, 1])


FREEZING = """
import functools, os, signal, sys
import exactly_once_database as example

class FreezingWorker(example.Worker):
    async def process(self, batch):
        if sys.argv[5:]:
            print("frozen", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        await super().process(batch)

example.Worker = FreezingWorker
example.Consumer = functools.partial(example.Consumer, session_timeout_ms=2_000)
example.anyio.run(example.main, *sys.argv[1:5])
"""
"""The program; with one more argument it is frozen between a delivery and its transaction."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it has no SIGSTOP")
def test_a_frozen_process_cannot_store_its_batch_when_it_thaws(tmp_path: Path) -> None:
    settings = BrokerSettings(group_min_session_timeout=0.5)
    path = [str(Path(example.__file__).parent), str(Path(kafkagroup.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    database = tmp_path / "store.db"
    with EmbeddedKafka({"payments": 1}, settings=settings) as kafka:
        kafka.produce("payments", ["alice 5", "bob 7"] * 3)
        arguments = ("-c", FREEZING, kafka.bootstrap_servers, "payments", "accounts", str(database))
        with started(*arguments, "freeze", environment=environment) as late:
            assert late.stdout is not None
            assert late.stdout.readline() == "frozen\n"
            with started(*arguments, environment=environment) as successor:
                assert successor.stdout is not None
                assert successor.stdout.readline() == "stored 0/0-5\n"
                late.send_signal(signal.SIGCONT)
                _, errors = output_of(late)
                assert "PositionMovedError: the position of partition 0 is not 0 any more" in errors
                assert late.returncode == 1
                rest, errors = end(successor, signal.SIGTERM)
                assert (rest, errors, successor.returncode) == ("", "", 0)
    with closing(sqlite3.connect(database)) as connection:
        assert stored(connection) == ({"alice": 15, "bob": 21}, [6])


def test_the_program_continues_where_it_ended(
    embedded_payments: EmbeddedKafka, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    for more in ([], ["alice 1", "carol 2"]):
        embedded_payments.produce("payments", more)
        arguments = (embedded_payments.bootstrap_servers, "payments", "accounts", str(path))
        with running("exactly_once_database.py", *arguments) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            rest, errors = end(process, signal.SIGTERM)
        assert (rest, errors, process.returncode) == ("", "", 0)
        assert line == ("stored 0/6-7\n" if more else "stored 0/0-5\n")
    with closing(sqlite3.connect(path)) as connection:
        assert stored(connection) == ({"alice": 16, "bob": 21, "carol": 2}, [8])
    assert embedded_payments.committed("accounts", "payments") == {}


@pytest.fixture
def embedded_payments() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"payments": 1}) as kafka:
        kafka.produce("payments", ["alice 5", "bob 7"] * 3)
        yield kafka

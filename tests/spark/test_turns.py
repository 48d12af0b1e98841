"""Runs of a pipeline that wait for each other; no Spark runs here."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import anyio
import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup import Admin
from kafkagroup.errors import IllegalStateError
from kafkagroup.spark.options import ConnectionOptions
from kafkagroup.spark.turns import election_of, election_prefix, turn
from kafkagroup.testing import EmbeddedKafka


@pytest.fixture
def options() -> Iterator[ConnectionOptions]:
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(EmbeddedKafka()) as broker:
            yield ConnectionOptions(bootstrap_servers=broker.bootstrap_servers)


def test_a_second_run_waits_for_the_first(options: ConnectionOptions) -> None:
    order = []

    def second() -> None:
        with turn(options, "turns", 30) as check:
            check()
            order.append("second")

    with turn(options, "turns", 30) as check:
        thread = threading.Thread(target=second)
        thread.start()
        with (
            pytest.raises(IllegalStateError, match="another run has had the turn for 1 s"),
            turn(options, "turns", 1),
        ):
            pass
        check()  # also after others have joined
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_a_turn_that_was_lost_does_not_come_back(options: ConnectionOptions) -> None:
    """A run that was stopped for longer than its session timeout won the election again, after
    another run had had the turn: it went on, and replaced what the other one had written."""

    async def remove_member() -> None:
        async with Admin(bootstrap_servers=options.bootstrap_servers) as admin:
            (member,) = (await admin.describe_group("turns")).members
            await admin.remove_member("turns", member_id=member.member_id)

    with turn(options, "turns", 30) as check:
        check()
        anyio.run(remove_member)
        with pytest.raises(IllegalStateError, match="it has lost its turn"):
            given_up_at = time.monotonic() + 30
            while time.monotonic() < given_up_at:
                check()


def test_runs_that_write_elsewhere_have_their_own_turns(options: ConnectionOptions) -> None:
    one, other = (election_of("g", out) for out in ("tables", "others"))
    assert one != other
    assert all(name.startswith(election_prefix("g")) for name in (one, other))
    with turn(options, one, 30), turn(options, other, 30):
        pass


def test_a_run_may_wait_without_a_limit(options: ConnectionOptions) -> None:
    """The first turn was not noticed, and the run hung."""
    with turn(options, "turns", math.inf) as check:
        check()

"""A client belongs to the process and the event loop that started it. Elsewhere its calls raise an
error that says so and what to do; `stop` in a forked process does nothing; `metrics` and `health`
work in any thread.

Processes, threads and sockets are real, so time is real.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from every_call import Opened, opened, outcome

from kafkagroup import ClosedError, Consumer, HealthProblem
from kafkagroup.errors import IllegalStateError
from kafkagroup.testing import EmbeddedKafka

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "every_call.py"

SUBJECTS = {
    "GroupMember(group_id='workers', client_id='kafkagroup')": (
        "member wait_generation describe update member_events member_metrics member_health"
    ),
    "GroupMember(group_id='election', client_id='kafkagroup')": "election leaders election_events",
    "GroupMember(group_id='shards', client_id='kafkagroup')": "shards shards_events",
    "the member <id>": "generation leadership assignment",
    "Admin(client_id='kafkagroup')": "admin",
    "Producer(client_id='kafkagroup')": (
        "producer send_nowait send_many flush ready partition_count producer_events"
    ),
    "Broker(-1, '127.0.0.1', <port>)": "broker",
}
"""The client that an error names -> the calls, separated by spaces. All others are the
consumer's."""

SUBJECT_OF = {name: subject for subject, names in SUBJECTS.items() for name in names.split()}


def subject_of(name: str) -> str:
    consumer = "Consumer(group_id='g', client_id='kafkagroup')"
    return SUBJECT_OF.get(name.replace(" ", "_"), consumer)


def shown(text: str) -> str:
    """Return a text without what differs between runs."""
    text = re.sub(r"kafkagroup-[-0-9a-f]{36}", "<id>", text)
    return re.sub(r"'127.0.0.1', \d+", "'127.0.0.1', <port>", text)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_in_a_forked_process_no_call_uses_the_parents_client(backend: str) -> None:
    """`getone` returned records there that the parent read too, and `stop` waited for ever."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), backend],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    (_, parent), (_, child), *lines = (line.split(maxsplit=1) for line in ran.stdout.splitlines())
    printed = dict(" ".join(line).split(" | ") for line in lines[:-3])
    calls = [name for name in printed if not name.startswith(("stop", "__aexit__"))]
    fork = (
        f" works only in process {parent}, which started it, and this is process {child}, forked"
        " from it: make and start another one here, after the fork"
    )
    for name in calls:
        kind = "IllegalStateError: "
        if "metrics" in name:
            kind = "NotStartedError: "
        if "health" in name:
            kind = "not running: "
        assert shown(printed[name]) == f"{kind}{subject_of(name)}{fork}", name
    assert {name: printed[name] for name in printed if name not in calls} == dict.fromkeys(
        (
            "stop of Consumer",
            "stop of GroupMember",
            "stop of Election",
            "stop of Shards",
            "stop of Admin",
            "stop of Producer",
            "__aexit__",
            "stop in a new loop",
        ),
        "None",
    )
    assert len(calls) == 49
    # The parent's clients go on as if nothing had been.
    assert [" ".join(line) for line in lines[-3:]] == [
        "next of parent b'1'",
        "health of parent healthy",
        "committed {0: 2}",
    ]


# ---------------------------------------------------------------- another loop


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 1}) as made:
        made.produce("t", [str(n) for n in range(100)])
        yield made


async def in_other_loop(clients: Opened, found: dict[str, object]) -> None:
    for name, call in {**clients.calls, **clients.stops}.items():
        found[name] = await outcome(call)
    found["metrics"] = clients.consumer.metrics().assigned_partitions
    found["health"] = clients.consumer.health()
    found["member metrics"] = clients.member.metrics().losses
    found["member health"] = clients.member.health()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("other", ["asyncio", "trio"])
def test_in_another_loop_each_call_names_the_loop_of_the_client(
    kafka: EmbeddedKafka, backend: str, other: str
) -> None:
    """`getone` returned records there, and `stop` waited for ever."""
    found: dict[str, object] = {}

    async def main() -> object:
        async with opened(kafka) as clients:
            thread = threading.Thread(
                target=lambda: anyio.run(in_other_loop, clients, found, backend=other)
            )
            thread.start()
            while thread.is_alive():
                await anyio.sleep(0.01)
            following = (await clients.consumer.getone()).value
            loop = None if backend == "trio" else asyncio.get_running_loop()
            return following, repr(loop)

    following, loop = anyio.run(main, backend=backend)
    assert following == b"1"
    home, way = loop, "asyncio.run_coroutine_threadsafe"
    if backend == "trio":
        home, way = "a loop of trio", "trio.from_thread.run"
    expected = (
        f" works only in the event loop that started it, {home} in thread 'MainThread': call it"
        f" there, from another thread with {way}, or make and start another one in this loop"
    )
    assert found.pop("metrics") == 1
    assert found.pop("member metrics") == 0
    assert found.pop("health")
    assert found.pop("member health")
    subjects = {"Admin": "admin", "Producer": "producer", "GroupMember": "member"}
    subjects |= {"Election": "election", "Shards": "shards"}
    for name, error in found.items():
        assert type(error) is IllegalStateError, (name, error)
        assert shown(str(error)) == subject_of(subjects.get(name, name)) + expected


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, None], ids=["asyncio", "uvloop"])
def test_a_second_loop_of_the_same_thread_is_another_loop(
    kafka: EmbeddedKafka, factory: Any
) -> None:
    """Within a millisecond after a record the next one was delivered without any check."""
    factory = factory or pytest.importorskip("uvloop").new_event_loop
    first, second = factory(), factory()
    try:
        c = Consumer("t", bootstrap_servers=kafka.bootstrap_servers, group_id="g")
        first.run_until_complete(c.start())
        aiter(c)  # no coroutine: it needs no loop
        for n in range(3):
            assert first.run_until_complete(c.getone()).value == b"%d" % n
            with pytest.raises(IllegalStateError, match="works only in the event loop that"):
                second.run_until_complete(c.getone())
        with pytest.raises(IllegalStateError, match="works only in the event loop that"):
            second.run_until_complete(c.stop())
        first.run_until_complete(c.stop())
        second.run_until_complete(c.stop())  # it is closed: there is nothing to do
        with pytest.raises(ClosedError, match="the consumer is closed"):
            second.run_until_complete(c.getone())
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_health_may_be_called_while_partitions_come_and_go(
    kafka: EmbeddedKafka, backend: str
) -> None:
    kafka.create_topic("many", 200)
    findings: list[object] = []
    may_end = threading.Event()

    async def main() -> None:
        async with Consumer(bootstrap_servers=kafka.bootstrap_servers) as c:

            def look() -> None:
                try:
                    while not may_end.is_set():
                        findings.extend(c.health().findings)
                        c.metrics()
                except Exception as error:
                    findings.append(error)

            thread = threading.Thread(target=look)
            thread.start()
            try:
                for n in range(30):
                    await c.assign([("many", p) for p in range(n % 7, 200, 1 + n % 3)])
            finally:
                may_end.set()
                thread.join()
            assert c.health()
            assert not findings
        assert [f.problem for f in c.health().findings] == [HealthProblem.NOT_RUNNING]

    anyio.run(main, backend=backend)

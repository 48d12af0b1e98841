"""Host names: the look-up is shared, is given up in time, and falls back on the last addresses."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from loop_threads import LoopThreads

from kafkagroup.transport import names as names_module
from kafkagroup.transport.names import Names, Resolved, UnresolvedError

pytestmark = pytest.mark.anyio

OLD: Any = (socket.AF_INET, ("10.0.0.1", 0))
NEW: Any = (socket.AF_INET, ("10.0.0.2", 0))


class NameServer:
    """Answers look-ups: with addresses, or an error."""

    def __init__(self) -> None:
        self.respond: list[Any] | Exception = [OLD]
        self.asked: list[str] = []

    def look_up(self, host: str, flags: int = 0) -> list[Any]:
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "not an address")
        self.asked.append(host)
        if isinstance(self.respond, Exception):
            raise self.respond
        return self.respond


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    made = NameServer()
    monkeypatch.setattr(names_module, "_addresses", made.look_up)
    return made


async def collect(found: list[object], call: Callable[[], Any]) -> None:
    found.append(await call())


@pytest.mark.parametrize(
    ("host", "family", "address"),
    [
        ("127.0.0.1", socket.AF_INET, ("127.0.0.1", 0)),
        ("::1", socket.AF_INET6, ("::1", 0, 0, 0)),
        ("fe80::1%lo", socket.AF_INET6, ("fe80::1", 0, 0, socket.if_nametoindex("lo"))),
    ],
)
async def test_an_address_needs_no_thread(
    threads: LoopThreads, host: str, family: int, address: Any
) -> None:
    assert await Names().resolve(host) == Resolved([(family, address)])
    assert threads.jobs == []


async def test_connections_to_one_host_share_a_look_up(
    threads: LoopThreads, server: NameServer
) -> None:
    names, found = Names(), []
    threads.held = []
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(collect, found, lambda: names.resolve("kafka"))
        await anyio.sleep(1)
        threads.held.pop()()
    assert found == [Resolved([OLD])] * 3
    assert server.asked == ["kafka"]
    threads.held = None
    server.respond = [NEW]
    assert await names.resolve("kafka") == Resolved([NEW])  # looked up again for each connection


async def test_a_look_up_without_a_response_names_itself(
    threads: LoopThreads, server: NameServer
) -> None:
    threads.held = []
    with pytest.raises(UnresolvedError, match=r"^the name is not resolved within 10 s$"):
        await Names().resolve("kafka", anyio.current_time() + 10)
    assert len(threads.jobs) == 1


async def test_a_look_up_that_finds_no_thread_says_so(
    threads: LoopThreads, server: NameServer
) -> None:
    threads.refused_count = 1_000
    late = r"^the name is not resolved within 10 s; all threads for look-ups are busy$"
    with pytest.raises(UnresolvedError, match=late):
        await Names().resolve("kafka", anyio.current_time() + 10)


async def test_the_last_addresses_are_used_while_a_look_up_takes_long(
    threads: LoopThreads, server: NameServer
) -> None:
    """With no name server a member could not reconnect, and lost its session, though no broker had
    moved."""
    names = Names()
    assert await names.resolve("kafka") == Resolved([OLD])
    threads.held, server.respond = [], [NEW]
    for _ in range(3):
        began_at = anyio.current_time()
        found = await names.resolve("kafka", began_at + 10)
        assert found == Resolved([OLD], "the name is not resolved within 1 s")
        assert anyio.current_time() - began_at == pytest.approx(1)
    assert len(threads.jobs) == 2
    threads.held.pop()()
    await anyio.sleep(1)
    # What the late look-up has found counts from now on.
    found = await names.resolve("kafka", anyio.current_time() + 10)
    assert found == Resolved([NEW], "the name is not resolved within 1 s")


async def test_the_last_addresses_are_used_while_a_name_server_fails(
    threads: LoopThreads, server: NameServer
) -> None:
    names = Names()
    await names.resolve("kafka")
    server.respond = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    trouble = "the name is not resolved: Temporary failure in name resolution"
    assert await names.resolve("kafka") == Resolved([OLD], trouble)
    with pytest.raises(UnresolvedError, match=f"^{trouble}$"):
        await names.resolve("other")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not"),
        (UnicodeError("label too long"), "label too long"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_name_without_addresses_has_none_any_more(
    threads: LoopThreads, server: NameServer, error: Exception, why: str
) -> None:
    """The address may be another program's by now."""
    names = Names()
    await names.resolve("kafka")
    server.respond = error
    with pytest.raises(UnresolvedError, match=f"^the name is not resolved: {why}"):
        await names.resolve("kafka")


async def test_a_cancelled_connection_leaves_the_look_up_for_the_next(
    threads: LoopThreads, server: NameServer
) -> None:
    names = Names()
    threads.held = []
    for _ in range(5):
        with anyio.move_on_after(0.1):
            await names.resolve("kafka")
    assert len(threads.jobs) == 1
    threads.held.pop()()
    await anyio.sleep(0.1)
    threads.held = None
    assert await names.resolve("kafka") == Resolved([OLD])


async def test_the_number_of_known_names_is_limited(
    threads: LoopThreads, server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "_MAX_KNOWN", 2)
    names = Names()
    for host in ("a", "b", "a", "c"):
        await names.resolve(host)
    server.respond = socket.gaierror(socket.EAI_AGAIN, "for now")
    for host in ("a", "c"):
        assert (await names.resolve(host)).addresses == [OLD]
    with pytest.raises(UnresolvedError):
        await names.resolve("b")

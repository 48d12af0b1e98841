"""Fixtures and hooks that users write with `async with`. Their frameworks run what comes before the
`yield` in one task, and the rest in another, where anyio's cancel scopes raise RuntimeError."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CLIENTS = """
import asyncio

import pytest
from kafkagroup import Admin, Consumer, Election, GroupMember, GroupProtocol, Shards
from kafkagroup import Producer
from kafkagroup.testing import EmbeddedKafka

PROTOCOL = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))
CLIENTS = {
    "consumer": lambda servers: Consumer("t", bootstrap_servers=servers, group_id="g"),
    "threaded": lambda servers: Consumer(
        "t", bootstrap_servers=servers, group_id="h", heartbeat_thread=True
    ),
    "member": lambda servers: GroupMember("m", PROTOCOL, bootstrap_servers=servers),
    "election": lambda servers: Election("e", bootstrap_servers=servers),
    "shards": lambda servers: Shards("s", 4, bootstrap_servers=servers),
    "admin": lambda servers: Admin(bootstrap_servers=servers),
    "producer": lambda servers: Producer(bootstrap_servers=servers),
}


@pytest.fixture(scope="module")
def servers():
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", ["0", "1"])
        yield kafka.bootstrap_servers
        assert {kafka.group_state(group) for group in "ghmes"} <= {"Empty", "Dead"}
"""

OF_PYTEST_ASYNCIO = """
import pytest_asyncio

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", params=CLIENTS)
async def client(request, servers):
    async with CLIENTS[request.param](servers) as entered:
        yield entered


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def consumer(servers):
    async with Consumer("t", bootstrap_servers=servers, group_id="g") as entered:
        yield entered


async def test_each_client(client):
    if hasattr(client, "__anext__"):
        assert await anext(client)


@pytest.mark.parametrize("offset", [0, 1])
async def test_one_consumer_of_all_tests(consumer, offset):
    assert (await consumer.getone()).offset == offset


async def test_one_that_fails(client):
    with pytest.raises(ValueError, match="mine"):
        async with asyncio.timeout(5):
            raise ValueError("mine")
"""

OF_AIOHTTP = """
from aiohttp import web

WORKER = web.AppKey("worker", asyncio.Task)
CLIENT = web.AppKey("client", object)


async def work(client, read):
    if hasattr(client, "__anext__"):
        async for found in client:
            read.set_result(found)
            await asyncio.sleep(3600)
    read.set_result(client)


@pytest.mark.parametrize("name", CLIENTS)
async def test_cleanup_ctx(aiohttp_client, servers, name):
    read = asyncio.get_running_loop().create_future()

    async def lifetime(app):
        async with CLIENTS[name](servers) as client:
            app[CLIENT] = client
            app[WORKER] = asyncio.create_task(work(client, read))
            yield
            app[WORKER].cancel()
            await asyncio.wait([app[WORKER]])

    async def answer(request):
        return web.Response(text=type(request.app[CLIENT]).__name__)

    app = web.Application()
    app.cleanup_ctx.append(lifetime)
    app.router.add_get("/", answer)
    client = await aiohttp_client(app)
    assert await (await client.get("/")).text()
    assert await read
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugins", "tests", "count"),
    [
        (["pytest_asyncio.plugin"], OF_PYTEST_ASYNCIO, 16),
        (["aiohttp.pytest_plugin"], OF_AIOHTTP, 7),
    ],
    ids=["pytest-asyncio", "aiohttp"],
)
def test_every_client_in_a_fixture_that_users_write(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    plugins: list[str],
    tests: str,
    count: int,
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(CLIENTS + tests)
    given = [word for plugin in plugins for word in ("-p", plugin)]
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *given)
    result.assert_outcomes(passed=count)

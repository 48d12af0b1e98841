"""Play a trace on a broker: execute its commands one by one, and record the responses.

In a trace, `#` lines are comments, `>` lines are commands, and the lines below a command are the
broker's responses.

    > a JoinGroup 9 member=a-1    client `a` sends version 9, and waits for the response
    > & a JoinGroup 9 ...         the same, but the broker must hold the request
    > await a, b                  the broker must answer these held requests
    > silence a                   the broker must not answer its held request yet
    > group a b                   each joins and syncs: a stable group of generation 2
    > topic t 2                   create a topic of 2 partitions; repeated: recreate it
    > topic t 2 config.name=value the same, with an option of the topic
    > delete t                    delete it
    > records t/0 x,y             append a batch of two records
    > pass 1.5                    let that many seconds pass
    > restart                     restart node 1: its partitions start a new epoch
    > broker option=value ...     the first line, for a broker with other options

A client is one connection to node 1, and its name is the client id; `a@2` connects to node 2,
`a@other` to a node that does not coordinate the group "g", `a@coordinator` to the one that does.
The requests are defined in `words`.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import attrs
from anyio.abc import ByteStream
from testing.peers import Peer
from verification.model.responses import response_lines
from verification.model.words import Names, request

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.rows import Rows
from kafkagroup.wire.schema import Request

__all__ = ["Broker", "play", "settings_of", "warm_up"]

_TIMEOUT = 30.0
"""Seconds that a response may take."""

_NOT_YET = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""What a broker says of what is new to it."""


@attrs.frozen
class Broker:
    """The broker that a trace is played on."""

    connect: Callable[[int], Awaitable[ByteStream]]
    """To a node."""
    pause: float
    """Seconds after which a request that is parked has surely arrived."""
    restart: Callable[[], Awaitable[None]]
    """Let node 1 go and come back."""
    nodes: int = 1
    """How many there are, from 1 on."""


async def play(trace: str, broker: Broker) -> str:
    """Return the trace with the responses of this broker."""
    lines: list[str] = []
    async with _Player(broker) as player:
        for line in trace.splitlines():
            if not line.startswith(">"):
                if not line.startswith(" "):
                    lines.append(line)
                continue
            lines.append(line)
            try:
                responses = await player.command(line[1:].split())
            except Exception as error:
                error.add_note(f"in: {line}, after:\n" + "\n".join(lines))
                raise
            lines += [f"  {response}" for response in responses]
    return "\n".join(lines) + "\n"


def settings_of(trace: str) -> dict[str, str]:
    """Return the broker options of the trace, by Kafka's names."""
    first = next(line for line in trace.splitlines() if line.startswith(">"))
    words = first.split()
    return dict(word.split("=") for word in words[2:]) if words[1] == "broker" else {}


async def warm_up(broker: Broker) -> None:
    """Return when the broker coordinates groups: it creates their topic on demand."""
    async with _Player(broker) as player:
        for group in map(str, range(12)):
            find = FindCoordinatorRequest(coordinator_keys=(group,))
            (found,) = (await player.insist(lambda find=find: find, 4)).coordinators
            ask = request("OffsetFetch", 7, [f"group={group}"], Names(""))
            await player.insist(lambda ask=ask: ask, 7, found.node_id)
        if broker.nodes > 1:
            return  # the traces of producers are played on one node
        find = FindCoordinatorRequest(coordinator_keys=("warm-up",), key_type=1)
        await player.insist(lambda: find, 4)
        # After a restart a known transactional id needs no new producer id, others do.
        for words in (["id=warm-up"], []):
            ask = request("InitProducerId", 4, words, Names(""))
            await player.insist(lambda ask=ask: ask, 4)


class _Player:
    """The clients of one trace."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names = Names(f"{uuid.uuid4().hex[:6]}.")
        self._clients: dict[str, Peer] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> _Player:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def _client(self, name: str) -> Peer:
        if name not in self._clients:
            stream = await self._broker.connect(await self._node(name.partition("@")[2]))
            self._open.push_async_callback(stream.aclose)
            self._clients[name] = Peer(stream, name)
        return self._clients[name]

    async def _node(self, place: str) -> int:
        """Return the node in a client's name."""
        if place not in ("coordinator", "other"):
            return int(place or 1)
        find = request("FindCoordinator", 4, [], self._names)
        (found,) = (await self.insist(lambda: find, 4)).coordinators
        others = (node for node in range(1, self._broker.nodes + 1) if node != found.node_id)
        return found.node_id if place == "coordinator" else next(others)

    async def command(self, words: list[str]) -> list[str]:
        """Execute one command; return the lines of its responses."""
        match words:
            case ["broker", *_]:
                return []
            case ["pass", seconds]:
                await anyio.sleep(float(seconds))
                return []
            case ["await", *clients]:
                return [
                    line
                    for name in clients
                    for line in self._lines_of(
                        name, await _received(self._clients[name.strip(",")])
                    )
                ]
            case ["silence", name]:
                quiet = await self._clients[name].receives_nothing(10 * self._broker.pause)
                return [] if quiet else self._lines_of(name, await _received(self._clients[name]))
            case ["group", *clients]:
                return await self._group(clients)
            case ["topic", name, count, *configs]:
                await self._topic(name, int(count), configs)
                return []
            case ["delete", name]:
                await self._delete(name)
                return []
            case ["records", place, values]:
                node = int(place.partition("/")[2]) % self._broker.nodes + 1
                written = await self.insist(
                    lambda: request("Produce", 9, [f"{place}={values}"], self._names), 9, node
                )
                assert written.responses[0].partition_responses[0].error_code == 0, written
                return []
            case ["restart"]:
                await self._open.aclose()
                self._clients.clear()
                await self._broker.restart()
                return []
            case ["&", name, api, version, *rest]:
                client = await self._client(name)
                await client.send(request(api, int(version), rest, self._names), int(version))
                if await client.receives_nothing(self._broker.pause):
                    return []
                return ["at once", *self._lines_of(name, await _received(client))]
            case [name, api, version, *rest]:
                client = await self._client(name)
                await client.send(request(api, int(version), rest, self._names), int(version))
                return self._lines_of(name, await _received(client))
        raise ValueError(f"no command: {' '.join(words)}")

    def _lines_of(self, name: str, received: tuple[Any, int]) -> list[str]:
        first, *rest = response_lines(*received, self._names)
        return [f"{name.strip(',')}: {first}", *rest]

    async def insist(self, make: Callable[[], Request[Any]], version: int, node: int = 1) -> Any:
        """Repeat a request until the node knows its group or topic."""
        client = await self._client(f"helper@{node}")
        with anyio.fail_after(_TIMEOUT):
            while True:
                await client.send(make(), version)
                response, _ = await _received(client)
                if not _NOT_YET & set(_errors(response)):
                    return response
                await anyio.sleep(0.05)

    async def _topic(self, name: str, count: int, configs: list[str]) -> None:
        nodes = self._broker.nodes
        # Every node has a copy, and they lead in turn.
        copies = ("+".join(str((n + k) % nodes + 1) for k in range(nodes)) for n in range(count))
        assigned = f"assigned={','.join(copies)}"

        def make() -> Request[Any]:
            return request("CreateTopics", 7, [f"topics={name}", assigned, *configs], self._names)

        def describe() -> Request[Any]:
            return request("Metadata", 12, [f"topics={name}"], self._names)

        def read(index: int) -> Request[Any]:
            return request("ListOffsets", 6, [f"{name}/{index}=latest"], self._names)

        (made,) = (await self.insist(make, 7)).topics
        assert made.error_code == 0, made
        self._names.made(name, made.topic_id)
        for node in range(1, self._broker.nodes + 1):
            await self.insist(describe, 12, node)
        for index in range(count):
            await self.insist(partial(read, index), 6, index % self._broker.nodes + 1)

    async def _delete(self, name: str) -> None:
        await self.insist(lambda: request("DeleteTopics", 6, [f"topics={name}"], self._names), 6)
        client = await self._client("helper@1")
        with anyio.fail_after(_TIMEOUT):
            while True:
                await client.send(request("Metadata", 12, [f"topics={name}"], self._names), 12)
                response, _ = await _received(client)
                if ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in _errors(response):
                    return
                await anyio.sleep(0.05)

    async def _group(self, names: list[str]) -> list[str]:
        """Join one member after another; then all sync."""
        for count, name in enumerate(names, 1):
            members = names[:count]
            client = await self._client(name)
            await client.send(request("JoinGroup", 9, [f"protocols=range:{name}"], self._names), 9)
            required, _ = await _received(client)
            self._names.met(required.member_id)
            for member in (name, *members[:-1]):
                words = [f"member={member}-1", f"protocols=range:{member}"]
                client = await self._client(member)
                await client.send(request("JoinGroup", 9, words, self._names), 9)
                # In this order, or another one might be there first.
                await anyio.sleep(self._broker.pause if count > 1 else 0)
            for member in members:
                joined, _ = await _received(self._clients[member])
                assert (joined.error_code, joined.generation_id) == (0, count), joined
            for member in members:
                words = [f"member={member}-1", f"generation={count}"]
                if member == names[0]:
                    words.append("assign=" + ",".join(f"{m}-1:{m}'s" for m in members))
                ask = request("SyncGroup", 5, words, self._names)
                await self._clients[member].send(ask, 5)
            for member in members:
                synced, _ = await _received(self._clients[member])
                assert synced.error_code == 0, synced
        return []


async def _received(client: Peer) -> tuple[Any, int]:
    """Return the next response and its version. Raises: TimeoutError without one."""
    with anyio.fail_after(_TIMEOUT):
        return await client.receive_with_version()


def _errors(part: Any) -> list[int]:
    """Return every error code in a response."""
    if isinstance(part, tuple | Rows):
        return [code for item in part for code in _errors(item)]
    if not attrs.has(type(part)):
        return []
    own = [part.error_code] if hasattr(part, "error_code") else []
    return own + [c for a in attrs.fields(type(part)) for c in _errors(getattr(part, a.name))]

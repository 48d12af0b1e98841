"""Every call that belongs to the loop and the process of its client; run as a program, it makes
them in a forked process. Prints one line for each: its name, and the error or the result."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import attrs

from kafkagroup import (
    Admin,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    Producer,
    Shards,
)
from kafkagroup.broker import Broker
from kafkagroup.testing import EmbeddedKafka

WORKERS = GroupProtocol("workers", "all", b"", lambda members: dict.fromkeys(members, b"x"))


@attrs.frozen
class Opened:
    """Clients that run, and calls of theirs by name."""

    consumer: Consumer
    member: GroupMember
    calls: Mapping[str, Callable[[], Any]]
    stops: Mapping[str, Callable[[], Any]]


@asynccontextmanager
async def opened(kafka: EmbeddedKafka) -> AsyncIterator[Opened]:
    """Provide clients that have work in hand, so that each could be called at once."""
    servers = kafka.bootstrap_servers
    host, _, port = servers.partition(":")
    async with (
        Consumer("t", bootstrap_servers=servers, group_id="g") as consumer,
        GroupMember("workers", WORKERS, bootstrap_servers=servers) as member,
        Election("election", bootstrap_servers=servers) as election,
        Shards("shards", 4, bootstrap_servers=servers) as shards,
        Admin(bootstrap_servers=servers) as admin,
        Producer(bootstrap_servers=servers) as producer,
        Broker.open(host, int(port)) as broker,
    ):
        await consumer.getone()
        events, records, batches = consumer.events(), aiter(consumer), consumer.batches()
        generation, leadership, assignment = (
            await anext(member),
            await anext(election),
            await anext(shards),
        )
        await producer.send("t", b"x")
        yield Opened(
            consumer,
            member,
            {
                "getone": consumer.getone,
                "__anext__": lambda: anext(consumer),
                "__aiter__": lambda: aiter(consumer),
                "records": lambda: anext(records),
                "batches": lambda: anext(batches),
                "getmany": consumer.getmany,
                "events": lambda: anext(events),
                "wait_assignment": consumer.wait_assignment,
                "subscribe": lambda: consumer.subscribe("t"),
                "unsubscribe": consumer.unsubscribe,
                "assign": lambda: consumer.assign([("t", 0)]),
                "position": lambda: consumer.position(("t", 0)),
                "commit": consumer.commit,
                "committed": consumer.committed,
                "end_offsets": lambda: consumer.end_offsets([("t", 0)]),
                "lag": consumer.lag,
                "seek": lambda: consumer.seek(("t", 0), 0),
                "seek_to_end": consumer.seek_to_end,
                "pause": lambda: consumer.pause(("t", 0)),
                "rejoin": consumer.rejoin,
                "start": consumer.start,
                "run": consumer.run,
                "member": lambda: anext(member),
                "wait_generation": member.wait_generation,
                "describe": member.describe,
                "update": lambda: member.update(WORKERS),
                "member events": lambda: anext(member.events()),
                "generation": lambda: generation.scope().__enter__(),
                "election": lambda: anext(election),
                "leadership": lambda: leadership.scope().__enter__(),
                "leaders": lambda: anext(election.leaders()),
                "election events": lambda: anext(election.events()),
                "shards": lambda: anext(shards),
                "shards events": lambda: anext(shards.events()),
                "assignment": lambda: assignment.scope().__enter__(),
                "admin": admin.list_groups,
                "producer": lambda: producer.send("t", b"x"),
                "send_nowait": lambda: producer.send_nowait("t", b"x"),
                "send_many": lambda: producer.send_many("t", [b"x"]),
                "flush": producer.flush,
                "ready": producer.ready,
                "partition_count": lambda: producer.partition_count("t"),
                "producer events": lambda: anext(producer.events()),
                "broker": broker.request_metadata,
            },
            {
                type(client).__name__: client.stop
                for client in (consumer, member, election, shards, admin, producer)
            },
        )


async def outcome(call: Callable[[], Any]) -> object:
    """Return what the call returns or raises."""
    try:
        result = call()
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        return error


async def print_outcome(name: str, call: Callable[[], Any]) -> None:
    found = await outcome(call)
    error = f"{type(found).__name__}: " if isinstance(found, Exception) else ""
    print(f"{name} | {error}{found}", flush=True)


async def call_all(clients: Opened, backend: str) -> None:
    consumer = clients.consumer
    for name, call in clients.calls.items():
        await print_outcome(name, call)
    await print_outcome("metrics", consumer.metrics)
    await print_outcome("member metrics", clients.member.metrics)
    await print_outcome("health", consumer.health)
    await print_outcome("member health", clients.member.health)
    for name, stop in clients.stops.items():
        await print_outcome(f"stop of {name}", stop)
    await print_outcome("__aexit__", lambda: consumer.__aexit__(None, None, None))

    def call_in_a_new_loop() -> None:
        for name, call in (("getone", consumer.getone), ("stop", consumer.stop)):
            anyio.run(print_outcome, f"{name} in a new loop", call, backend=backend)

    thread = threading.Thread(target=call_in_a_new_loop)
    thread.start()
    thread.join()


async def main(backend: str) -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", [str(n) for n in range(100)])
        async with opened(kafka) as clients:
            print("parent", os.getpid(), flush=True)
            pid = os.fork()
            if not pid:
                try:
                    print("child", os.getpid(), flush=True)
                    await call_all(clients, backend)
                finally:
                    os._exit(0)
            await anyio.to_thread.run_sync(os.waitpid, pid, 0)
            print("next of parent", (await clients.consumer.getone()).value, flush=True)
            await clients.consumer.commit()
            print("health of parent", clients.consumer.health(), flush=True)
            print("committed", kafka.committed("g", "t"), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[1])

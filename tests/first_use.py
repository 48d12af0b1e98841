"""A program that uses one client for the first time, and prints what its event loop imports.

Arguments: the backend, the kind of client, the address of a broker with records in topic `t`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

GROUP: dict[str, dict[str, Any]] = {
    "classic": {},
    "consumer": {"group_protocol": "consumer"},
    "thread": {"heartbeat_thread": True},
}
MEMBERS: dict[str, dict[str, Any]] = {
    "member": {},
    "member in a thread": {"heartbeat_thread": True},
}
MODULES = {"admin": "admin", "producer": "producer", "broker": "broker"}
MODULES |= dict.fromkeys(MEMBERS, "group")
"""Kind -> the module that an application imports, if it is not the consumer's."""

imported: dict[str, list[str]] = {}
phase = "constructing"


class Recorder:
    """Records what the thread of the loop imports, in `sys.meta_path`."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if threading.get_ident() == self.thread:
            imported.setdefault(phase, []).append(name)


def enter(name: str) -> None:
    global phase
    phase = name


@asynccontextmanager
async def running(client: Any) -> AsyncIterator[Any]:
    enter("starting")
    async with client as opened:
        enter("running")
        yield opened
        enter("stopping")


async def use(kind: str, clients: Any, address: str) -> None:
    """Start, use and stop a client."""
    if kind == "admin":
        admin = clients.Admin(bootstrap_servers=address)
        async with running(admin):
            await admin.list_groups()
    elif kind == "broker":
        host, port = address.split(":")
        async with running(clients.Broker.open(host, int(port))) as broker:
            await broker.request_metadata(["t"])
    elif kind == "producer":
        producer = clients.Producer(bootstrap_servers=address)
        async with running(producer):
            await producer.send("other", b"v", key=b"k")
    elif kind in MEMBERS:
        protocol = clients.GroupProtocol("x", "p", b"", lambda ids: dict.fromkeys(ids, b""))
        member = clients.GroupMember(kind, protocol, bootstrap_servers=address, **MEMBERS[kind])
        async with running(member):
            await anext(member)
    else:
        group = {"group_id": f"{kind}-{backend}"}
        options = group | GROUP[kind] if kind in GROUP else {}
        consumer = clients.Consumer("t", bootstrap_servers=address, **options)
        async with running(consumer):
            await consumer.getone()
            assert consumer.health()
            if kind in GROUP:
                await consumer.commit()


backend, kind, address = sys.argv[1:]
clients = import_module(f"kafkagroup.{MODULES.get(kind, 'consumer')}")
loops = import_module(backend)
sys.meta_path.insert(0, Recorder())
if backend == "trio":
    loops.run(use, kind, clients, address)
else:
    loops.run(use(kind, clients, address))
print(json.dumps(imported))

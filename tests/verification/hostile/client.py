"""The attacked client, in a separate process: how it ends, and its use of memory and of the loop.

    python -m tests.verification.hostile.client

reads one job per line, forks for each, and writes one line of result. A consumer of a correct
broker runs in the same loop as the attacked client: it must continue, on the same connections.
Memory counts from that consumer's first record, so the growth is caused by the attack. Linux only.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from kafkagroup import Consumer
from kafkagroup._text import escaped
from kafkagroup.broker import Broker
from kafkagroup.errors import KafkaGroupError
from kafkagroup.transport import dialing
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.sasl.oauthbearer import Token
from kafkagroup.transport.security import Security
from kafkagroup.types import Record, TopicPartition
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.schema import Request

__all__ = ["CLIENTS", "main"]

TP = TopicPartition("t", 0)
BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
METADATA = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))

REQUESTS: dict[str, Request[Any]] = {
    type(request).__name__.removesuffix("Request"): request
    for request in (
        METADATA,
        ListGroupsRequest(),
        FindCoordinatorRequest(coordinator_keys=("g",)),
        DescribeGroupsRequest(groups=("g",)),
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0),
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            member_id="m",
            protocol_type="consumer",
            protocols=(),
        ),
        SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=()),
        OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),)),
        OffsetCommitRequest(group_id="g", topics=()),
        ListOffsetsRequest(replica_id=-1, topics=()),
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=()),
        ProduceRequest(acks=1, timeout_ms=1_000, topic_data=()),
    )
}
"""One of each kind that may have a large answer, by the name of its API."""

TIMEOUT = 20.0
"""Seconds until a client counts as hanging: longer than any deadline that a job gives it. Clients
that are expected to retry without end have a shorter one."""

_TICK = 0.001
"""Seconds from one look at the clock to the next, when the lateness of the loop is measured."""

Client = Callable[[int, dict[str, Any]], Awaitable[object]]
"""Port of the hostile broker, options of the job -> what the application gets."""


# ---------------------------------------------------------------- what an application does


def _options(job: dict[str, Any]) -> ClientOptions:
    return ClientOptions(
        request_timeout=job.get("request_timeout", 10.0),
        connect_timeout=job.get("connect_timeout", 10.0),
        security=_security(job.get("security")),
    )


def _security(given: dict[str, Any] | None) -> Security | None:
    if given is None:
        return None
    if token := given.get("sasl_oauthbearer_token"):
        given = {**given, "sasl_oauthbearer_token": lambda: Token(token)}
    return Security(**given)


async def open_it(port: int, job: dict[str, Any]) -> object:
    async with Broker.open("127.0.0.1", port, options=_options(job)):
        return "opened"


async def open_many(port: int, job: dict[str, Any]) -> object:
    """Open many connections at once, and count their results."""
    ends: Counter[str] = Counter()

    async def one() -> None:
        ends[await _end_of(open_it(port, job), port, job)] += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(job["count"]):
            tasks.start_soon(one)
    return "; ".join(f"{n} x {end}" for end, n in sorted(ends.items()))


async def ask_metadata(port: int, job: dict[str, Any]) -> object:
    async with Broker.open("127.0.0.1", port, options=_options(job)) as broker:
        response = await broker.request(METADATA)
        return f"{len(response.brokers)} brokers, {len(response.topics)} topics"


async def beat_twice(port: int, job: dict[str, Any]) -> object:
    async with Broker.open("127.0.0.1", port, options=_options(job)) as broker:
        codes = [(await broker.request(BEAT)).error_code for _ in range(2)]
        # What came behind the responses is read before the connection is asked again.
        return f"heartbeats {codes}"


async def ask(port: int, job: dict[str, Any]) -> object:
    """Return whether one request gets a response."""
    async with Broker.open("127.0.0.1", port, options=_options(job)) as broker:
        response = await broker.request(REQUESTS[job["request"]])
        # Dropped here: the memory that an application keeps is not measured.
        return type(response).__name__


async def find(port: int, job: dict[str, Any]) -> object:
    async with Broker.open("127.0.0.1", port, options=_options(job)) as broker:
        return await broker.request(FindCoordinatorRequest(coordinator_keys=("g",)))


async def fetch(port: int, job: dict[str, Any]) -> object:
    async with Broker.open("127.0.0.1", port, options=_options(job)) as broker:
        return await broker.fetch_messages({TP: 0})


def _consumer(port: int, job: dict[str, Any], *topics: str) -> Consumer:
    options = {"fetch_max_wait_ms": 50, "request_timeout_ms": 10_000, "close_timeout": 1.0}
    return Consumer(
        *topics, bootstrap_servers=f"127.0.0.1:{port}", **{**options, **job.get("consumer", {})}
    )


def _place(record: Record) -> str:
    return f"{escaped(record.topic, 50)}/{record.partition} at {record.offset}"


async def consume(port: int, job: dict[str, Any]) -> object:
    """Return the first record of t/0."""
    async with _consumer(port, job) as consumer:
        await consumer.assign([TP])
        return _place(await consumer.getone())


async def consume_at(port: int, job: dict[str, Any]) -> object:
    """Return the first record of t/0 from an offset on."""
    async with _consumer(port, job) as consumer:
        await consumer.assign([TP])
        consumer.seek(TP, job["offset"])
        return _place(await consumer.getone())


async def consume_both(port: int, job: dict[str, Any]) -> object:
    """Return at least 20 records of t/1, and the errors of t/0."""
    other = TopicPartition("t", 1)
    records, errors = 0, []
    async with _consumer(port, job) as consumer:
        await consumer.assign([TP, other])
        while records < 20 or len(errors) < job["errors"]:
            try:
                records += (await consumer.getone()).partition == 1
            except KafkaGroupError as error:
                errors.append(f"{type(error).__name__}: {error}")
    return "; ".join(("t/1 goes on", *errors))


async def join(port: int, job: dict[str, Any]) -> object:
    """Return the first record as a member of a group."""
    async with _consumer(
        port, {"consumer": {"group_id": "g", **job.get("consumer", {})}}, "t"
    ) as c:
        return _place(await c.getone())


async def match(port: int, job: dict[str, Any]) -> object:
    """Return the first record of all topics."""
    async with _consumer(port, {"consumer": {"pattern": "(?s).*", **job.get("consumer", {})}}) as c:
        return _place(await c.getone())


async def commit_all(port: int, job: dict[str, Any]) -> object:
    """Commit a record of each partition."""
    options = {"pattern": "(?s).*", "enable_auto_commit": False, **job["consumer"]}
    async with _consumer(port, {"consumer": options}) as consumer:
        taken = 0
        while taken < job["records"]:
            taken += sum(map(len, (await consumer.getmany(timeout=1.0)).values()))
        await consumer.commit()
        return f"{taken} committed"


async def grab_memory(_: int, job: dict[str, Any]) -> object:
    """Allocate the given amount and free it: the measurement must show it."""
    return f"{len(b'x' * (job['mebibytes'] * 2**20)) >> 20} MiB"


CLIENTS: dict[str, Client] = {
    client.__name__: client
    for client in (
        open_it,
        open_many,
        ask,
        ask_metadata,
        beat_twice,
        find,
        fetch,
        consume,
        consume_at,
        consume_both,
        join,
        match,
        commit_all,
        grab_memory,
    )
}


# ---------------------------------------------------------------- how it ends


async def _end_of(client: Awaitable[object], port: int, job: dict[str, Any]) -> str:
    """Return the result or error as text, without the port, which differs in each run."""
    patience = job.get("patience", TIMEOUT)
    try:
        end = f"no end within {patience:g} s"
        with anyio.move_on_after(patience):
            end = str(await client)
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
    return end.replace(f"127.0.0.1:{port}", "HOSTILE")


class _LogLines(logging.Handler):
    """Keeps the library's log at every level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


_CONNECTIONS = 4
"""Of one that seeks: the bootstrap address, offsets of logs, long polls, immediate fetches."""


class _Bystander:
    """A consumer of another broker in the same loop."""

    def __init__(self) -> None:
        self.records = 0
        self.longest = 0.0
        self.dials = 0

    async def run(self, port: int, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        connect = dialing.connect

        async def counting(family: int, address: Any, source: Any) -> Any:
            self.dials += address[1] == port
            return await connect(family, address, source)

        dialing.connect = counting
        good = f"127.0.0.1:{port}"
        async with Consumer(bootstrap_servers=good, fetch_max_wait_ms=5) as consumer:
            await consumer.assign([TP])
            await consumer.getone()
            with anyio.fail_after(TIMEOUT):
                while self.dials < _CONNECTIONS:
                    await anyio.sleep(0.001)
                    consumer.seek(TP, 0)
                    await consumer.getone()
            self.records, self.dials = 1, 0
            task_status.started()
            last = time.monotonic()
            while True:
                await anyio.sleep(0.001)
                consumer.seek(TP, 0)
                await consumer.getone()
                self.records += 1
                now = time.monotonic()
                self.longest = max(self.longest, now - last)
                last = now


class _Ticker:
    """Another task of the loop, scheduled for every millisecond, which records its delays."""

    def __init__(self) -> None:
        self.latest = 0.0

    async def run(self) -> None:
        while True:
            due = time.monotonic() + _TICK
            await anyio.sleep(_TICK)
            self.latest = max(self.latest, time.monotonic() - due)


def _rss(what: str) -> int:
    """Return the bytes of memory of this process (VmRSS), or its maximum (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise LookupError(what)


def _forget_peak() -> int:
    """Reset the peak (VmHWM); return the bytes of memory in use."""
    Path("/proc/self/clear_refs").write_text("5")
    return _rss("VmRSS")


async def _attacked(job: dict[str, Any]) -> dict[str, Any]:
    log = _LogLines()
    logger = logging.getLogger("kafkagroup")
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    bystander = _Bystander()
    async with anyio.create_task_group() as tasks:
        await tasks.start(
            lambda *, task_status: bystander.run(job["good"], task_status=task_status)
        )
        before = bystander.records
        baseline = _forget_peak()
        ticker = _Ticker()
        tasks.start_soon(ticker.run)
        await anyio.sleep(0.01)
        ticker.latest = 0.0
        started = time.monotonic()
        end = await _end_of(CLIENTS[job["client"]](job["port"], job), job["port"], job)
        seconds = time.monotonic() - started
        await anyio.sleep(2 * _TICK)  # the duration of the end itself
        late = ticker.latest
        grown = _rss("VmHWM") - baseline
        # One more whole round that began after the end: it was not merely about to fail.
        wanted = bystander.records + 2
        with anyio.move_on_after(TIMEOUT):
            while bystander.records < wanted:
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    return {
        "end": end,
        "grown": grown,
        "seconds": seconds,
        "delivered": bystander.records - before,
        "redialled": bystander.dials,
        "stall": bystander.longest,
        "late": late,
        "log": log.lines,
    }


def main() -> None:
    """Serve jobs until the input ends. The first one runs in this process, to warm it up."""
    _run(sys.stdin.readline())
    gc.freeze()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _run(line)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps({"died": os.waitstatus_to_exitcode(status)}), flush=True)


def _run(line: str) -> None:
    job = json.loads(line)
    result = anyio.run(_attacked, job, backend=job.get("backend", "asyncio"))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

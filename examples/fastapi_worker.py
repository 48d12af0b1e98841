"""Run a consumer inside a web application of FastAPI: `fastapi_worker.py BROKER TOPIC GROUP`.

GET /health returns the owned partitions, the number of processed records, and its health:
503 with the reasons when it is not a member, or a partition is stalled. Ctrl-C or SIGTERM finishes
the record in flight, commits, and leaves the group.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Response

from kafkagroup import Consumer, Record


class Worker:
    """The consumer, and the task that takes its records."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.processed = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Up to the yield at the start of the application, the rest at its end."""
        async with self.consumer:
            self._task = asyncio.create_task(self._work())
            yield
            await self.consumer.stop()  # the loop over its records ends by itself
            await self._task

    async def _work(self) -> None:
        async for record in self.consumer:
            await self.process(record)
            self.processed += 1

    async def process(self, record: Record) -> None:
        """What your program does with a record."""

    async def health(self, response: Response) -> dict[str, object]:
        health = self.consumer.health()
        ended = self._task is None or self._task.done()
        ok = health.healthy and not ended
        response.status_code = 200 if ok else 503
        owned = sorted(f"{tp.topic}/{tp.partition}" for tp in self.consumer.assignment())
        reasons = [str(finding) for finding in health.findings] + ["the task ended"] * ended
        return {"ok": ok, "reasons": reasons, "assignment": owned, "processed": self.processed}


def application(bootstrap: str, topic: str, group: str) -> FastAPI:
    worker = Worker(Consumer(topic, bootstrap_servers=bootstrap, group_id=group))
    app = FastAPI(lifespan=worker.lifespan)
    app.add_api_route("/health", worker.health)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--port", type=int, default=8080, help="where the application listens")
    options = parser.parse_args()
    app = application(options.bootstrap, options.topic, options.group)
    uvicorn.run(app, host="127.0.0.1", port=options.port)

"""One member of the demo's group, a process of its own: `demo_member.py NAME BROKER TOPIC GROUP`.

It prints its events as JSON, one a line. It leaves the group when its standard input is closed,
which the operating system also does if the demo is killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import anyio

from kafkagroup import Consumer, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor

WORK_SECONDS = 0.002
"""How long the processing of a record takes."""
SESSION_TIMEOUT_MS = 6_000
"""The least that brokers accept by default."""


def report(event: str, **details: object) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


def assigned(partitions: Sequence[TopicPartition]) -> None:
    report("assigned", partitions=[tp.partition for tp in partitions])


def revoked(partitions: Sequence[TopicPartition]) -> None:
    report("revoked", partitions=[tp.partition for tp in partitions])


async def main(name: str, bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id=f"demo-{name}",
        assignors=[cooperative_sticky_assignor],  # partitions that do not move are still consumed
        session_timeout_ms=SESSION_TIMEOUT_MS,
        on_partitions_assigned=assigned,
        on_partitions_revoked=revoked,
        on_partitions_lost=revoked,
    )

    async def leave_at_end_of_input() -> None:
        await anyio.wait_readable(sys.stdin.fileno())
        await consumer.stop()

    report("joining")
    async with consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(leave_at_end_of_input)
        async for record in consumer:
            await anyio.sleep(WORK_SECONDS)
            assert isinstance(record.value, bytes)
            report("processed", record=[int(record.value), record.partition, record.offset])
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    name, bootstrap, topic, group = sys.argv[1:]
    anyio.run(main, name, bootstrap, topic, group)

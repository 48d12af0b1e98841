"""A subclass of kafka-python's base coordinator, moved to asyncio:
`coming_from_kafka_python.py BROKER GROUP`.

The subclass is unchanged: its protocols, how the leader assigns, what it does with its assignment.
Blocking calls are awaited, and heartbeats need no polling. Ctrl-C leaves the group.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import anyio

from kafkagroup import open_signal_receiver
from kafkagroup.compat.kafka_python import BaseCoordinator, KafkaClient, Metrics

JOBS = ("bills", "mails", "reports")


class Workers(BaseCoordinator):
    """Shares the jobs among all members."""

    def protocol_type(self) -> str:
        return "workers"

    def group_protocols(self) -> Sequence[tuple[str, bytes]]:
        return [("in-turn", b"")]

    def _perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> Mapping[str, str]:
        names = sorted(member for member, _ in members)
        return {name: ",".join(JOBS[i :: len(names)]) for i, name in enumerate(names)}

    def _on_join_complete(
        self, generation: int, member_id: str, protocol: str, member_assignment_bytes: bytes
    ) -> None:
        print(f"my jobs: {member_assignment_bytes.decode() or 'none'}", flush=True)


async def work(workers: Workers) -> None:
    while True:
        await workers.ensure_active_group()
        assert workers.current is not None
        with workers.current.scope():  # cancelled when the group rebalances
            await anyio.sleep_forever()


async def main(bootstrap: str, group: str) -> None:
    metrics = Metrics()
    client = KafkaClient(bootstrap_servers=bootstrap)
    # kafka-python's 3 s are for real groups; an example is to be quick.
    configs = {"group_id": group, "heartbeat_interval_ms": 100}
    async with Workers(client, metrics, **configs) as workers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, workers)
            with open_signal_receiver() as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()
        joins = next(m for name, m in metrics.metrics.items() if name.name == "join-rate")
        print(f"joined: {joins.value() > 0}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("group")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.group)

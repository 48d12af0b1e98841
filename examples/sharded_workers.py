"""Divide shards of work: run `sharded_workers.py BROKER GROUP NAME` in several processes.

Each process prints the members and its shards whenever they change. Ctrl-C leaves the group; its
shards are assigned to the other processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import anyio

from kafkagroup import open_signal_receiver
from kafkagroup.coordination import ShardAssignment, Shards


async def work(shard: int, token: int) -> None:
    """Work that only the shard's owner may do. The system that it writes to should refuse lower
    tokens."""
    await anyio.sleep_forever()


def show(assignment: ShardAssignment) -> None:
    def names(values: Iterable[bytes]) -> str:
        return " ".join(sorted(value.decode() for value in values))

    for value in assignment.left.values():
        print(f"left: {value.decode()}", flush=True)
    for value in assignment.joined.values():
        print(f"joined: {value.decode()}", flush=True)
    mine = " ".join(map(str, assignment.mine))
    print(f"here: {names(assignment.members.values())}; my shards: {mine}", flush=True)


async def stop_on_signal(shards: Shards) -> None:
    with open_signal_receiver() as signals:
        async for _ in signals:
            await shards.stop()


async def main(bootstrap: str, group: str, name: str, count: int, session_timeout_ms: int) -> None:
    shards = Shards(
        group,
        count,
        name.encode(),
        bootstrap_servers=bootstrap,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 10,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal, shards)
        async with shards:
            async for assignment in shards:
                show(assignment)
                with assignment.scope():
                    async with anyio.create_task_group() as workers:
                        for shard in assignment.mine:
                            workers.start_soon(work, shard, assignment.token)
                    # A member without shards waits here too.
                    await assignment.over.wait()
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("group")
    parser.add_argument("name", help="the name of this process")
    parser.add_argument("--shards", type=int, default=8, help="the same number in every process")
    parser.add_argument(
        "--session-timeout-ms", type=int, default=6_000, help="how long a dead process keeps shards"
    )
    options = parser.parse_args()
    anyio.run(
        main,
        options.bootstrap,
        options.group,
        options.name,
        options.shards,
        options.session_timeout_ms,
    )

"""Elect one leader: run `leader_election.py BROKER GROUP NAME` in several processes.

Each process prints the leader whenever it changes. Stop or kill the leader: another process becomes
the leader, with a higher fencing token. Ctrl-C leaves the group.
"""

from __future__ import annotations

import argparse

import anyio

from kafkagroup import open_signal_receiver
from kafkagroup.coordination import Election


async def lead(token: int) -> None:
    """Work that only the leader may do. The system that it writes to should refuse lower tokens."""
    print(f"leading, token {token}", flush=True)
    await anyio.sleep_forever()


async def watch(election: Election) -> None:
    async for leader in election.leaders():
        print(f"leader is {leader.value.decode()}, token {leader.token}", flush=True)


async def stop_on_signal(election: Election) -> None:
    with open_signal_receiver() as signals:
        async for _ in signals:
            await election.stop()


async def main(bootstrap: str, group: str, name: str, session_timeout_ms: int) -> None:
    election = Election(
        group,
        name.encode(),
        bootstrap_servers=bootstrap,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 10,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal, election)
        async with election:
            tasks.start_soon(watch, election)
            async for leadership in election:
                with leadership.scope():
                    await lead(leadership.token)
                print("not leading any more", flush=True)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("group")
    parser.add_argument("name", help="the name of this process")
    parser.add_argument(
        "--session-timeout-ms", type=int, default=6_000, help="how long a dead leader stays elected"
    )
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.group, options.name, options.session_timeout_ms)

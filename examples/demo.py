"""A consumer group in a live view: `make demo`, or `make demo BROKER=host:port`.

Three members start, a fourth joins, one is killed with SIGKILL, one leaves. Every record has a
sequence number. The exit code is 0 if each record was processed, and only those that the killed
member had processed and not committed were processed twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import anyio
import attrs
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from demo_account import Account, Processed, Window, compare, uncommitted
from demo_topic import Topic, temporary_topic
from demo_view import Board, Member, State, show_live
from rich.console import Console

from kafkagroup import Consumer, KafkaGroupError, TopicPartition
from kafkagroup.testing import EmbeddedKafka

PARTITIONS = 12
RATE = 200
"""Records a second."""
TICK = 0.05
"""Seconds between two batches of the producer."""
PAUSE = 2.0
"""Default of `--pause`: seconds between one step and the next."""
STEP_TIMEOUT = 15.0
"""Seconds that a step may take: after a kill, the session timeout alone is 6."""
MAX_LINE = 65_536
"""Longest event of a member, in bytes."""


class DemoFailed(Exception):
    """A member process exited with an error, or printed an unknown event."""


@attrs.frozen
class Options:
    """The options of the command line."""

    bootstrap: str
    title: str
    pause: float


class Demo:
    """The producer, the member processes, and the events that they print."""

    def __init__(
        self, options: Options, topic: Topic, board: Board, tasks: TaskGroup, errors: IO[bytes]
    ) -> None:
        self._bootstrap = options.bootstrap
        self._pause = options.pause
        self._topic = topic
        self._board = board
        self._tasks = tasks
        self._errors = errors
        self._group = topic.name
        self._processes: dict[str, Process] = {}
        self._exited: dict[str, anyio.Event] = {}
        """Set when a member's process has exited and all its events are read."""
        self._produced: list[int] = []
        """Sequence numbers of the acknowledged records."""
        self._processed: dict[str, list[Processed]] = {}
        """Member -> its records, with duplicates."""
        self._processed_numbers: set[int] = set()
        """Sequence numbers of the processed records."""
        self._windows: tuple[Window, ...] = ()
        """What killed members had processed and not committed."""

    async def run(self) -> Account:
        """Run all steps; return the account of the records. Raises: DemoFailed."""
        board = self._board
        producing, produced = anyio.CancelScope(), anyio.Event()
        self._tasks.start_soon(self._produce, producing, produced)
        try:
            await self._start("three members start", "A", "B", "C")
            await anyio.sleep(self._pause)
            await self._start("D joins", "D")
            # Commits are 5 s apart: after this pause some processed records are not committed.
            await anyio.sleep(2 * self._pause)
            await self._kill("B")
            await anyio.sleep(self._pause)
            await self._leave("C", cause="C leaves")
            await anyio.sleep(self._pause / 2)
            producing.cancel()
            # Otherwise the members could leave before the last records are in the log.
            await produced.wait()
            board.log("the producer stops")
            await self._wait_until(
                lambda: len(self._processed_numbers) >= len(self._produced),
                "the last records are processed",
            )
            for name in [m.name for m in board.members.values() if m.in_group]:
                await self._leave(name)
        except TimeoutError as error:
            # The account still lists the missing records.
            board.log(f"timed out waiting until {error}")
            board.failed = True
        finally:
            producing.cancel()
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
        records = [record for processed in self._processed.values() for record in processed]
        return compare(self._produced, records, self._windows)

    # ------------------------------------------------------------ the producer

    async def _produce(self, scope: anyio.CancelScope, ended: anyio.Event) -> None:
        """Produce until `scope` is cancelled, then set `ended`: all acknowledged records are in
        `_produced`."""
        sequence = 0
        with scope:
            while True:
                values: dict[int, list[bytes]] = {}
                numbers = range(sequence, sequence + round(RATE * TICK))
                for number in numbers:
                    values.setdefault(number % PARTITIONS, []).append(b"%d" % number)
                with anyio.CancelScope(shield=True):
                    # A cancelled request might have appended records that are not counted.
                    await self._topic.produce(values)
                self._produced += numbers
                self._board.produced = len(self._produced)
                sequence = numbers.stop
                await anyio.sleep(TICK)
        ended.set()

    # ------------------------------------------------------------ the steps

    async def _start(self, cause: str, *names: str) -> None:
        """Start members, and wait until they and the others own all partitions."""
        board = self._board
        board.log(f"{cause}, each a process" if len(names) > 1 else cause)
        for name in names:
            arguments = (name, self._bootstrap, self._topic.name, self._group)
            process = await anyio.open_process(
                [sys.executable, str(Path(__file__).with_name("demo_member.py")), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its members
            )
            self._processes[name] = process
            self._exited[name] = anyio.Event()
            self._processed[name] = []
            board.members[name] = Member(name, process.pid)
        for name in names:
            self._tasks.start_soon(self._follow, board.members[name], cause)
        await self._wait_until(lambda: bool(board.rebalances) and board.is_stable(), cause)

    async def _kill(self, name: str) -> None:
        """Kill a member, and wait until the others own its partitions."""
        board, member = self._board, self._board.members[name]
        self._processes[name].kill()
        member.state = State.KILLED
        member.partitions = frozenset()
        board.begin(f"{name} is killed")
        board.log(f"SIGKILL for {name}: the group notices when its session times out")
        board.update()
        await self._exited[name].wait()
        # Before the session times out: the next owners start at these offsets.
        processed = self._processed[name]
        committed = await self._committed({record.partition for record in processed})
        windows = uncommitted(processed, committed)
        self._windows += windows
        board.log(f"{name} had {sum(map(len, windows))} records processed and not committed")
        await self._wait_until(board.is_stable, f"the partitions of {name} have owners again")

    async def _leave(self, name: str, cause: str | None = None) -> None:
        """Have a member leave. With a `cause`, wait until the others own its partitions."""
        board, member = self._board, self._board.members[name]
        member.state = State.LEAVING
        if cause is not None:
            board.begin(cause)
            board.log(cause)
        process = self._processes[name]
        assert process.stdin is not None
        await process.stdin.aclose()
        await self._wait_until(self._exited[name].is_set, f"{name} leaves")
        if cause is not None:
            await self._wait_until(board.is_stable, f"the partitions of {name} have owners again")

    async def _wait_until(self, is_met: Callable[[], bool], condition: str) -> None:
        """Check `is_met` at each change of the board. Raises: TimeoutError with `condition`."""
        with anyio.move_on_after(STEP_TIMEOUT):
            while not is_met():
                await self._board.changed.wait()
            return
        raise TimeoutError(condition)

    async def _committed(self, partitions: set[int]) -> dict[int, int | None]:
        """Return the group's committed offsets; None for a partition without one."""
        tps = [TopicPartition(self._topic.name, partition) for partition in partitions]
        # Without a subscription, this consumer does not join the group.
        async with Consumer(bootstrap_servers=self._bootstrap, group_id=self._group) as observer:
            offsets = await observer.committed(tps)
        return {tp.partition: found.offset if found else None for tp, found in offsets.items()}

    # ------------------------------------------------------------ events of the members

    async def _follow(self, member: Member, cause: str) -> None:
        """Apply a member's events until its process exits; `cause` is that of its first rebalance.

        Raises: DemoFailed.
        """
        process = self._processes[member.name]
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                line = await lines.receive_until(b"\n", MAX_LINE)
                self._on_event(member, cause, json.loads(line))
        except (anyio.EndOfStream, anyio.IncompleteRead):
            pass  # the last line of a killed member may be incomplete
        code = await process.wait()
        if member.state is State.LEAVING and code == 0:
            member.state = State.LEFT
            self._board.log(f"{member.name} has left")
        elif member.state is not State.KILLED:
            raise DemoFailed(f"{member.name} ended with exit code {code}")
        member.partitions = frozenset()
        self._exited[member.name].set()
        self._board.update()

    def _on_event(self, member: Member, cause: str, event: dict[str, object]) -> None:
        board = self._board
        match event:
            case {"event": "processed", "record": [int(n), int(partition), int(offset)]}:
                self._processed[member.name].append(Processed(n, partition, offset))
                self._processed_numbers.add(n)
                member.processed += 1
                board.processed = len(self._processed_numbers)
            case {"event": "joining"}:
                board.begin(cause)
                member.state = State.JOINING
            case {"event": "assigned", "partitions": list(partitions)} if member.in_group:
                member.partitions |= frozenset(partitions)
                member.state = State.OWNING
            case {"event": "revoked", "partitions": list(partitions)}:
                member.partitions -= frozenset(partitions)
                if member.state is State.OWNING:
                    member.state = State.REBALANCING
            case _ if member.in_group:
                raise DemoFailed(f"{member.name} printed an unknown event: {event}")
        board.update()


NEXT = """
What to look at next:
  examples/demo_member.py      the consumer that each member runs
  docs/getting-started.md      your first consumer, in three shells
  docs/delivery.md             why records are duplicated, and never lost
  docs/rebalancing.md          what a rebalance does, step by step"""


def summary(board: Board, account: Account) -> str:
    """Return the text that follows the last step: the counts, and how long each rebalance took."""
    limit = f"of {account.uncommitted} that B had processed and not committed when it was killed"
    lines = [
        "",
        f"records produced     {account.produced:6}",
        f"        processed    {account.processed:6}",
        f"        lost         {len(account.lost):6}",
        f"        duplicated   {len(account.duplicates):6}   {limit}",
        f"        unexplained  {len(account.unexplained):6}   duplicates of other records",
        "",
        "rebalance                length   partitions without an owner",
    ]
    for r in board.rebalances:
        if r.ended is None:
            lines.append(f"{r.cause:20} did not end")
        else:
            stopped = r.began if r.stopped is None else r.stopped
            lines.append(f"{r.cause:20} {r.ended - r.began:8.2f} s   {r.ended - stopped:.2f} s")
    return "\n".join(lines)


async def run(options: Options, console: Console, errors: IO[bytes]) -> bool:
    """Run the demo on a broker; return whether each step ended in time and each record is
    explained.

    Raises: DemoFailed, KafkaGroupError, TimeoutError, also in groups.
    """
    name = f"kafkagroup-demo-{uuid.uuid4().hex[:8]}"
    board = Board(options.title, PARTITIONS, plain=not console.is_terminal)
    if board.plain:
        print(board.title)
    async with temporary_topic(options.bootstrap, name, PARTITIONS) as topic:
        board.log(f"topic and group are {name}, {RATE} records/s to {PARTITIONS} partitions")
        async with anyio.create_task_group() as tasks:
            if not board.plain:
                tasks.start_soon(show_live, board, console)
            demo = Demo(options, topic, board, tasks, errors)
            account = await demo.run()
            tasks.cancel_scope.cancel()
    print(summary(board, account))
    print(NEXT)
    return not (board.failed or account.lost or account.unexplained)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker", nargs="?", help="host:port; without it, the embedded broker")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live view")
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds between the steps")
    given = parser.parse_args(arguments)
    console = Console(force_terminal=False) if given.plain else Console()
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        bootstrap, broker = given.broker, given.broker
        if not bootstrap:
            bootstrap = stack.enter_context(EmbeddedKafka()).bootstrap_servers
            broker = "the embedded broker"
        options = Options(bootstrap, f"kafkagroup demo on {broker}", given.pause)
        succeeded = False
        try:
            succeeded = anyio.run(run, options, console, errors)
        except* KeyboardInterrupt:
            print("interrupted")
        except* (DemoFailed, KafkaGroupError, TimeoutError) as group:
            print(*(f"failed: {error}" for error in leaves(group)), sep="\n")
        if not succeeded:
            errors.seek(0)
            sys.stderr.write(errors.read().decode(errors="replace"))
    return 0 if succeeded else 1


def leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    """Return the errors in a group, and in the groups within it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())

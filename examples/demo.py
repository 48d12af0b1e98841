"""A consumer group in a live view: `make demo`, or `make demo BROKER=host:port`.

Three members start, a fourth joins, one is killed without a word, one leaves. Every record carries
a sequence number, and the exit code is 0 only if each one was processed and none came twice but
those that the killed member had processed and not committed.
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
from demo_account import Account, Processed, Window, settle, uncommitted
from demo_topic import Topic, temporary_topic
from demo_view import Board, Member, State, show_live
from rich.console import Console

from kafkagroup import Consumer, KafkaGroupError, TopicPartition
from kafkagroup.testing import EmbeddedKafka

PARTITIONS = 12
RATE = 200
"""Records a second."""
TICK = 0.05
PAUSE = 2.0
"""Seconds of quiet between one act and the next, unless told otherwise."""
PATIENCE = 15.0
"""Seconds that anything may take; a rebalance after a kill takes 6 for the session alone."""
MAX_LINE = 65_536


class DemoFailed(Exception):
    """Something did not come about in time, or a member process went wrong."""


@attrs.frozen
class Options:
    """What the command line says."""

    bootstrap: str
    title: str
    pause: float


class Demo:
    """The producer, the member processes, and what they have told."""

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
        self._gone: dict[str, anyio.Event] = {}
        """Set when all that a member has told is read."""
        self._produced: list[int] = []
        self._processed: dict[str, list[Processed]] = {}
        self._seen: set[int] = set()
        self._windows: tuple[Window, ...] = ()

    async def play(self) -> Account:
        """The whole story. Raises: DemoFailed."""
        board = self._board
        producing, produced = anyio.CancelScope(), anyio.Event()
        self._tasks.start_soon(self._produce, producing, produced)
        try:
            await self._start("three members start", "A", "B", "C")
            await anyio.sleep(self._pause)
            await self._start("D joins", "D")
            # Commits are 5 s apart: this long after the last one there is something to repeat.
            await anyio.sleep(2 * self._pause)
            await self._kill("B")
            await anyio.sleep(self._pause)
            await self._leave("C", cause="C leaves")
            await anyio.sleep(self._pause / 2)
            producing.cancel()
            # Members that leave while the last records are still on their way would miss them.
            await produced.wait()
            board.log("the producer stops")
            await self._until(
                lambda: len(self._seen) >= len(self._produced), "the last records are processed"
            )
            for name in [m.name for m in board.members.values() if m.in_group]:
                await self._leave(name)
        except TimeoutError as error:
            # What is missing is in the account; the message says what was waited for.
            board.log(f"gave up waiting: {error}")
            board.failed = True
        finally:
            producing.cancel()
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
        records = [record for told in self._processed.values() for record in told]
        return settle(self._produced, records, self._windows)

    # ------------------------------------------------------------ the producer

    async def _produce(self, scope: anyio.CancelScope, ended: anyio.Event) -> None:
        """Until `scope` is cancelled; `ended` is set when all that was sent is counted."""
        sequence = 0
        with scope:
            while True:
                values: dict[int, list[bytes]] = {}
                numbers = range(sequence, sequence + round(RATE * TICK))
                for number in numbers:
                    values.setdefault(number % PARTITIONS, []).append(b"%d" % number)
                with anyio.CancelScope(shield=True):
                    # If this were cancelled, the records might or might not be in the log.
                    await self._topic.produce(values)
                self._produced += numbers
                self._board.produced = len(self._produced)
                sequence = numbers.stop
                await anyio.sleep(TICK)
        ended.set()

    # ------------------------------------------------------------ the acts

    async def _start(self, cause: str, *names: str) -> None:
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
            self._gone[name] = anyio.Event()
            self._processed[name] = []
            board.members[name] = Member(name, process.pid)
        for name in names:
            self._tasks.start_soon(self._follow, board.members[name], cause)
        await self._until(lambda: bool(board.rebalances) and board.settled(), cause)

    async def _kill(self, name: str) -> None:
        board, member = self._board, self._board.members[name]
        self._processes[name].kill()
        member.state = State.KILLED
        member.partitions = frozenset()
        board.begin(f"{name} is killed")
        board.log(f"SIGKILL for {name}: the group notices when its session times out")
        board.update()
        await self._gone[name].wait()
        # The group cannot have noticed yet: these are the offsets that the next owner starts at.
        told = self._processed[name]
        committed = await self._committed({record.partition for record in told})
        windows = uncommitted(told, committed)
        self._windows += windows
        board.log(f"{name} had {sum(map(len, windows))} records processed and not committed")
        await self._until(board.settled, f"the partitions of {name} have owners again")

    async def _leave(self, name: str, cause: str | None = None) -> None:
        board, member = self._board, self._board.members[name]
        member.state = State.LEAVING
        if cause is not None:
            board.begin(cause)
            board.log(cause)
        process = self._processes[name]
        assert process.stdin is not None
        await process.stdin.aclose()
        await self._until(self._gone[name].is_set, f"{name} leaves")
        if cause is not None:
            await self._until(board.settled, f"the partitions of {name} have owners again")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Raises: TimeoutError."""
        with anyio.move_on_after(PATIENCE):
            while not holds():
                await self._board.changed.wait()
            return
        raise TimeoutError(what)

    async def _committed(self, partitions: set[int]) -> dict[int, int | None]:
        tps = [TopicPartition(self._topic.name, partition) for partition in partitions]
        # Without a topic it joins nothing; it only asks.
        async with Consumer(bootstrap_servers=self._bootstrap, group_id=self._group) as observer:
            offsets = await observer.committed(tps)
        return {tp.partition: found.offset if found else None for tp, found in offsets.items()}

    # ------------------------------------------------------------ what members tell

    async def _follow(self, member: Member, cause: str) -> None:
        """Read what a member tells until it is gone."""
        process = self._processes[member.name]
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                self._heard(member, cause, json.loads(await lines.receive_until(b"\n", MAX_LINE)))
        except (anyio.EndOfStream, anyio.IncompleteRead):
            pass  # a killed member may have been in the middle of a line
        code = await process.wait()
        if member.state is State.LEAVING and code == 0:
            member.state = State.LEFT
            self._board.log(f"{member.name} has left")
        elif member.state is not State.KILLED:
            raise DemoFailed(f"{member.name} ended with exit code {code}")
        member.partitions = frozenset()
        self._gone[member.name].set()
        self._board.update()

    def _heard(self, member: Member, cause: str, told: dict[str, object]) -> None:
        board = self._board
        match told:
            case {"event": "processed", "record": [int(n), int(partition), int(offset)]}:
                self._processed[member.name].append(Processed(n, partition, offset))
                self._seen.add(n)
                member.processed += 1
                board.processed = len(self._seen)
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
                raise DemoFailed(f"{member.name} sent an unknown message: {told}")
        board.update()


NEXT = """
What to look at next:
  examples/demo_member.py      the consumer that each member runs
  docs/getting-started.md      your first consumer, in three shells
  docs/delivery.md             why records are duplicated, and never lost
  docs/rebalancing.md          what a rebalance does, step by step"""


def summary(board: Board, account: Account) -> str:
    """The end of the story."""
    excuse = f"of {account.uncommitted} that B had processed and not committed when it was killed"
    lines = [
        "",
        f"records produced     {account.produced:6}",
        f"        processed    {account.processed:6}",
        f"        lost         {len(account.lost):6}",
        f"        duplicated   {len(account.duplicates):6}   {excuse}",
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
    """Play the demo on a broker. Answers whether all went well."""
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
            account = await demo.play()
            tasks.cancel_scope.cancel()
    print(summary(board, account))
    print(NEXT)
    return not (board.failed or account.lost or account.unexplained)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker", nargs="?", help="host:port; without it, the embedded broker")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live view")
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds between the acts")
    given = parser.parse_args(arguments)
    console = Console(force_terminal=False) if given.plain else Console()
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        bootstrap, what = given.broker, given.broker
        if not bootstrap:
            bootstrap = stack.enter_context(EmbeddedKafka()).bootstrap_servers
            what = "the embedded broker"
        options = Options(bootstrap, f"kafkagroup demo on {what}", given.pause)
        well = False
        try:
            well = anyio.run(run, options, console, errors)
        except* KeyboardInterrupt:
            print("interrupted")
        except* (DemoFailed, KafkaGroupError, TimeoutError) as group:
            print(*(f"failed: {error}" for error in leaves(group)), sep="\n")
        if not well:
            errors.seek(0)
            sys.stderr.write(errors.read().decode(errors="replace"))
    return 0 if well else 1


def leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    """The errors in a group, and in the groups within it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())

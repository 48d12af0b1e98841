"""The exactly-once pipeline: three groups in a row carry numbered records from topic to topic, in
transactions, on a cluster of three nodes, while members and brokers are killed with SIGKILL, and
members are frozen for longer than their session. At the end Kafka's own read_committed consumer
must find each number exactly once in each topic.

python tests/verification/soak/exactly_once.py [--records N] [--seed N] [--member-kills N]
    [--broker-kills N] [--freezes N] [--seconds N] [--kafka VERSION] [--logs FOLDER]
"""

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

# As a program this finds its neighbours; the runner of Java programs is two levels up.
sys.path.insert(1, str(Path(__file__).parents[2]))

import anyio
import anyio.to_thread
import attrs
from assign.java_side import compiled, find_java
from exactly_once_stage import SESSION

from kafkagroup import Admin, BufferFullError, Consumer, Producer
from kafkagroup.admin import NewTopic
from kafkagroup.broker import Broker
from kafkagroup.errors import TransportError
from kafkagroup.testing import LocalKafka

PARTITIONS = 6
NODES = 3
SLOTS = "abc"
"""Of each stage. A slot has a transactional id, and one process at a time."""

KEYS = 60
"""The numbers of a key must stay in order."""

SECONDS_PER_MEMBER_KILL = 11.5
SECONDS_PER_BROKER_KILL = 75.0
"""A broker is killed when the one before is in sync again, which takes half of that."""

STALL = 150.0
"""Seconds without a new record in the last topic after which the pipeline counts as stuck."""

STAGE = Path(__file__).with_name("exactly_once_stage.py")
JUDGE = Path(__file__).parents[2] / "live" / "java" / "Numbers.java"

CONFIG = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}
CONSUMER_PROTOCOL_CONFIG = {
    "group.consumer.session.timeout.ms": str(round(SESSION * 1000)),
    "group.consumer.heartbeat.interval.ms": "1000",
}


@attrs.frozen(kw_only=True)
class Topic:
    """What Kafka's consumer has found in a topic."""

    name: str
    records: int
    lost: int
    duplicated: int
    disordered: int
    """Records behind a higher number of their key."""
    open: int
    """Partitions with a transaction that has not ended."""
    examples: str
    """Some of the numbers that are lost or duplicated."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.disordered or self.open)

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.lost} lost, {self.duplicated} duplicated,"
            f" {self.disordered} out of order, {self.open} partitions with an open transaction"
            + (f"; such as {self.examples}" if self.examples else "")
        )


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of a run."""

    records: int
    topics: tuple[Topic, ...]
    """The input, and the output of each stage."""
    seconds: float
    """From the first member's start until the last record was through."""
    member_kills: int
    broker_kills: int
    freezes: int
    ended: Counter[str]
    """Members that have ended by themselves, by reason."""
    transactions: int
    """How many the members have seen the end of."""
    aborted: int
    """How many were aborted, and their records came again, without the end of the member."""
    longest_stall: float
    is_stuck: bool

    @property
    def clean(self) -> bool:
        return all(topic.clean for topic in self.topics) and not self.is_stuck

    def __str__(self) -> str:
        lines = [
            f"{'input' if not number else f'stage {number}'}: {topic}"
            for number, topic in enumerate(self.topics)
        ]
        lines += [
            f"{count} members ended by themselves: {why}" for why, count in self.ended.items()
        ]
        lines.append(
            f"{self.transactions} transactions, {self.aborted} of them aborted and repeated;"
            f" longest time without a record in the last topic: {self.longest_stall:.0f} s"
        )
        last = self.topics[-1]
        lines.append(
            f"exactly once{', STUCK' if self.is_stuck else ''}:"
            f" {self.records} records through {len(self.topics) - 1} stages in"
            f" {self.seconds:.0f} s, {self.member_kills} members and {self.broker_kills} brokers"
            f" killed, {self.freezes} members frozen: {last.lost} lost,"
            f" {last.duplicated} duplicated"
        )
        return "\n".join(lines)


class Slot:
    """A place of one process, with its transactional id."""

    def __init__(self, name: str, log: Path, command: list[str]) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        seed = str(random.Random(f"{self._command}{self._starts}").getrandbits(32))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(STAGE), *self._command, "--seed", seed],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """Kill the process; return when it is gone, and another may have its transactional id."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Pipeline:
    """The writer, the stages, their faults, and the observer of the last topic."""

    def __init__(self, kafka: LocalKafka, folder: Path, options: argparse.Namespace) -> None:
        self._kafka = kafka
        self._records: int = options.records
        self._member_kills: int = options.member_kills
        self._broker_kills: int = options.broker_kills
        self._freezes: int = options.freezes
        self._seconds: float = options.seconds or max(
            options.member_kills * SECONDS_PER_MEMBER_KILL,
            options.broker_kills * SECONDS_PER_BROKER_KILL,
        )
        self._random = random.Random(options.seed)
        name = f"exactly-once-{uuid.uuid4().hex[:8]}"
        self.topics = [f"{name}-{letter}" for letter in "abcd"]
        self._slots: list[Slot] = []
        consumer = [] if options.kafka != "4.3.1" else ["--protocol", "consumer"]
        # A classic group, one of the consumer protocol, and one with members of both.
        protocols = ([[], [], []], [consumer] * 3, [[], consumer, []])
        for number, stage in enumerate(protocols, 1):
            group = f"{name}-{number}"
            source, sink = self.topics[number - 1 : number + 1]
            for letter, protocol in zip(SLOTS, stage, strict=True):
                slot = f"{number}{letter}"
                command = [kafka.bootstrap_servers, source, sink, f"{group}-{letter}", group]
                self._slots.append(Slot(slot, folder / f"{slot}.log", command + protocol))
        self._folder = folder
        self._is_over = False
        """The members are ending."""
        self._written = 0
        self._seen = bytearray(options.records)
        self._through = 0
        self._progressed = time.monotonic()
        self._longest_stall = 0.0
        self._members_killed = 0
        self._brokers_killed = 0
        self._frozen = 0
        self._ended: Counter[str] = Counter()

    async def run(self) -> Outcome:
        await self._prepare()
        began = self._progressed = time.monotonic()
        for slot in self._slots:
            slot.start()
        is_stuck = False
        async with anyio.create_task_group() as observers:
            observers.start_soon(self._observe)
            observers.start_soon(self._restart_ended)
            observers.start_soon(self._report, began)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                tasks.start_soon(self._kill_members)
                tasks.start_soon(self._freeze_members)
                tasks.start_soon(self._kill_brokers)
            _print("no more faults")
            while self._through < self._records and not is_stuck:
                is_stuck = time.monotonic() - self._progressed > STALL
                await anyio.sleep(0.1)
            seconds = time.monotonic() - began
            if is_stuck:
                await self._explain()
            self._is_over = True
            observers.cancel_scope.cancel()
        await self._end()
        texts = [slot.log.read_text("utf-8") for slot in self._slots]
        return Outcome(
            records=self._records,
            topics=await anyio.to_thread.run_sync(
                judge, self._kafka.bootstrap_servers, self._records, self.topics
            ),
            seconds=seconds,
            member_kills=self._members_killed,
            broker_kills=self._brokers_killed,
            freezes=self._frozen,
            ended=self._ended,
            transactions=sum(len(re.findall(r"^[\d:]+ ended", text, re.M)) for text in texts),
            aborted=sum(text.count(" kafkagroup.consuming_transactions: ") for text in texts),
            longest_stall=self._longest_stall,
            is_stuck=is_stuck,
        )

    def kill(self) -> None:
        """Kill the processes that are left."""
        for slot in self._slots:
            slot.kill()

    async def _prepare(self) -> None:
        async with Admin(bootstrap_servers=self._kafka.bootstrap_servers) as admin:
            await admin.create_topics(
                NewTopic(name=topic, partitions=PARTITIONS, replication_factor=NODES)
                for topic in self.topics
            )
        while not await self._is_in_sync():
            await anyio.sleep(0.2)

    # ------------------------------------------------------------ records

    async def _write(self) -> None:
        """Write the numbers at a pace that lasts as long as the faults."""
        rate = self._records / self._seconds
        padding = b"x" * 90
        async with Producer(bootstrap_servers=self._kafka.bootstrap_servers) as producer:
            began = anyio.current_time()
            while self._written < self._records:
                due = min(self._records, int((anyio.current_time() - began) * rate) + 1)
                try:
                    while self._written < due:
                        number = self._written
                        producer.send_nowait(
                            self.topics[0],
                            b"%d %b" % (number, padding),
                            key=b"%d" % (number % KEYS),
                        )
                        self._written += 1
                except BufferFullError:
                    await producer.ready()
                await anyio.sleep(0.05)
            await producer.flush()
        _print("all records are written")

    async def _observe(self) -> None:
        """Count the numbers that arrive in the last topic."""
        async with Consumer(
            self.topics[-1],
            bootstrap_servers=self._kafka.bootstrap_servers,
            isolation_level="read_committed",
        ) as consumer:
            async for record in consumer:
                number = int(record.value.split(b" ", 1)[0])
                if self._seen[number]:
                    _print(f"number {number} is DUPLICATED, at {record.partition} {record.offset}")
                    continue
                self._seen[number] = 1
                self._through += 1
                now = time.monotonic()
                if self._through > 1:  # else it is the time that the first processes took to start
                    self._longest_stall = max(self._longest_stall, now - self._progressed)
                self._progressed = now

    async def _report(self, began: float) -> None:
        while True:
            await anyio.sleep(30.0)
            now = time.monotonic()
            _print(
                f"{now - began:.0f} s: {self._written} written, {self._through} through; killed"
                f" {self._members_killed} members, {self._brokers_killed} brokers;"
                f" the last record arrived {now - self._progressed:.1f} s ago"
            )
            if now - self._progressed > STALL / 2:
                await self._explain()

    async def _explain(self) -> None:
        """Let the members print where they are."""
        _print("the pipeline makes no progress; see the members' logs")
        for slot in self._slots:
            if slot.process is not None:
                slot.process.send_signal(signal.SIGUSR1)
        await anyio.sleep(1.0)

    # ------------------------------------------------------------ faults

    async def _kill_members(self) -> None:
        pause = self._seconds / max(1, self._member_kills)
        due = anyio.current_time()
        async with anyio.create_task_group() as restarts:
            for _ in range(self._member_kills):
                await anyio.sleep_until(due + pause * self._random.uniform(0.1, 1.0))
                due += pause
                while not (running := [slot for slot in self._slots if slot.process is not None]):
                    await anyio.sleep(0.1)
                slot = self._random.choice(running)
                slot.kill()
                self._members_killed += 1
                # Some members are back before their session expires, others are not.
                is_long = self._random.random() < 0.3
                away = self._random.uniform(*((SESSION, 1.5 * SESSION) if is_long else (0.0, 2.0)))
                _print(f"member {slot.name} killed for {away:.1f} s")
                restarts.start_soon(self._start_after, slot, away)

    async def _freeze_members(self) -> None:
        """Stop members for longer than their session, and mostly than a transaction may take: a
        member that continues must not commit."""
        pause = self._seconds / max(1, self._freezes)
        due = anyio.current_time()
        async with anyio.create_task_group() as thaws:
            for _ in range(self._freezes):
                await anyio.sleep_until(due + pause * self._random.uniform(0.1, 1.0))
                due += pause
                running = [slot for slot in self._slots if slot.process is not None]
                if running:
                    slot = self._random.choice(running)
                    seconds = self._random.uniform(SESSION + 1.0, 2.5 * SESSION)
                    _print(f"member {slot.name} frozen for {seconds:.1f} s")
                    assert slot.process is not None
                    slot.process.send_signal(signal.SIGSTOP)
                    self._frozen += 1
                    thaws.start_soon(self._thaw_after, slot.process, seconds)

    async def _thaw_after(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        await anyio.sleep(seconds)
        process.send_signal(signal.SIGCONT)  # nothing happens if it was killed meanwhile

    async def _start_after(self, slot: Slot, seconds: float) -> None:
        await anyio.sleep(seconds)
        slot.start()

    async def _restart_ended(self) -> None:
        """Start members again that have ended by themselves, as a supervisor would."""
        while True:
            await anyio.sleep(0.2)
            for slot in self._slots:
                if slot.process is not None and (code := slot.process.poll()) is not None:
                    slot.process = None
                    # Groups of exceptions end with a frame.
                    lines = re.findall(r"^.*\w.*$", slot.log.read_text("utf-8"), re.M) or [""]
                    reason = f"exit code {code}: {lines[-1].strip()[:300]}"
                    _print(f"member {slot.name} ENDED with {reason}")
                    self._ended[reason] += 1
                    await anyio.sleep(0.5)
                    slot.start()

    async def _kill_brokers(self) -> None:
        pause = self._seconds / max(1, self._broker_kills)
        due = anyio.current_time()
        for _ in range(self._broker_kills):
            await anyio.sleep_until(due + pause * self._random.uniform(0.1, 0.5))
            due += pause
            node = self._random.randint(1, NODES)
            await anyio.to_thread.run_sync(self._kafka.kill, node)
            self._brokers_killed += 1
            _print(f"broker {node} killed")
            killed_at = time.monotonic()
            await anyio.sleep(self._random.uniform(0.0, 12.0))
            # Returns when all know it again, and so after they have noticed that it was gone.
            await anyio.to_thread.run_sync(self._kafka.start_node, node)
            while not await self._is_in_sync():
                await anyio.sleep(0.5)
            _print(f"broker {node} in sync again after {time.monotonic() - killed_at:.1f} s")

    async def _is_in_sync(self) -> bool:
        """Whether every broker knows of all replicas of each partition that they are in sync."""
        try:
            for node in range(1, NODES + 1):
                host, _, port = self._kafka.address(node).rpartition(":")
                async with Broker.open(host, int(port)) as broker:
                    for topic in (await broker.request_metadata()).topics:
                        if any(len(p.isr_nodes) < NODES for p in topic.partitions):
                            return False
        except TransportError:
            return False
        return True

    # ------------------------------------------------------------ end

    async def _end(self) -> None:
        """Let the members end gracefully."""
        running = [slot for slot in self._slots if slot.process is not None]
        for slot in running:
            assert slot.process is not None
            slot.process.terminate()
        for slot in running:
            assert slot.process is not None
            try:
                code = await anyio.to_thread.run_sync(partial(slot.process.wait, 30.0))
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                self._ended[f"exit code {code} after SIGTERM, member {slot.name}"] += 1


def judge(
    bootstrap: str, records: int, topics: Sequence[str], *, seconds: int = 60
) -> tuple[Topic, ...]:
    """Return what Kafka's own consumer finds in the topics with read_committed. `seconds`: how long
    it waits for open transactions. Raises: LocalKafkaUnavailable without Java."""
    java = find_java()
    done = subprocess.run(
        [
            *(java.command, "-XX:TieredStopAtLevel=1"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            *("-cp", f"{compiled(JUDGE)}:{java.jars}/*", JUDGE.stem),
            *(bootstrap, str(records), str(seconds), *topics),
        ],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=600.0,
        check=True,
    )
    found = []
    for line in done.stdout.splitlines():
        name, *words = line.split()
        values = dict(word.split("=", 1) for word in words)
        examples = values.pop("examples")
        counts = {key: int(value) for key, value in values.items()}
        found.append(Topic(name=name, examples=examples, **counts))
    return tuple(found)


def _print(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def run(options: argparse.Namespace) -> Outcome:
    """Run the pipeline on a new cluster. Raises: TimeoutError after `options.limit` seconds;
    LocalKafkaUnavailable without Java."""
    _print(f"seed {options.seed}")
    find_java()
    compiled(JUDGE)  # now, rather than after all has been run for nothing
    config = CONFIG | (CONSUMER_PROTOCOL_CONFIG if options.kafka == "4.3.1" else {})
    keep = options.logs is not None
    if keep:
        Path(options.logs).mkdir(parents=True, exist_ok=True)
    with (
        nullcontext(options.logs) if keep else tempfile.TemporaryDirectory() as folder,
        LocalKafka(options.kafka, nodes=NODES, config=config, start_timeout=180.0) as kafka,
    ):
        pipeline = Pipeline(kafka, Path(folder), options)

        async def limited() -> Outcome:
            with anyio.fail_after(options.limit):
                return await pipeline.run()

        try:
            return anyio.run(limited)
        finally:
            pipeline.kill()


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--member-kills", type=int, default=200)
    parser.add_argument("--broker-kills", type=int, default=30)
    parser.add_argument("--freezes", type=int, default=20, help="members that are stopped a while")
    parser.add_argument("--seconds", type=float, help="that records and faults last")
    parser.add_argument("--limit", type=float, default=3_600.0, help="after which it has failed")
    parser.add_argument(
        "--kafka", default="4.3.1", help="the release; before 4, only classic groups"
    )
    parser.add_argument("--logs", help="a folder in which the members' output is kept")
    return parser.parse_args(words)


def main() -> int:
    outcome = run(options_of())
    print(outcome)
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())

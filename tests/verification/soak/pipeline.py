"""The pipeline: three groups in a row carry records from topic to topic on a cluster of three
nodes, through a proxy that cuts every connection after a second, while members are frozen and
killed, and brokers too. Nothing may be lost; only what a member had not committed may come twice.

python tests/verification/soak/pipeline.py [--records N] [--seed N] [--seconds N] [--logs FOLDER]
"""

import argparse
import sys
import tempfile
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path

# As a program this finds its neighbours; the checker is one level up.
sys.path.insert(1, str(Path(__file__).parents[2]))

import anyio
import attrs
from confluent_kafka import Consumer as IndependentConsumer
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as IndependentPartition
from deadline import deadline
from processes import Members
from proxy import NO_FAULTS, Proxy
from run import coordinator_down
from stage import SESSION
from stage_log import delivered
from stage_log import read as read_log
from topic import committed, ends, prepare
from verification.sim.checker import CheckResult, examine
from verification.sim.events import (
    Appended,
    Delivered,
    Event,
    Finished,
    Frozen,
    Healed,
    Joined,
    Killed,
    Thawed,
)
from verification.sim.log import merged

from kafkagroup import TopicPartition
from kafkagroup.testing import LocalKafka
from kafkagroup.testing.local import Listener

PARTITIONS = 6
NODES = 3
RATE = 2_000
"""Records a second that a member takes: the faults have to meet a pipeline that is at work."""

SECONDS = 190.0
"""That the whole may take, brokers and all."""

STAGE = Path(__file__).with_name("stage.py")


@attrs.frozen(kw_only=True)
class StageResult:
    """The result of one group in the next topic."""

    result: CheckResult
    events: int
    """How many it was checked by."""
    window: int
    """Longest run of records that came again."""
    rebalances: int
    missing: int = 0
    """Numbers that are not in the next topic."""
    repeated: int = 0
    """Records of the next topic beyond the first of their number."""
    surplus: int = 0
    """How many more records of a number are there than the group was given."""

    @property
    def clean(self) -> bool:
        return self.result.clean and self.missing == self.surplus == 0


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of the logs of all members, and of the topics."""

    stages: tuple[StageResult, ...]
    seconds: float
    """From the first member's start until the last record was through and committed."""
    records: int
    connections: int
    cut: int
    faults: Mapping[str, int]
    """How often what went wrong, by kind."""

    @property
    def clean(self) -> bool:
        return all(stage.clean for stage in self.stages)

    def __str__(self) -> str:
        through = (
            f"{self.records} records through {len(self.stages)} stages in {self.seconds:.0f} s,"
            f" {self.records / self.seconds:.0f} records/s;"
            f" {self.connections} connections, {self.cut} of them cut"
        )
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items())
        lines = [through, f"faults: {faults}"]
        for number, stage in enumerate(self.stages, 1):
            figures = stage.result.figures
            violations = stage.result.violations
            lines.append(
                f"stage {number}: {figures.records} records, {figures.lost} lost,"
                f" {figures.duplicated} came again, {stage.window} of them in a row at most;"
                f" {stage.rebalances} rebalances,"
                f" {figures.periods} ownership periods, {figures.fenced} of them fenced;"
                f" {len(violations)} violations in {stage.events} events"
            )
            lines += [f"    {violation}" for violation in violations[:10]]
            if number < len(self.stages):
                lines.append(
                    f"    in the next topic {stage.missing} missing, {stage.repeated} repeated,"
                    f" {stage.surplus} of them not by the group"
                )
        return "\n".join(lines)


class StageMembers(Members):
    """The members of one stage, and their faults."""

    def __init__(self, folder: Path, records: int, arguments: list[str]) -> None:
        super().__init__(folder, records, arguments, STAGE)
        self.befell: list[Event] = []

    delivered = staticmethod(delivered)

    def kill(self, name: str) -> None:
        super().kill(name)
        self.befell.append(Killed(time=time.monotonic(), member=name))

    def freeze(self, name: str) -> None:
        super().freeze(name)
        self.befell.append(Frozen(time=time.monotonic(), member=name))

    def thaw(self, name: str) -> None:
        self.befell.append(Thawed(time=time.monotonic(), member=name))
        super().thaw(name)

    def runs(self) -> list[Iterator[Event]]:
        """Return each member's events, and those of the faults."""
        return [iter(self.befell), *map(read_log, sorted(self._folder.iterdir()))]


class Pipeline:
    """The three groups of processes, and their faults."""

    def __init__(self, kafka: LocalKafka, proxy: Proxy, folder: Path, records: int, rate: int):
        self.kafka = kafka
        self.proxy = proxy
        self.records = records
        self.faults: Counter[str] = Counter()
        name = f"pipeline-{uuid.uuid4().hex[:8]}"
        self.topics = [f"{name}-{letter}" for letter in "abc"]
        self.groups = [f"{name}-{number}" for number in (1, 2, 3)]
        self.stages = []
        sinks = (*self.topics[1:], "")
        for source, sink, group in zip(self.topics, sinks, self.groups, strict=True):
            logs = folder / group
            logs.mkdir()
            arguments = [proxy.addresses, source, sink, group, "--rate", str(rate)]
            # The second group uses eager rebalancing.
            arguments += ["--eager"] * (len(self.stages) == 1)
            self.stages.append(StageMembers(logs, records, arguments))

    def start(self, *names: str) -> None:
        """Start members of every stage; return when each has received a record."""
        for number, stage in enumerate(self.stages, 1):
            stage.start(*(f"{number}{name}" for name in names))
        self._wait(lambda: all(stage.active >= set(stage.running) for stage in self.stages))

    def wait_for(self, part: float) -> None:
        """Wait until this part of all records has passed through."""
        self._wait(lambda: self.stages[-1].count >= part * self.records)

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= until)

    def _wait(self, enough: Callable[[], bool]) -> None:
        while True:
            for stage in self.stages:
                stage.look()
            self.proxy.raise_if_ended()
            if enough():
                return
            time.sleep(0.05)

    def stage_of(self, member: str) -> StageMembers:
        """Return the stage of a member, which is named by the number of its stage and a letter."""
        return self.stages[int(member[0]) - 1]

    @contextmanager
    def frozen(self, member: str, seconds: float) -> Iterator[None]:
        """Freeze a process; at the end, but not before the given time, continue it."""
        began = time.monotonic()
        self.stage_of(member).freeze(member)
        try:
            yield
            self.wait(began + seconds - time.monotonic())
        finally:
            self.stage_of(member).thaw(member)
        took = time.monotonic() - began
        self.faults["frozen past its session" if took > SESSION else "frozen"] += 1
        _print(f"member {member} was frozen for {took:.1f} s")

    def kill(self, member: str) -> None:
        self.faults["member killed"] += 1
        _print(f"member {member} killed")
        self.stage_of(member).kill(member)

    def replace(self, member: str, by: str) -> None:
        """Start a member; another leaves gracefully."""
        _print(f"member {by} joins, member {member} leaves")
        self.stage_of(by).start(by)
        self.stage_of(by).wait_until_up(by)
        self.stage_of(member).leave(member)

    @contextmanager
    def coordinator_down(self, stage: int) -> Iterator[None]:
        """Kill the node that coordinates a stage's group; start it again at the end."""
        self.faults["coordinator killed"] += 1
        with coordinator_down(self.kafka, self.groups[stage - 1]):
            yield

    def roll(self) -> None:
        """Restart one node after another."""
        for node in range(1, NODES + 1):
            _print(f"node {node} restarts")
            self.faults["node restarted"] += 1
            self.kafka.restart(node)
            self.wait(0.0)

    def drain(self) -> None:
        """Let every record pass without faults; stage by stage, commit and leave."""
        life = self.proxy.policy.life[1]
        self.proxy.policy = NO_FAULTS
        self.wait(life)
        healed = Healed(time=time.monotonic())
        servers = self.kafka.bootstrap_servers
        for stage, topic, group in zip(self.stages, self.topics, self.groups, strict=True):
            stage.befell.append(healed)
            end = anyio.run(ends, servers, topic, PARTITIONS)
            end = {partition: offset for partition, offset in end.items() if offset}
            while anyio.run(committed, servers, group) != end:
                self.wait(0.2)
            stage.leave(*stage.running)

    def end(self) -> None:
        """Kill the remaining processes."""
        for stage in self.stages:
            stage.end()

    def check(self, seconds: float) -> Outcome:
        """Check each group by its events, and each topic against the input of the group before."""
        results = [self._check_stage(number) for number in range(len(self.stages))]
        return Outcome(
            stages=tuple(results),
            seconds=seconds,
            records=self.records,
            connections=self.proxy.connections,
            cut=self.proxy.cut,
            faults=self.faults + self.proxy.faults,
        )

    def _check_stage(self, number: int) -> StageResult:
        servers, topic = self.kafka.bootstrap_servers, self.topics[number]
        offsets = anyio.run(committed, servers, self.groups[number])
        end = anyio.run(ends, servers, topic, PARTITIONS)
        finished = Finished(
            time=time.monotonic(),
            committed={TopicPartition(topic, p): offset for p, offset in offsets.items()},
            ends={TopicPartition(topic, p): offset for p, offset in end.items()},
            starts={},
        )
        tally = Tally(self.records)
        recorded = chain(contents(servers, topic), merged(self.stages[number].runs()), [finished])
        result = examine(tally.listening(recorded), virtual=False)
        stage = StageResult(
            result=result,
            events=tally.events,
            window=tally.window,
            rebalances=tally.generation,
        )
        if number + 1 == len(self.topics):
            return stage
        there = Tally(self.records)
        for record in contents(servers, self.topics[number + 1]):
            there.given[record.sequence] += 1
        pairs = list(zip(there.given, tally.given, strict=True))
        return attrs.evolve(
            stage,
            missing=sum(count == 0 for count, _ in pairs),
            repeated=sum(max(0, count - 1) for count, _ in pairs),
            surplus=sum(max(0, count - given) for count, given in pairs),
        )


class Tally:
    """Counts the events before the checker gets them."""

    def __init__(self, records: int) -> None:
        self.given = array("H", bytes(2 * records))
        """For each sequence number, how many records with it were delivered."""
        self.events = 0
        self.window = 0
        """Longest run of records that were delivered before."""
        self._ends: dict[TopicPartition, int] = {}
        self._again: Counter[TopicPartition] = Counter()
        self.generation = 0
        """The highest: each rebalance makes one."""

    def listening(self, recorded: Iterable[Event]) -> Iterator[Event]:
        for event in recorded:
            self.events += 1
            if isinstance(event, Delivered):
                self._delivered(event)
            elif isinstance(event, Joined):
                self.generation = max(self.generation, event.generation)
            yield event

    def _delivered(self, event: Delivered) -> None:
        self.given[event.sequence] += 1
        tp, end = event.partition, self._ends.get(event.partition, 0)
        if event.offset < end:
            self._again[tp] += 1
            self.window = max(self.window, self._again[tp])
        else:
            self._again[tp] = 0
            self._ends[tp] = event.offset + 1


def contents(bootstrap: str, topic: str) -> Iterator[Appended]:
    """Return the records of a topic, as librdkafka reads them. Their time is unknown: before all
    events."""
    consumer = IndependentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign([IndependentPartition(*tp, 0) for tp in partitions])
    at_end = 0
    while at_end < PARTITIONS:
        for message in consumer.consume(10_000, timeout=1.0):
            if (error := message.error()) is None:
                yield Appended(
                    time=0.0,
                    partition=partitions[message.partition()],
                    offset=message.offset(),
                    sequence=int.from_bytes(message.value()[:8], "big"),
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end += 1
            else:
                raise SystemExit(f"reading {topic}: {error}")
    consumer.close()


def _print(what: str) -> None:
    print(what, flush=True)


Story = Callable[[Pipeline], None]


def whole_story(pipeline: Pipeline) -> None:
    """Run every fault, more than once."""
    pipeline.start("a", "b", "c")
    pipeline.wait_for(0.05)
    with pipeline.frozen("1a", SESSION / 2):
        pass
    pipeline.wait_for(0.1)
    with pipeline.frozen("2a", SESSION * 1.5), pipeline.coordinator_down(3):
        pass
    pipeline.wait_for(0.25)
    with pipeline.coordinator_down(2):
        pipeline.kill("2b")
        pipeline.wait(2.0)
        pipeline.stages[1].start("2d")
    pipeline.wait_for(0.4)
    pipeline.roll()
    pipeline.wait_for(0.6)
    pipeline.kill("1b")
    pipeline.replace("3a", by="3d")
    pipeline.wait_for(0.7)
    with pipeline.frozen("3b", SESSION * 1.5), pipeline.frozen("2c", SESSION / 2):
        pipeline.kill("1c")
        pipeline.stages[0].start("1d")
    with pipeline.coordinator_down(1):
        pipeline.wait(2.0)


def short_story(pipeline: Pipeline) -> None:
    """Run some of the faults, at the same time."""
    pipeline.start("a", "b")
    with pipeline.frozen("1a", SESSION * 1.5), pipeline.coordinator_down(2):
        pipeline.kill("3b")
        pipeline.stages[2].start("3c")
        with pipeline.frozen("2a", SESSION / 2):
            pass


def run(
    records: int,
    *,
    seed: int,
    rate: int = RATE,
    story: Story = whole_story,
    seconds: float = SECONDS,
    logs: str | None = None,
) -> Outcome:
    """Run a story on a new cluster; keep the members' logs in `logs`. Raises: TooSlowError after so
    many seconds."""
    _print(f"seed {seed}")
    with (
        deadline(seconds, "the pipeline"),
        tempfile.TemporaryDirectory() if logs is None else nullcontext(logs) as folder,
        Proxy(NODES, seed=seed) as proxy,
        LocalKafka(
            nodes=NODES, listeners={"PROXIED": Listener(advertised_ports=proxy.ports)}
        ) as kafka,
    ):
        proxy.set_targets([kafka.address(node, "PROXIED") for node in range(1, NODES + 1)])
        pipeline = Pipeline(kafka, proxy, Path(folder), records, rate)
        for topic, count in zip(pipeline.topics, (records, 0, 0), strict=True):
            anyio.run(prepare, kafka.bootstrap_servers, topic, PARTITIONS, count)
        try:
            began = time.monotonic()
            story(pipeline)
            pipeline.wait_for(1.0)
            pipeline.drain()
            return pipeline.check(time.monotonic() - began)
        finally:
            pipeline.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rate", type=int, default=RATE, help="records a second of a member")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which it has failed")
    parser.add_argument("--logs", help="an empty folder in which the members' runs are kept")
    parser.add_argument("--short", action="store_true", help="the form that the tests run")
    arguments = parser.parse_args()
    outcome = run(
        arguments.records,
        seed=arguments.seed,
        rate=arguments.rate,
        story=short_story if arguments.short else whole_story,
        seconds=arguments.seconds,
        logs=arguments.logs,
    )
    print(outcome)
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())

"""The pipeline: three groups in a row carry records from topic to topic on a cluster of three
nodes, through a proxy that cuts every connection after a second, while members are frozen and
killed, and brokers too. Nothing may be lost; only what a member had not committed may come twice.

python tests/soak/pipeline.py [--records N] [--seed N]
"""

import argparse
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
import attrs
from confluent_kafka import Consumer as IndependentConsumer
from confluent_kafka import KafkaError, TopicPartition
from deadline import deadline
from judge import Verdict, judge
from member_log import Entry, Kind
from processes import Members
from proxy import CALM, Proxy
from run import coordinator_down
from stage import SESSION
from topic import committed, ends, prepare

from kafkagroup.testing import LocalKafka
from kafkagroup.testing.local import Listener

PARTITIONS = 6
NODES = 3
RATE = 1_600
"""Records a second that a member takes: the faults have to meet a pipeline that is at work."""

STAGE = Path(__file__).with_name("stage.py")

Count = Mapping[int, int]
"""Sequence number -> how many records have it."""


@attrs.frozen(kw_only=True)
class StageVerdict:
    """One group, and the topic that it appends to."""

    verdict: Verdict
    """Of the group on its own; its records are those of its topic, duplicates and all."""
    rebalances: int
    missing: int = 0
    """Numbers that are not in the next topic."""
    surplus: int = 0
    """Records of the next topic beyond those that the group was given."""
    repeated: int = 0
    """Records of the next topic beyond the first of each number."""

    @property
    def clean(self) -> bool:
        return self.verdict.clean and self.missing == self.surplus == 0


@attrs.frozen(kw_only=True)
class Outcome:
    """What the logs of all members, and the topics, say together."""

    stages: tuple[StageVerdict, ...]
    seconds: float
    """From the first member's start until the last record was through and committed."""
    records: int
    connections: int
    cut: int
    faults: Count | Mapping[str, int]
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
            verdict = stage.verdict
            lines.append(
                f"stage {number}: {verdict.produced} records, {verdict.lost} lost,"
                f" {verdict.duplicated} came again, {verdict.unexplained} of them unexplained;"
                f" {stage.rebalances} rebalances, {verdict.tenures} tenures,"
                f" {verdict.fenced} of them fenced; next topic: {stage.missing} missing,"
                f" {stage.repeated} repeated, {stage.surplus} of them unexplained"
            )
            if not verdict.clean:
                lines.append(f"         {verdict}")
        return "\n".join(lines)


class Pipeline:
    """The three groups of processes, and what happens to them."""

    def __init__(self, kafka: LocalKafka, proxy: Proxy, folder: Path, records: int, rate: int):
        self.kafka = kafka
        self.proxy = proxy
        self.records = records
        self.faults: Counter[str] = Counter()
        name = f"pipeline-{uuid.uuid4().hex[:8]}"
        self.topics = [f"{name}-{letter}" for letter in "abc"]
        self.groups = [f"{name}-{number}" for number in (1, 2, 3)]
        self.stages = []
        for source, sink, group in zip(
            self.topics, (*self.topics[1:], ""), self.groups, strict=True
        ):
            logs = folder / group
            logs.mkdir()
            arguments = [proxy.addresses, source, sink, group, "--rate", str(rate)]
            self.stages.append(Members(logs, records, arguments, STAGE))

    def start(self, *names: str) -> None:
        """Start members of every stage; return when all have had a record."""
        for number, stage in enumerate(self.stages, 1):
            stage.start(*(f"{number}{name}" for name in names))
        self._wait(lambda: all(stage.active >= set(stage.running) for stage in self.stages))

    def wait_for(self, part: float) -> None:
        """Wait until a part of all records has come through."""
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

    def stage_of(self, member: str) -> Members:
        """Members are named by the number of their stage and a letter."""
        return self.stages[int(member[0]) - 1]

    @contextmanager
    def frozen(self, member: str, seconds: float) -> Iterator[None]:
        """Stop a process; at the end, and not before its time, let it go on."""
        began = time.monotonic()
        self.stage_of(member).freeze(member)
        try:
            yield
            self.wait(began + seconds - time.monotonic())
        finally:
            self.stage_of(member).thaw(member)
        took = time.monotonic() - began
        self.faults["frozen past its session" if took > SESSION else "frozen"] += 1
        _tell(f"member {member} was frozen for {took:.1f} s")

    def kill(self, member: str) -> None:
        self.faults["member killed"] += 1
        _tell(f"member {member} killed")
        self.stage_of(member).kill(member)

    def replace(self, member: str, by: str) -> None:
        """Start a member; another leaves in good order."""
        _tell(f"member {by} joins, member {member} leaves")
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
        """Restart one node after the other."""
        for node in range(1, NODES + 1):
            _tell(f"node {node} restarts")
            self.faults["node restarted"] += 1
            self.kafka.restart(node)
            self.wait(0.0)

    def drain(self) -> None:
        """See every record through; stage by stage, commit and leave."""
        for stage, topic, group in zip(self.stages, self.topics, self.groups, strict=True):
            servers = self.kafka.bootstrap_servers
            end = anyio.run(ends, servers, topic, PARTITIONS)
            while anyio.run(committed, servers, group) != end:
                self.wait(0.2)
            stage.leave(*stage.running)

    def end(self) -> None:
        """Kill whoever is left."""
        for stage in self.stages:
            stage.end()

    def judge(self, seconds: float) -> Outcome:
        """Judge the logs against what is in the topics, and each topic against the one before."""
        servers = self.kafka.bootstrap_servers
        verdicts = []
        given: list[Counter[int]] = []
        for stage, topic, group in zip(self.stages, self.topics, self.groups, strict=True):
            end = anyio.run(ends, servers, topic, PARTITIONS)
            logs = {name: list(log) for name, log in stage.logs().items()}
            verdict = judge(
                sum(end.values()),
                {name: list(_by_place(log, end)) for name, log in logs.items()},
                frozenset(stage.killed),
                anyio.run(committed, servers, group),
            )
            every = [entry for log in logs.values() for entry in log]
            given.append(Counter(e.sequence for e in every if e.kind is Kind.DELIVERED))
            rebalances = max(e.offset for e in every if e.kind is Kind.ASSIGNED)
            verdicts.append(StageVerdict(verdict=verdict, rebalances=rebalances))
        for number, topic in enumerate(self.topics[1:]):
            there = read(servers, topic)
            verdicts[number] = attrs.evolve(
                verdicts[number],
                missing=len(set(range(self.records)) - there.keys()),
                surplus=(there - given[number]).total(),
                repeated=there.total() - len(there),
            )
        return Outcome(
            stages=tuple(verdicts),
            seconds=seconds,
            records=self.records,
            connections=self.proxy.connections,
            cut=self.proxy.cut,
            faults=self.faults + self.proxy.faults,
        )


def _by_place(log: list[Entry], end: Mapping[int, int]) -> Iterator[Entry]:
    """A log whose numbers are those of the places in the topic: a number of the first topic may be
    in a later one twice."""
    base: dict[int, int] = {}
    total = 0
    for partition in sorted(end):
        base[partition] = total
        total += end[partition]
    for entry in log:
        yield entry._replace(sequence=base[entry.partition] + entry.offset)


def read(bootstrap: str, topic: str) -> Counter[int]:
    """How often which number is in a topic, as librdkafka reads it."""
    consumer = IndependentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: Counter[int] = Counter()
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        for message in consumer.consume(10_000, timeout=1.0):
            if (error := message.error()) is None:
                found[int.from_bytes(message.value()[:8], "big")] += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise SystemExit(f"reading {topic}: {error}")
    consumer.close()
    return found


def _tell(what: str) -> None:
    print(what, flush=True)


Story = Callable[[Pipeline], None]


def whole_story(pipeline: Pipeline) -> None:
    """Everything, twice over."""
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
    """Some of it, once."""
    pipeline.start("a", "b")
    with pipeline.frozen("1a", SESSION / 2), pipeline.coordinator_down(2):
        pipeline.kill("3b")
    pipeline.stages[2].start("3c")


def run(
    records: int, *, seed: int, rate: int = RATE, story: Story = whole_story, seconds: float = 180.0
) -> Outcome:
    """Run a story on a cluster of its own.

    Raises: TooSlowError after so many seconds.
    """
    _tell(f"seed {seed}")
    with (
        deadline(seconds, "the pipeline"),
        tempfile.TemporaryDirectory() as folder,
        Proxy(NODES, seed=seed) as proxy,
        LocalKafka(
            nodes=NODES, listeners={"PROXIED": Listener(advertised_ports=proxy.ports)}
        ) as kafka,
    ):
        proxy.lead_to([kafka.address(node, "PROXIED") for node in range(1, NODES + 1)])
        pipeline = Pipeline(kafka, proxy, Path(folder), records, rate)
        for topic, count in zip(pipeline.topics, (records, 0, 0), strict=True):
            anyio.run(prepare, kafka.bootstrap_servers, topic, PARTITIONS, count)
        try:
            began = time.monotonic()
            story(pipeline)
            pipeline.wait_for(1.0)
            proxy.weather = CALM
            pipeline.drain()
            return pipeline.judge(time.monotonic() - began)
        finally:
            pipeline.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rate", type=int, default=RATE, help="records a second of a member")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=180.0, help="after which it has failed")
    parser.add_argument("--short", action="store_true", help="the form that the tests run")
    arguments = parser.parse_args()
    outcome = run(
        arguments.records,
        seed=arguments.seed,
        rate=arguments.rate,
        story=short_story if arguments.short else whole_story,
        seconds=arguments.seconds,
    )
    print(outcome)
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())

"""The soak: members in processes of their own share a topic while members join, leave and are
killed, and the broker that coordinates them too. Nothing may be lost; only what a killed member had
not committed may come twice.

python tests/verification/soak/run.py [BOOTSTRAP] [--records N] [--cooperative] [--seconds N]
    one broker; without BOOTSTRAP: Apache Kafka on loopback
python tests/verification/soak/run.py --nodes 3 [--records N] [--cooperative] [--seconds N]
    a cluster on loopback, whose coordinator is killed too
"""

import argparse
import os
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

# As a program this finds its neighbours; the checker is one level up.
sys.path.insert(1, str(Path(__file__).parents[2]))

import anyio
from deadline import deadline
from processes import Members
from topic import clean_up, committed, coordinator, prepare, written
from verification.sim.checker import CheckResult, examine
from verification.sim.events import Finished
from verification.sim.log import merged

from kafkagroup import TopicPartition
from kafkagroup.testing import LocalKafka, LocalZooKeeper

PARTITIONS = 8
RATE = 2_500
"""Records a second that a member takes. The group takes its time over a killed member, and brokers
over a killed broker: until then there have to be records left."""

SECONDS = 240.0
"""That the whole may take, brokers and all. A million records take 140 to 170."""

FREEZE = 6.0
"""Seconds that a member is stopped: more than a session with ZooKeeper (see `worker.py`)."""

OUTAGE = 1.0
"""Seconds that a node of ZooKeeper is away: less than a session."""

Story = Callable[[Members, str, int], None]
"""What happens to the members of a group, as so many records come through."""


def soak(
    bootstrap: str, records: int, *, rate: int = RATE, cooperative: bool = False
) -> CheckResult:
    """Run three members; after a quarter one joins, after half one is killed, after three quarters
    one leaves."""
    return _run(bootstrap, records, _on_one_broker, rate=rate, cooperative=cooperative)


def soak_cluster(
    kafka: LocalKafka,
    records: int,
    *,
    rate: int = RATE,
    cooperative: bool = False,
    twice: bool = True,
) -> CheckResult:
    """Run five members; the coordinator's node is killed, then a member, the node restarts, a
    member leaves; with `twice` another coordinator is killed while a member joins."""
    story = partial(_on_a_cluster, kafka, twice=twice)
    return _run(kafka.bootstrap_servers, records, story, rate=rate, cooperative=cooperative)


def soak_zookeeper(
    bootstrap: str, zookeeper: LocalZooKeeper, records: int, *, rate: int = RATE
) -> CheckResult:
    """Run members in ZooKeeper: one is killed, one is frozen beyond its session, each node of
    ZooKeeper is killed and restarted, one member joins, one leaves."""
    story = partial(_in_zookeeper, zookeeper)
    more = ("--zookeeper", zookeeper.hosts)
    return _run(bootstrap, records, story, rate=rate, cooperative=False, more=more)


def _in_zookeeper(zookeeper: LocalZooKeeper, members: Members, group: str, records: int) -> None:
    part = records // 10
    members.start("first", "second", "third")
    members.wait_until_active("first", "second", "third")
    members.wait_for(part)
    members.kill("second")
    members.wait_for(2 * part)
    members.freeze("first")
    time.sleep(FREEZE)
    members.thaw("first")
    members.wait_for(4 * part)
    for node in range(1, zookeeper.nodes + 1):
        zookeeper.kill(node)
        time.sleep(OUTAGE)
        zookeeper.start_node(node)
    members.start("joiner")
    members.wait_until_up("joiner")
    members.wait_for(8 * part)
    members.leave("third")


def _on_one_broker(members: Members, group: str, records: int) -> None:
    members.start("first", "second", "third")
    members.wait_until_active("first", "second", "third")
    members.wait_for(records // 4)
    members.start("joiner")
    members.wait_until_active("joiner")
    members.wait_for(records // 2)
    members.kill("second")
    members.wait_for(records * 3 // 4)
    members.leave("third")


def _on_a_cluster(
    kafka: LocalKafka, members: Members, group: str, records: int, *, twice: bool
) -> None:
    part = records // 8
    members.start("first", "second", "third")
    members.wait_for(part)
    members.start("fourth", "fifth")
    members.wait_until_active("first", "second", "third", "fourth", "fifth")
    members.wait_for(2 * part)
    with coordinator_down(kafka, group):
        members.wait_for(3 * part)
        members.kill("second")
        members.wait_for(4 * part)
    members.wait_for(5 * part)
    members.leave("third")
    members.start("sixth")
    members.wait_until_up("sixth")
    if twice:
        with coordinator_down(kafka, group):
            members.wait_for(7 * part)


@contextmanager
def coordinator_down(kafka: LocalKafka, group: str) -> Iterator[None]:
    """Kill the node of the group's coordinator; wait for another coordinator; start the node
    again."""
    servers = kafka.bootstrap_servers
    node = anyio.run(coordinator, servers, group)
    kafka.kill(node)
    successor = anyio.run(coordinator, servers, group, node)
    print(f"coordinator: node {node} killed, node {successor} took over", flush=True)
    yield
    kafka.start_node(node)


def _run(
    bootstrap: str,
    records: int,
    story: Story,
    *,
    rate: int,
    cooperative: bool,
    more: Sequence[str] = (),
) -> CheckResult:
    topic = group = f"soak-{uuid.uuid4().hex[:8]}"
    anyio.run(prepare, bootstrap, topic, PARTITIONS, records)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [bootstrap, topic, group, "--rate", str(rate)]
        arguments += [*["--cooperative"] * cooperative, *more]
        members = Members(Path(folder), records, arguments)
        try:
            story(members, group, records)
            members.wait_for(records)
            members.leave(*members.running)
            print(f"longest time without a record: {members.longest_stall:.1f} s")
            left_at = anyio.run(committed, bootstrap, group)
            whole = merged([written(topic, PARTITIONS, records), *members.logs(topic)])
            return examine(chain(whole, [_finished(topic, records, left_at)]), virtual=False)
        finally:
            members.end()
            anyio.run(clean_up, bootstrap, topic)


def _finished(topic: str, records: int, committed: dict[int, int]) -> Finished:
    ends = Counter(record.partition for record in written(topic, PARTITIONS, records))
    return Finished(
        time=time.monotonic(),
        committed={TopicPartition(topic, number): offset for number, offset in committed.items()},
        ends=ends,
        starts={},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("BROKER"))
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--cooperative", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which it has failed")
    arguments = parser.parse_args()
    with deadline(arguments.seconds, f"the soak of {arguments.records} records"):
        return _soak_with(arguments)


def _soak_with(arguments: argparse.Namespace) -> int:
    records, cooperative = arguments.records, arguments.cooperative
    started = time.monotonic()
    if arguments.nodes == 3:
        with LocalKafka(nodes=3) as kafka:
            result = soak_cluster(kafka, records, cooperative=cooperative)
    elif arguments.bootstrap is not None:
        result = soak(arguments.bootstrap, records, cooperative=cooperative)
    else:
        with LocalKafka() as kafka:
            result = soak(kafka.bootstrap_servers, records, cooperative=cooperative)
    print(f"{result.figures} in {time.monotonic() - started:.1f} s")
    for violation in result.violations[:20]:
        print(violation)
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main())

"""The log lines of a membership: one for each event, with the client and its group, on an embedded
broker in virtual time."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from zookeeper.fake_sessions import FakeSession, fake_sessions

import kafkagroup
from kafkagroup import (
    BrokerError,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    Shards,
    TopicPartition,
    ZooKeeperMembership,
)
from kafkagroup._extended_consumer import TunedConsumer
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import ErrorCode, JoinFailedError
from kafkagroup.member.vocabulary import GenerationInfo
from kafkagroup.runtime.member import membership_log
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.testing.embedded import Close, EmbeddedKafka
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.zookeeper import session

pytestmark = pytest.mark.anyio

WORK = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b"12345"))
AT = "; coordinator: broker 1 at kafka-1:9092"
PACKAGE = Path(kafkagroup.__file__).parent
MEMBER_ID = re.compile(r"\b(?:[abc]-)?[0-9a-f]{8}-[0-9a-f]{4}[0-9a-f-]*|[abc]-[0-9a-f]{32}")


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafkagroup")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    return fake_sessions(monkeypatch)


@asynccontextmanager
async def cluster(network: Any, nodes: int = 1) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 4}, nodes=nodes, listen=False) as kafka:
        network.serve_embedded(kafka, nodes)
        with anyio.fail_after(300):
            yield kafka


def consumer(client_id: str = "a", private: Any = (), **options: Any) -> Consumer:
    return TunedConsumer(
        dict(private),
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        client_id=client_id,
        **options,
    )


def options(**more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": "kafka-1", "client_id": "a", **more}


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """Return what was logged from that level on since the last call, with ID for member ids."""
    found = [
        ("" if r.levelno == logging.INFO else f"{r.levelname} ") + MEMBER_ID.sub("ID", r.message)
        for r in caplog.records
        if r.levelno >= level and r.name.startswith("kafkagroup.")
        if "start of" not in r.message
    ]
    caplog.clear()
    return found


async def assigned(one: Consumer, count: int) -> None:
    while len(one.assignment()) != count:
        await one.getmany(timeout=0.1)


# ---------------------------------------------------------------- joining, rebalancing, leaving


async def test_a_classic_member(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(network):
        async with consumer("a") as first:
            await first.wait_assignment()
            assert lines(caplog) == [
                f"consumer a of group g: joined generation 1 as ID, the leader of 1 member{AT}",
                "consumer a of group g: assigned 4 partitions: t/0, t/1, t/2, t/3 (generation 1)",
            ]
            async with consumer("b") as second:
                await assigned(second, 2)
                await assigned(first, 2)
                found = lines(caplog)
                assert sorted(found) == [
                    "consumer a of group g: assigned 2 partitions: t/0, t/1 (generation 2)",
                    (
                        "consumer a of group g: joined generation 2 as ID, the leader of 2 members"
                        f"{AT}"
                    ),
                    "consumer a of group g: revoked 4 partitions: t/0, t/1, t/2, t/3",
                    "consumer b of group g: assigned 2 partitions: t/2, t/3 (generation 2)",
                    f"consumer b of group g: joined generation 2 as ID{AT}",
                ]
            assert lines(caplog) == [
                "consumer b of group g: revoked 2 partitions: t/2, t/3",
                "consumer b of group g: left the group: the consumer was closed",
            ]
            await first.unsubscribe()
            assert lines(caplog)[-2:] == [
                "consumer a of group g: revoked 2 partitions: t/0, t/1",
                "consumer a of group g: left the group: the consumer unsubscribed",
            ]
        assert lines(caplog) == []


async def test_a_cooperative_member(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    sticky = [cooperative_sticky_assignor]
    async with (
        cluster(network),
        consumer("a", assignors=sticky) as first,
    ):
        await assigned(first, 4)
        async with consumer("b", assignors=sticky) as second:
            lines(caplog)
            await assigned(first, 2)
            await assigned(second, 2)
            ours = [line for line in lines(caplog) if "consumer a" in line and "joined" not in line]
            assert ours == [
                "consumer a of group g: revoked 2 partitions: t/2, t/3",
                (
                    "consumer a of group g: assigned no new partitions, 2 in all: t/0, t/1"
                    " (generation 2)"
                ),
                (
                    "consumer a of group g: assigned no new partitions, 2 in all: t/0, t/1"
                    " (generation 3)"
                ),
            ]
        await assigned(first, 4)
        assert lines(caplog)[-1] == (
            "consumer a of group g: assigned 2 new partitions, 4 in all: t/2, t/3 (generation 4)"
        )


async def test_a_member_of_a_consumer_group(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(network):
        async with consumer("a", group_protocol="consumer") as first:
            await assigned(first, 4)
            async with consumer("b", group_protocol="consumer") as second:
                await assigned(first, 2)
                await assigned(second, 2)
                found = lines(caplog)
        assert [re.sub(r"epoch \d", "epoch N", line) for line in found] == [
            f"consumer a of group g: joined epoch N as ID{AT}",
            "consumer a of group g: assigned 4 partitions: t/0, t/1, t/2, t/3 (epoch N)",
            f"consumer b of group g: joined epoch N as ID{AT}",
            "consumer b of group g: assigned no partitions (epoch N)",
            "consumer a of group g: revoked 2 partitions: t/2, t/3",
            "consumer a of group g: assigned no new partitions, 2 in all: t/0, t/1 (epoch N)",
            "consumer b of group g: assigned 2 partitions: t/2, t/3 (epoch N)",
        ]
        assert lines(caplog) == [
            "consumer b of group g: revoked 2 partitions: t/2, t/3",
            "consumer b of group g: left the group: the consumer was closed",
            "consumer a of group g: revoked 2 partitions: t/0, t/1",
            "consumer a of group g: left the group: the consumer was closed",
        ]


async def test_a_consumer_in_zookeeper(
    network: Any, sessions: list[FakeSession], caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(network):
        async with consumer(membership=ZooKeeperMembership("zk:2181")) as ours:
            while not sessions:
                await anyio.sleep(0.1)
            sessions[-1].begin()
            await assigned(ours, 4)
            sessions[-1].expire()
            while len(sessions) < 2:
                await ours.getmany(timeout=0.1)
            found = lines(caplog)
        assert found == [
            "consumer a of group g: joined as ID-1",
            "consumer a of group g: assigned 4 partitions: t/0, t/1, t/2, t/3 (generation 2)",
            (
                "WARNING consumer a of group g: lost 4 partitions (t/0, t/1, t/2, t/3): ZooKeeper"
                " has ended the session"
            ),
        ]
        assert lines(caplog) == ["consumer a of group g: left the group: the consumer was closed"]


async def test_a_group_member(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(network):
        async with GroupMember("g", WORK, **options()) as member:
            await anext(member)
        assert lines(caplog) == [
            f"member a of group g: joined generation 1 as ID, the leader of 1 member{AT}",
            "member a of group g: assigned 5 bytes (generation 1)",
            "member a of group g: revoked 5 bytes",
            "member a of group g: left the group: the member was closed",
        ]


async def test_an_election(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(network):
        async with Election("g", **options()) as first, anyio.create_task_group() as tasks:
            leadership = await anext(first)

            async def lead_again() -> None:
                await leadership.over.wait()
                await anext(first)

            tasks.start_soon(lead_again)
            async with Election("g", **options(client_id="b")) as second:
                await anext(second.leaders())
                await first._member.wait_generation()
                found = [line for line in lines(caplog) if "joined" not in line]
            tasks.cancel_scope.cancel()
        assert sorted(found) == [
            "election a of group g: assigned the leadership (generation 1)",
            "election a of group g: assigned the leadership (generation 2)",
            "election a of group g: revoked the leadership",
            "election b of group g: assigned no leadership: ID leads (generation 2)",
        ]
        assert lines(caplog) == [
            "election b of group g: left the group: the member was closed",
            "election a of group g: revoked the leadership",
            "election a of group g: left the group: the member was closed",
        ]


async def test_shards(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(network):
        async with Shards("g", 8, **options()) as shards:
            await anext(shards)
        assert lines(caplog)[1:] == [
            "shards a of group g: assigned 8 of 8 shards: 0, 1, 2, 3, 4 and 3 more (generation 1)",
            "shards a of group g: revoked 8 of 8 shards: 0, 1, 2, 3, 4 and 3 more",
            "shards a of group g: left the group: the member was closed",
        ]


async def test_an_election_that_cannot_read_its_assignment(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader runs another program: the log must not end the membership."""
    other = GroupProtocol("kafkagroup-election", "incumbent", b"", lambda members: {})
    async with cluster(network), GroupMember("g", other, **options(client_id="b")) as leader:
        await anext(leader)
        async with Election("g", **options()) as ours:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anext, leader)
                await ours._member.wait_generation()
            (line,) = [line for line in lines(caplog) if "election a" in line and "ass" in line]
    assert line.startswith("election a of group g: assigned what cannot be read (the group leader")


# ---------------------------------------------------------------- lost, moved, stopped


@pytest.mark.parametrize(
    ("kind", "request_type"),
    [("classic", HeartbeatRequest), ("consumer", ConsumerGroupHeartbeatRequest)],
)
async def test_a_loss_is_one_line(
    network: Any, caplog: pytest.LogCaptureFixture, kind: Any, request_type: Any
) -> None:
    async with cluster(network) as kafka, consumer(group_protocol=kind) as ours:
        await assigned(ours, 4)
        lines(caplog)
        kafka.fail(request_type, ErrorCode.UNKNOWN_MEMBER_ID)
        found: list[str] = []
        while len(found) < 3:
            await ours.getmany(timeout=0.1)
            found += [line for line in lines(caplog) if "consumer a" in line]
    lost, joined, again = found
    assert lost.startswith(
        "WARNING consumer a of group g: lost 4 partitions (t/0, t/1, t/2, t/3): "
    )
    assert joined.startswith("consumer a of group g: joined ")
    assert again.startswith("consumer a of group g: assigned 4 partitions: t/0, t/1, t/2, t/3 (")


async def test_a_generic_member_loses_what_it_was_assigned(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(network) as kafka, GroupMember("g", WORK, **options()) as member:
        await anext(member)
        lines(caplog)
        kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        await anext(member)
        lost = lines(caplog)[0]
    assert lost.startswith("WARNING member a of group g: lost 5 bytes: ")


async def test_the_coordinator_moves(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(network, nodes=2) as kafka, consumer() as ours:
        await assigned(ours, 4)
        old = kafka.coordinator("g")
        new = 3 - old
        lines(caplog)
        kafka.move_coordinator("g", new)
        while (found := ours.coordinator) is None or found.node_id != new:
            await ours.getmany(timeout=0.1)
        moved = [line for line in lines(caplog) if "moved" in line]
    assert moved == [
        (
            f"consumer a of group g: the coordinator moved from broker {old} at kafka-{old}:9092"
            f" to broker {new} at kafka-{new}:9092"
        )
    ]


@pytest.mark.parametrize("kind", ["classic", "consumer"])
async def test_a_static_member_keeps_its_place(
    network: Any, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    async with cluster(network):
        async with consumer(group_protocol=kind, group_instance_id="i") as ours:
            await assigned(ours, 4)
        assert lines(caplog)[-1] == (
            "consumer a of group g: stopped, and the group waits for it for up to one session:"
            " the consumer was closed"
        )
        async with consumer(group_protocol=kind, group_instance_id="i") as ours:
            await assigned(ours, 4)
            await ours.stop(leave_group=True)
        left = "consumer a of group g: left the group: the consumer was closed"
        assert lines(caplog)[-1] == left


async def test_a_member_that_fails_has_left(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(network) as kafka:
        async with consumer(private={"rebalance_max_retries": 1}) as ours:
            await assigned(ours, 4)
            kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
            kafka.fail(JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
            with pytest.raises(JoinFailedError) as raised:
                await assigned(ours, 0)
                await assigned(ours, 4)
        assert lines(caplog)[-1] == f"consumer a of group g: left the group: {raised.value}"


async def test_a_member_that_never_joined_has_not_left(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(network) as kafka:
        kafka.fail(JoinGroupRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        with pytest.raises(BrokerError):
            async with consumer() as ours:
                await ours.getone()
        assert lines(caplog) == []


@pytest.mark.parametrize("kind", ["classic", "consumer", None])
async def test_a_clean_stop_logs_no_closed_connection(
    network: Any, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    """Each fetch in flight, and each other request, logged that its connection was closed."""
    group = {} if kind is None else {"group_id": "g", "group_protocol": kind}
    async with cluster(network):
        async with Consumer("t", **options(), **group) as ours:
            await ours.getmany(timeout=1.3)  # ends within a long poll
            lines(caplog)
        found = lines(caplog, logging.DEBUG)
    assert [line for line in found if "connection" in line] == []


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_every_debug_line_names_its_client(
    network: Any, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level, "kafkagroup")
    async with cluster(network) as kafka:
        async with consumer() as ours:
            await assigned(ours, 4)
            kafka.fail(HeartbeatRequest, Close(), times=1)
            kafka.fail(MetadataRequest, Close(), times=1)
            ours._engine._cluster.refresh_soon()
            await ours.getmany(timeout=5)
        found = [
            r.message
            for r in caplog.records
            if r.levelno == logging.DEBUG and ".testing." not in r.name
        ]
    assert bool(found) == (level == logging.DEBUG)
    assert [line for line in found if not line.startswith("consumer a of group g: ")] == []


async def test_the_lines_of_positions_do_not_grow_with_the_partitions(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """There was one for each partition without a committed offset."""
    async with network, EmbeddedKafka({"t": 40}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Consumer("t", group_id="g", **options()) as ours:
            await assigned(ours, 40)
            await ours.getmany(timeout=1)
    assert [line for line in caplog.messages if "start of" in line] == [
        (
            "consumer a of group g: start of 40 partitions (auto_offset_reset): t/0 at 0, t/1 at 0,"
            " t/2 at 0, t/3 at 0, t/4 at 0 and 35 more"
        )
    ]


# ---------------------------------------------------------------- the poll timer


async def test_a_missed_poll_is_logged_with_its_numbers(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(network) as kafka:
        kafka.produce("t", ["0", "1"], partition=0)
        async with Consumer("t", group_id="g", max_poll_interval_ms=20_000, **options()) as ours:
            await ours.getone()
            lines(caplog)
            await anyio.sleep(30)
            assert lines(caplog) == [
                (
                    "WARNING consumer a of group g: leaves the group, because the application has"
                    " not requested records for 20.0 s; max_poll_interval_ms is 20000; process"
                    " records faster, take fewer at a time, or raise max_poll_interval_ms"
                ),
                (
                    "WARNING consumer a of group g: lost 4 partitions (t/0, t/1, t/2, t/3): the"
                    " application stopped polling"
                ),
                "consumer a of group g: left the group: the application stopped polling",
            ]


# ---------------------------------------------------------------- cost


class Counting(Sequence[TopicPartition]):
    """A hundred thousand partitions, which counts how many are looked at."""

    looked_at = 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: Any) -> Any:
        self.looked_at += 1
        return TopicPartition("t", index)


@pytest.mark.parametrize(("level", "looked_at"), [(logging.INFO, 15), (logging.WARNING, 5)])
def test_large_assignments_cost_no_more(
    caplog: pytest.LogCaptureFixture, level: int, looked_at: int
) -> None:
    """At INFO the first few of each line are formatted; else only those of a loss."""
    caplog.set_level(level, membership_log.__name__)
    log, partitions = MembershipLog("consumer", "a", "g"), Counting()
    generation = GenerationInfo(1, "m", "m", "range", {}, b"")
    log.assigned(partitions, (), generation)
    log.revoked(partitions)
    log.lost(partitions, "why")
    assert partitions.looked_at == looked_at
    shown = "t/0, t/1, t/2, t/3, t/4 and 99,995 more"
    assert (
        lines(caplog)[-3:]
        == [
            (
                f"consumer a of group g: assigned no new partitions, 100,000 in all: {shown}"
                " (generation 1)"
            ),
            f"consumer a of group g: revoked 100,000 partitions: {shown}",
            f"WARNING consumer a of group g: lost 100,000 partitions ({shown}): why",
        ][-1 if level == logging.WARNING else 0 :]
    )


def test_every_debug_line_in_the_source_names_its_client() -> None:
    """With a thousand members in a process, a line without a name says nothing."""
    calls = [
        (path.name, node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("logger.debug", "_log.debug")
    ]
    formats = {(name, ast.literal_eval(call.args[0])) for name, call in calls}
    assert len(calls) > 5
    unnamed = {(name, text) for name, text in formats if not text.startswith("%s: ")}
    assert unnamed == {("server.py", "node %d closes a connection of client %r: %r")}


def test_the_lines_of_kazoo_name_the_client(caplog: pytest.LogCaptureFixture) -> None:
    named = session._NamedLogger(logging.getLogger("kafkagroup.kazoo"), "consumer 5% of group g")
    named.info("Connecting to %s", "zk")
    assert lines(caplog) == ["consumer 5% of group g: Connecting to zk"]


def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    log = MembershipLog("consumer", "a\nERROR", "g")
    log.lost((), "said\nso")
    assert lines(caplog) == [
        r"WARNING consumer a\nERROR of group g: lost its membership, without partitions: said\nso"
    ]

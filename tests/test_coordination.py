"""The decisions of elections and shards, their encoding, and when their scopes end."""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from memory_network import network

from kafkagroup import (
    ClosedError,
    ConfigurationError,
    GroupMember,
    GroupProtocol,
    HealthProblem,
    ZooKeeperMembership,
)
from kafkagroup.coordination import (
    MAX_SHARDS,
    MAX_VALUE_BYTES,
    Election,
    Leader,
    MemberOptions,
    Shards,
    assign_shards,
    elect,
)
from kafkagroup.errors import DecodeError, NotStartedError
from kafkagroup.events import (
    CoordinatorFound,
    GroupLeft,
    RebalanceCause,
    Rebalanced,
    RebalanceStarted,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Delay, Swallow
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

NEVER, RESIGNED = -1, -2


def blob(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def text(data: str) -> bytes:
    return struct.pack(">h", len(data)) + data.encode()


def numbers(some: list[int]) -> bytes:
    return struct.pack(f">i{len(some)}i", len(some), *some)


def candidate(value: bytes, led: int = NEVER, version: int = 0) -> bytes:
    return struct.pack(">h", version) + blob(value) + struct.pack(">i", led)


def elected(leader: str, value: bytes) -> bytes:
    return b"\0\0" + text(leader) + blob(value)


def worker(value: bytes, owned: list[int] | None = None, generation: int = NEVER) -> bytes:
    return b"\0\0" + blob(value) + struct.pack(">i", generation) + numbers(owned or [])


def roster(mine: list[int], members: Mapping[str, bytes]) -> bytes:
    everybody = b"".join(text(m) + blob(value) for m, value in members.items())
    return b"\0\0" + numbers(mine) + struct.pack(">i", len(members)) + everybody


def mine_in(assignment: bytes) -> list[int]:
    (count,) = struct.unpack_from(">i", assignment, 2)
    return list(struct.unpack_from(f">{count}i", assignment, 6))


# ---------------------------------------------------------------- who leads


@pytest.mark.parametrize(
    ("members", "leader"),
    [
        ({"a": candidate(b"A")}, "a"),
        ({"a": candidate(b"A"), "b": candidate(b"B")}, "b"),
        ({"a": candidate(b"A", 1), "b": candidate(b"B")}, "a"),
        # The older claim belongs to a member that was absent while another one led.
        ({"a": candidate(b"A", 7), "b": candidate(b"B", 3)}, "a"),
        ({"a": candidate(b"A"), "b": candidate(b"B", RESIGNED)}, "a"),
        ({"b": candidate(b"B", RESIGNED)}, "b"),
        # A newer version appends fields.
        ({"a": candidate(b"A", 4, version=3) + b"more", "b": candidate(b"B")}, "a"),
    ],
)
def test_the_leader_stays_and_resigned_members_are_elected_last(members, leader):
    assert elect(members) == dict.fromkeys(members, elected(leader, leader.upper().encode()))


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\0", b"hello", b"\xff\xff" + candidate(b"")[2:], candidate(b"value")[:-1]],
)
def test_only_a_member_with_undecodable_metadata_is_excluded(garbage, caplog):
    members = {"a": candidate(b"A"), "z": garbage}
    assert elect(members) == {"a": elected("a", b"A")}
    assert elect({"z": garbage}) == {}
    assert "member z is left out" in caplog.text
    members = {"a": worker(b"A"), "z": garbage}
    assert assign_shards(2, members) == {"a": roster([0, 1], {"a": b"A"})}


# ---------------------------------------------------------------- who does what


@pytest.mark.parametrize(
    ("members", "shares"),
    [
        ({"a": worker(b"")}, {"a": [0, 1, 2, 3, 4]}),
        ({"a": worker(b""), "b": worker(b"")}, {"a": [0, 1, 2], "b": [3, 4]}),
        # The member with more shards keeps more: only two shards move.
        (
            {"a": worker(b""), "b": worker(b"", [0, 1, 2, 3, 4], 1)},
            {"a": [3, 4], "b": [0, 1, 2]},
        ),
        # A member left: the others keep their shards.
        (
            {"a": worker(b"", [1, 4], 2), "b": worker(b"", [3], 2)},
            {"a": [0, 1, 4], "b": [2, 3]},
        ),
        # Both claim shard 0; what a newer generation gave holds.
        (
            {"a": worker(b"", [0, 1], 9), "b": worker(b"", [0, 2, 4], 3)},
            {"a": [0, 1, 3], "b": [2, 4]},
        ),
        # More members than shards; claims beyond the shards are none.
        (
            {m: worker(b"", [5, -1, 99], 1) for m in "abcdef"},
            {"a": [0], "b": [1], "c": [2], "d": [3], "e": [4], "f": []},
        ),
    ],
)
def test_shards_are_balanced_and_keep_their_owners(members, shares):
    assert {m: mine_in(a) for m, a in assign_shards(5, members).items()} == shares


def test_every_member_learns_of_all_members():
    members = {"b": worker(b"host-2", [1], 1), "a": worker(b"host-1", [0], 1)}
    values = {"a": b"host-1", "b": b"host-2"}
    assert assign_shards(2, members) == {"a": roster([0], values), "b": roster([1], values)}


claims = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2),
    st.tuples(st.lists(st.integers(-2, 45), unique=True, max_size=45), st.integers(-1, 5)),
    min_size=1,
    max_size=8,
)


@given(shards=st.integers(1, 40), claimed=claims)
def test_every_shard_has_one_owner_with_the_fewest_moves(shards, claimed):
    members = {m: worker(b"", owned, generation) for m, (owned, generation) in claimed.items()}
    given = {m: mine_in(a) for m, a in assign_shards(shards, members).items()}
    assert sorted(shard for mine in given.values() for shard in mine) == list(range(shards))
    sizes = sorted(map(len, given.values()))
    assert sizes[-1] - sizes[0] <= 1
    assert assign_shards(shards, dict(reversed(members.items()))) == assign_shards(shards, members)

    held: dict[int, str] = {}
    for m in sorted(claimed, key=lambda m: (claimed[m][1], m)):
        held |= {shard: m for shard in claimed[m][0] if 0 <= shard < shards}
    counts = sorted((list(held.values()).count(m) for m in given), reverse=True)
    low, larger = divmod(shards, len(given))
    possible = sum(min(c, low + (rank < larger)) for rank, c in enumerate(counts))
    kept = sum(held.get(shard) == m for m, mine in given.items() for shard in mine)
    assert kept == possible


@given(st.binary(max_size=60))
def test_undecodable_metadata_raises_nothing_in_the_leader(data):
    elect({"a": candidate(b"A"), "z": data})
    assign_shards(3, {"a": worker(b"A"), "z": data})


# ---------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Election("g", "host"), "value is a str; it must be bytes"),
        (lambda: Election("g", bytes(MAX_VALUE_BYTES + 1)), "value has 1025 bytes"),
        (lambda: Shards("g", 4, bytes(MAX_VALUE_BYTES + 1)), "the limit is 1024"),
        (lambda: Shards("g", 0), "shards=0 must be a whole number between 1 and 65536"),
        (lambda: Shards("g", "6"), "shards='6' must be a whole number between 1 and 65536"),
        (lambda: Shards("g", True), "shards=True must be a whole number between 1 and 65536"),
        (lambda: Shards("g", MAX_SHARDS + 1), "shards=65537 must be a whole number between"),
        (lambda: Shards("", 4), "group_id is empty"),
        (lambda: Shards("g", 4, group_instance_id=""), "group_instance_id is empty"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_elections_and_shards_accept_every_option_of_a_member():
    parameters = inspect.signature(GroupMember.__init__).parameters.values()
    options = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert set(MemberOptions.__annotations__) == options


# ---------------------------------------------------------------- when scopes end

SESSION = 2.0
"""Seconds; virtual ones."""
BEAT = 0.5
SERVER = "kafka-1:9092"

__all__ = ["network"]

OPTIONS = {"session_timeout_ms": int(SESSION * 1000), "heartbeat_interval_ms": int(BEAT * 1000)}


@pytest.fixture
def short_sessions(network):
    """Provide a broker in memory: with sockets the clock may jump before the kernel has
    delivered."""

    @asynccontextmanager
    async def opened():
        settings = BrokerSettings(group_min_session_timeout=0.2)
        async with network, EmbeddedKafka(listen=False, settings=settings) as kafka:
            network.serve_embedded(kafka)
            yield kafka

    return opened


def member(**options: int) -> GroupMember:
    protocol = GroupProtocol("plain", "same", b"", lambda members: dict.fromkeys(members, b"x"))
    return GroupMember("g", protocol, bootstrap_servers=SERVER, **{**OPTIONS, **options})


@pytest.fixture
def freeze(anyio_backend_name: str) -> Callable[[float], None]:
    """Advance the time without running any task, as when the process is frozen."""

    def jump(seconds: float) -> None:
        if anyio_backend_name == "trio":
            trio.lowlevel.current_clock().jump(seconds)
        else:
            asyncio.get_running_loop()._virtual.now += seconds

    return jump


@pytest.mark.anyio
async def test_a_scope_ends_one_session_after_the_last_acknowledged_heartbeat_was_sent(
    short_sessions,
):
    async with short_sessions() as kafka, member() as alone:
        generation = await anext(alone)
        with generation.scope():
            await anyio.sleep(3 * SESSION)  # acknowledgements move the end on
            silent = kafka.fail(HeartbeatRequest, Swallow(), times=None)
            last_chance = anyio.current_time()
            sure_until = generation.lease_expires_at
            await anyio.sleep_forever()
        # Heartbeats that were sent since, and never answered, changed nothing.
        assert silent.hits >= 1
        assert anyio.current_time() == sure_until == generation.lease_expires_at
        assert last_chance + SESSION - BEAT <= sure_until <= last_chance + SESSION
        with anyio.fail_after(1.0):
            await generation.over.wait()
        assert anyio.current_time() == sure_until
        silent.stop()


@pytest.mark.anyio
async def test_a_scope_entered_after_the_lease_expired_ends_at_once(freeze, short_sessions):
    async with short_sessions(), member() as alone:
        generation = await anext(alone)
        done = []
        freeze(SESSION)
        with generation.scope():
            await anyio.lowlevel.checkpoint()
            done.append("work of a generation that others may have")
        assert done == []


@pytest.mark.anyio
async def test_a_resumed_process_is_cancelled_before_it_continues(freeze, short_sessions):
    done = []
    async with short_sessions(), member() as alone:
        generation = await anext(alone)
        with generation.scope():
            freeze(SESSION + 1.0)
            await anyio.sleep(0.001)
            done.append("work of a generation that others may have")
        assert done == []


@pytest.mark.anyio
async def test_work_is_cancelled_soon_after_a_suspend_that_the_loops_clock_did_not_count(
    suspend, short_sessions
):
    """A deadline of the loop came as much later: a second leader worked for up to a session."""
    done = []
    async with short_sessions() as kafka, member(session_timeout_ms=45_000) as alone:
        generation = await anext(alone)
        silent = kafka.fail(HeartbeatRequest, Swallow(), times=None)
        with generation.scope() as scope:
            suspend(60.0)
            resumed_at = anyio.current_time()
            await anyio.sleep(0.2)
            done.append("work of a generation that others may have")
        assert scope.cancelled_caught
        assert done == []
        assert anyio.current_time() - resumed_at <= 0.11
        assert generation.over.is_set()
        silent.stop()


@pytest.mark.anyio
async def test_nobody_believes_to_lead_after_a_suspend(suspend, short_sessions):
    """Each look at the leadership checks the lease, also before any other task has run."""
    async with short_sessions() as kafka:
        election = Election("g", bootstrap_servers=SERVER, session_timeout_ms=45_000)
        async with election:
            leadership = await anext(election)
            silent = kafka.fail(HeartbeatRequest, Swallow(), times=None)
            suspend(30.0)
            assert election.leader.token == leadership.token
            assert 0.0 < leadership.lease_expires_at - anyio.current_time() <= 15.0
            suspend(30.0)
            assert leadership.lease_expires_at < anyio.current_time()
            done = []
            with leadership.scope():
                await anyio.lowlevel.checkpoint()
                done.append("work of a leader that others may have replaced")
            assert done == []
            assert election.leader is None
            assert leadership.over.is_set()
            silent.stop()


@pytest.mark.anyio
async def test_a_new_term_follows_a_suspend(suspend, short_sessions):
    async with short_sessions():
        election = Election("g", bootstrap_servers=SERVER, session_timeout_ms=45_000)
        async with election:
            first = await anext(election)
            suspend(60.0)
            with anyio.fail_after(10.0):
                second = await anext(election)
            assert first.token < second.token
            with second.scope():
                await anyio.sleep(120.0)
            assert not second.over.is_set()


@pytest.mark.anyio
async def test_work_restarts_when_the_coordinator_is_reachable_again(short_sessions):
    """The coordinator sees no change: without a new generation, the cancelled work would never
    start again."""
    async with short_sessions() as kafka, member() as alone:
        generation = await anext(alone)
        # The coordinator gets requests for half a second after its responses are cut off, and
        # rejoining takes a back-off of 0.1 s.
        await anyio.sleep(2 * SESSION)
        silent = kafka.fail(HeartbeatRequest, Swallow(), times=None)
        with generation.scope():
            await anyio.sleep_forever()
        silent.stop()
        with anyio.fail_after(5.0):
            later = await anext(alone)
        assert later.member_id == generation.member_id
        assert later.generation_id == generation.generation_id + 1
        assert not later.over.is_set()


@pytest.mark.anyio
async def test_a_leader_without_a_broker_resigns_within_its_session(short_sessions):
    async with short_sessions() as kafka:
        election = Election("g", bootstrap_servers=SERVER, **OPTIONS)
        async with election:
            leadership = await anext(election)
            with leadership.scope():
                await anyio.sleep(SESSION)
                died = anyio.current_time()
                kafka.kill(1)
                await anyio.sleep_forever()
            assert died + SESSION - BEAT <= anyio.current_time() <= died + SESSION
            with anyio.fail_after(1.0):
                await leadership.over.wait()
            assert election.leader is None
            kafka.restart(1)
            with anyio.fail_after(5.0):
                later = await anext(election)
            assert later.token > leadership.token


@pytest.mark.anyio
async def test_a_generation_lost_before_its_delivery_is_not_delivered(
    short_sessions,
):
    """`rejoin` during SyncGroup left its generation valid for the user, who delayed the group until
    the rebalance timeout."""
    async with short_sessions() as kafka:
        slow = kafka.fail(SyncGroupRequest, Delay(0.5))
        async with member() as alone:
            generations = []

            async def take() -> None:
                async for generation in alone:
                    generations.append(generation)
                    await generation.over.wait()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                while not slow.hits:
                    await anyio.sleep(0.01)
                alone.rejoin()
                await anyio.sleep(1.0)
                assert [g.generation_id for g in generations if not g.over.is_set()] == [2]
                tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_metadata_changed_between_generations_causes_no_additional_rebalance(
    short_sessions,
):
    """The first member leads, and reports the change when it rejoins for the second."""
    async with short_sessions() as kafka, anyio.create_task_group() as tasks:
        # Without the first member's report, the greater member id would be elected.
        candidates = [
            Election("g", client_id=name, bootstrap_servers=SERVER, **OPTIONS)
            for name in ("a", "b")
        ]

        async def lead(candidate: Election) -> None:
            async with candidate:
                async for leadership in candidate:
                    with leadership.scope():
                        await anyio.sleep_forever()

        for candidate in candidates:
            tasks.start_soon(lead, candidate)
            await anyio.sleep(2.0)
        first, second = candidates
        assert first.leader == second.leader == Leader(first.member_id, b"", 2)
        # KIP-394: each asked twice to get in, as it had no member id at first.
        assert len(kafka.requests(JoinGroupRequest)) == 2 + 2 + 1
        for candidate in candidates:
            await candidate.stop()


@pytest.mark.anyio
async def test_an_early_request_for_the_next_assignment_waits(short_sessions):
    async with short_sessions() as kafka:
        async with Shards("g", 4, bootstrap_servers=SERVER, **OPTIONS) as shards:
            share = await anext(shards)
            joins = len(kafka.requests(JoinGroupRequest))
            with anyio.move_on_after(10.0) as patience:
                await anext(shards)
            assert patience.cancelled_caught
            assert not share.over.is_set()
            assert len(kafka.requests(JoinGroupRequest)) == joins


@pytest.mark.anyio
async def test_an_assignment_of_another_program_is_a_typed_error(short_sessions):
    async with short_sessions(), anyio.create_task_group() as tasks:
        server = {"bootstrap_servers": SERVER, **OPTIONS}

        def foreign(what: bytes) -> GroupProtocol:
            def assign(members: Mapping[str, bytes]) -> Mapping[str, bytes]:
                return dict.fromkeys(members, what)

            return GroupProtocol("kafkagroup-shards", "2-shards", b"?", assign)

        stranger = GroupMember("g", foreign(b""), **server)

        async def others() -> None:
            async with stranger:
                async for generation in stranger:
                    await generation.over.wait()

        tasks.start_soon(others)
        await stranger.wait_generation()
        for assignment, message in (
            (b"", f"the group leader {stranger.member_id} assigned nothing to this member"),
            (b"garbage", "garbage|claims|left|input"),
            (roster([0, 2], {}), "a shard twice, or one beyond 2"),
            (roster([1, 1], {}), "a shard twice, or one beyond 2"),
            (roster([-1], {}), "a shard twice, or one beyond 2"),
        ):
            stranger.update(foreign(assignment))
            async with Shards("g", 2, **server) as shards:
                with pytest.raises(DecodeError, match=message):
                    await anext(shards)
        await stranger.stop()


@pytest.mark.anyio
async def test_an_observer_is_notified_of_the_end(short_sessions):
    async with short_sessions():
        election = Election("g", bootstrap_servers=SERVER, **OPTIONS)
        async with election, anyio.create_task_group() as tasks:
            leadership = await anext(election)
            seen = {}

            async def watch() -> None:
                async for leader in election.leaders():
                    seen[leader.token] = leader

            tasks.start_soon(watch)
            await anyio.sleep(0.1)
            assert seen == {leadership.token: Leader(election.member_id, b"", leadership.token)}
            await election.stop()
        assert len(seen) == 1
        assert [again async for again in election] == []
        with pytest.raises(ClosedError, match="was closed"):
            await election._member.wait_generation()


@pytest.mark.anyio
async def test_a_stopped_member_leaves_after_its_work(short_sessions):
    """`stop` in another task left the group at once, and the next leader began during the cleanup
    of the last one."""
    order: list[object] = []
    async with short_sessions(), anyio.create_task_group() as tasks:
        first, second = (Election("g", bootstrap_servers=SERVER, **OPTIONS) for _ in range(2))

        async def lead(election: Election, name: str) -> None:
            async with election:
                async for leadership in election:
                    order.append(f"{name} begins")
                    with leadership.scope():
                        try:
                            await anyio.sleep_forever()
                        finally:
                            with anyio.CancelScope(shield=True):
                                await anyio.sleep(1.0)
                            order.append(f"{name} ends")

        tasks.start_soon(lead, first, "first")
        await anyio.sleep(1.0)
        tasks.start_soon(lead, second, "second")
        await anyio.sleep(3.0)
        await first.stop()
        await anyio.sleep(1.0)
        await second.stop()
    assert order == ["first begins", "first ends"] * 2 + ["second begins", "second ends"]


OBSERVED = pytest.mark.parametrize(
    "client",
    [partial(Election, "g"), partial(Shards, "g", 4)],
    ids=["election", "shards"],
)


@pytest.mark.anyio
@OBSERVED
async def test_the_membership_is_observed_as_that_of_other_members(short_sessions, client):
    """Both had no health, events or metrics: only the member that they have inside."""
    async with short_sessions() as kafka:
        observed = client(bootstrap_servers=SERVER, **OPTIONS)
        assert str(observed.health()).startswith("not running: not started, or closed")
        with pytest.raises(NotStartedError):
            observed.metrics()
        events = observed.events()
        async with observed:
            await anext(observed)
            assert observed.health().findings == ()
            assert observed.metrics().rebalance_causes == {RebalanceCause.JOINING: 1}
            assert [type(await anext(events)) for _ in range(3)] == [
                RebalanceStarted,
                CoordinatorFound,
                Rebalanced,
            ]
            silent = kafka.fail(HeartbeatRequest, Swallow(), times=None)
            await anyio.sleep(2 * SESSION)
            problems = [f.problem for f in observed.health(joining_after=0.0).findings]
            assert problems == [HealthProblem.NOT_JOINED]
            silent.stop()
            await anext(observed)
            assert observed.health().findings == ()
            assert observed.metrics().rebalance_causes[RebalanceCause.SILENCE] == 1
        assert [type(event) async for event in events][-1] is GroupLeft
        assert str(observed.health()).startswith("not running: not started, or closed")


@pytest.mark.anyio
@OBSERVED
async def test_a_member_that_is_given_nothing_is_healthy(short_sessions, client):
    async with short_sessions(), anyio.create_task_group() as tasks:
        options = {"bootstrap_servers": SERVER, "rebalance_timeout_ms": 3_000, **OPTIONS}
        members = [client(**options) for _ in range(5)]

        async def take_part(member: Election | Shards) -> None:
            async with member:
                async for won in member:
                    with won.scope():
                        await anyio.sleep_forever()

        for member in members:
            tasks.start_soon(take_part, member)
        await anyio.sleep(10.0)
        assert [member.health().findings for member in members] == [()] * 5
        for member in members:
            await member.stop()


@OBSERVED
def test_only_a_group_that_kafka_coordinates_has_events(client):
    with pytest.raises(ConfigurationError, match="need a group that Kafka coordinates"):
        client(membership=ZooKeeperMembership("zk:2181")).events()


@pytest.mark.anyio
async def test_stop_inside_the_scope_does_not_wait(short_sessions):
    async with short_sessions() as kafka:
        async with Election("g", bootstrap_servers=SERVER, **OPTIONS) as election:
            with anyio.fail_after(1.0):
                async for leadership in election:
                    with leadership.scope():
                        await election.stop()
        assert kafka.group_state("g") == "Empty"

"""Golden transcripts of several members and their coordinator: `tests/transcripts/*.txt`.

In a transcript, `#` lines describe it, `>` lines are its commands, and the lines below a command
are what happened in virtual time until the command had ended. The members are the real `step`, the
coordinator is that of the embedded broker; only the network (10 ms each way, one request at a time
on a connection) is simulated here.

To write them anew from their commands, run

    KAFKAGROUP_REWRITE_TRANSCRIPTS=1 pytest tests/member/test_transcripts.py

and read the difference before you commit it.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest

from kafkagroup.assign import GroupSpec, MemberSpec, cooperative_sticky_assignor
from kafkagroup.errors import ConnectionLostError, ErrorCode, RequestTimeoutError, error_name
from kafkagroup.member.classic import step
from kafkagroup.member.classic_state import Member, Phase
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.vocabulary import (
    Assign,
    ClassicEffect,
    ClassicEvent,
    Compute,
    Computed,
    ComputeFailed,
    Coordinator,
    Fail,
    FindCoordinator,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Replied,
    Revoke,
    Revoked,
    Route,
    Send,
    SendFailed,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.testing.embedded.coordinator import Caller, ClassicCoordinator
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.timers import Timers
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

STORIES = sorted((Path(__file__).parent.parent / "transcripts").glob("*.txt"))
REWRITE = bool(os.environ.get("KAFKAGROUP_REWRITE_TRANSCRIPTS"))

LATENCY = 0.01
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 9, 5, 4, 5
PARTITIONS = 4
CONFIG = MemberConfig(
    group_id="g",
    protocol_type="consumer",
    session_timeout=10.0,
    rebalance_timeout=30.0,
    heartbeat_interval=3.0,
    settling_interval=3.0,  # more heartbeats would fill the transcripts
    request_timeout=5.0,
    retry_backoff=0.1,
    retry_backoff_max=1.0,
)
NAMES = {JoinGroupRequest: "JoinGroup", SyncGroupRequest: "SyncGroup", LeaveGroupRequest: "Leave"}


@attrs.define(eq=False)
class Actor:
    """A member and its process."""

    name: str
    member: Member
    drain: float = 0.0
    """Seconds that the application takes to revoke."""
    revokes_by: float = float("inf")
    assignor_fails: bool = False
    """Whether its assignor raises."""
    dies_as_leader: bool = False
    """Whether it crashes when it must assign."""
    dead: bool = False
    wake: int = 0
    """The number of the latest wake-up; earlier ones are ignored."""
    work: deque[ClassicEffect] = attrs.field(factory=deque)
    working: bool = False
    owns: tuple[int, ...] = ()
    connections: dict[Route, Connection] = attrs.field(factory=dict)


def protocol_metadata(owned: tuple[int, ...], generation: int) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata of a cooperative member: the generation and the partitions owned in
    it."""
    return (("cooperative", bytes((generation + 1, *owned))),)


def cooperative_assignment(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The assignment that the real assignor computes from such metadata."""
    spec = GroupSpec(
        members={
            member: MemberSpec(
                topics=frozenset({"t"}),
                owned=tuple(TopicPartition("t", p) for p in metadata[1:]),
                generation=metadata[0] - 1,
            )
            for member, metadata in members.items()
        },
        partitions={"t": PARTITIONS},
    )
    assignment = cooperative_sticky_assignor(spec)
    return {member: bytes(tp.partition for tp in held) for member, held in assignment.items()}


@attrs.define(eq=False)
class Connection:
    """One connection: the broker reads a request after it has answered the previous one."""

    waiting: deque[Send] = attrs.field(factory=deque)
    busy: bool = False
    closed: bool = False


class Simulation:
    """Members, their coordinator and the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.actors: dict[str, Actor] = {}
        self.node = 1
        self.down = False
        self.timers = Timers()
        ids: dict[str, count[int]] = {}
        self.requester = "?"
        """Name of the member whose request the coordinator handles."""

        def new_id() -> str:
            return str(next(ids.setdefault(self.requester, count(1))))

        self.coordinator = ClassicCoordinator(self.timers, new_id, BrokerSettings())
        self.heartbeats: Counter[str] = Counter()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    # ------------------------------------------------------------ commands

    def command(self, line: str) -> list[str]:
        """Execute one command; return the lines that it adds to the transcript."""
        self.lines = []
        verb, *args = line.split()
        getattr(self, f"do_{verb}")(*args)
        self.run_until(self.now)
        if self.heartbeats:
            heartbeats = ", ".join(f"{name} {n}" for name, n in sorted(self.heartbeats.items()))
            self.lines.append(f"        heartbeats answered without error: {heartbeats}")
            self.heartbeats.clear()
        return self.lines

    def do_start(self, name: str) -> None:
        actor = Actor(name, Member(config=CONFIG, protocols=(("even", name.encode()),)))
        self.actors[name] = actor
        self.feed(actor, Started(now=self.now))

    def do_cooperate(self, name: str) -> None:
        """Start a cooperative member."""
        config = attrs.evolve(CONFIG, cooperative=True)
        self.actors[name] = actor = Actor(
            name, Member(config=config, protocols=protocol_metadata((), -1))
        )
        self.feed(actor, Started(now=self.now))

    def do_static(self, name: str) -> None:
        """Start a static member, or restart it under the same instance id."""
        config = attrs.evolve(CONFIG, group_instance_id=name)
        protocols = (("even", name.encode()),)
        self.actors[name] = actor = Actor(name, Member(config=config, protocols=protocols))
        self.feed(actor, Started(now=self.now))

    def do_group(self, *names: str) -> None:
        """Start members one after another; the transcript has only their assignments."""
        for name in names:
            self.do_start(name)
            self.run_until(self.now + 5.0)
        self.heartbeats.clear()
        self.lines = []
        for name in names:
            self.note_owned(self.actors[name])

    def do_run(self, seconds: str) -> None:
        self.run_until(self.now + float(seconds))

    def do_drain(self, name: str, seconds: str) -> None:
        """Set how long the application takes to release its partitions."""
        self.actors[name].drain = float(seconds)

    def do_break(self, name: str) -> None:
        """Let this member's assignor raise."""
        self.actors[name].assignor_fails = True

    def do_doom(self, name: str) -> None:
        """Let this member crash when it must compute the assignment."""
        self.actors[name].dies_as_leader = True

    def do_leave(self, name: str) -> None:
        self.feed(self.actors[name], Leaving(now=self.now, reason="closed"))

    def do_sleep(self, name: str) -> None:
        """Let the application exceed its poll interval: the member leaves, its partitions lost."""
        self.feed(self.actors[name], Leaving(now=self.now, reason="asleep", lost=True))

    def do_update(self, name: str) -> None:
        protocols = (("even", f"{name} at {self.now}".encode()),)
        event = RejoinRequested(now=self.now, reason="new metadata", protocols=protocols)
        self.feed(self.actors[name], event)

    def do_kill(self, name: str) -> None:
        self.crash(self.actors[name])

    def do_move(self) -> None:
        self.node += 1
        self.lines.append(f"{self.now:6.2f}  node {self.node} coordinates the group now")
        self.coordinator.move("g", self.now)

    def do_cut(self, seconds: str) -> None:
        """Break the connections of heartbeats and other group requests, and new ones for that
        time."""
        self.down = True
        self.lines.append(f"{self.now:6.2f}  the coordinator cannot be reached")
        for actor in self.actors.values():
            self.close_connection(actor, Route.COORDINATOR)
        self.at(self.now + float(seconds), self.heal)

    def heal(self) -> None:
        self.down = False
        self.lines.append(f"{self.now:6.2f}  the coordinator can be reached again")

    # ------------------------------------------------------------ time

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time, next(self._order), action))

    def run_until(self, end: float) -> None:
        while True:
            due = self._queue[0][0] if self._queue else float("inf")
            deadline = self.timers.next()
            if deadline is not None and deadline < due and deadline <= end:
                self.now = max(self.now, deadline)
                self.timers.run(self.now)
            elif due <= end:
                self.now, _, action = heapq.heappop(self._queue)
                action()
            else:
                self.now = end
                return

    # ------------------------------------------------------------ members

    def write(self, actor: Actor, text: str) -> None:
        self.lines.append(f"{self.now:6.2f}  {actor.name} {text}")

    def note_owned(self, actor: Actor) -> None:
        owned = " ".join(map(str, actor.owns)) or "nothing"
        self.write(actor, f"owns {owned} in generation {actor.member.generation_id}")

    def crash(self, actor: Actor) -> None:
        actor.dead = True
        self.write(actor, "crashes")

    def feed(self, actor: Actor, event: ClassicEvent) -> None:
        if actor.dead:
            return
        actor.member, effects = step(actor.member, event)
        for effect in effects:
            self.execute(actor, effect)

    def execute(self, actor: Actor, effect: ClassicEffect) -> None:
        match effect:
            case FindCoordinator():
                self.write(actor, "looks up the coordinator")
                found = Coordinator(self.node, f"node-{self.node}", 9092)
                self.at(self.now + 2 * LATENCY, lambda: self.reply(actor, effect, found))
            case Send():
                self.send(actor, effect)
            case WakeAt(time=time):
                actor.wake += 1
                number = actor.wake
                self.at(time, lambda: self.wake(actor, number))
            case Fail(error=error):
                self.write(actor, f"fails: {error}")
            case Leave():
                self.write(actor, "has left the group")
            case _:
                actor.work.append(effect)
                self.do_next_work(actor)

    def wake(self, actor: Actor, number: int) -> None:
        if number == actor.wake:
            self.feed(actor, Woke(now=self.now))

    def do_next_work(self, actor: Actor) -> None:
        """The application does one thing at a time, in order."""
        while actor.work and not actor.working and not actor.dead:
            match actor.work.popleft():
                case Assign(generation=generation) if actor.member.config.cooperative:
                    self.reconcile(actor, tuple(generation.assignment))
                case Assign(generation=generation):
                    actor.owns = tuple(generation.assignment)
                    self.note_owned(actor)
                    self.check_owners()
                case Compute() if actor.dies_as_leader:
                    self.crash(actor)
                case Compute(token=token, members=members):
                    self.feed(actor, self.compute(actor, token, members))
                case Lose(token=token, reason=reason):
                    actor.owns = ()
                    self.write(actor, f"loses its partitions: {reason}")
                    self.feed(actor, self.released(actor, token))
                case Revoke(token=token) if self.keeps_partitions(actor):
                    self.write(actor, f"keeps its partitions: {actor.member.reason}")
                    self.feed(actor, self.released(actor, token))
                case Revoke(token=token, deadline=deadline):
                    left = f"{deadline - self.now:.1f} s"
                    self.write(actor, f"must revoke within {left}: {actor.member.reason}")
                    actor.working = True
                    actor.revokes_by = deadline
                    self.at(
                        self.now + actor.drain,
                        lambda token=token: self.finish_revocation(actor, token),
                    )

    def keeps_partitions(self, actor: Actor) -> bool:
        return actor.member.config.cooperative and actor.member.leaving is None

    def released(self, actor: Actor, token: int) -> Revoked:
        protocols = None
        if actor.member.config.cooperative:
            generation_id = actor.member.generation_id if actor.owns else -1
            protocols = protocol_metadata(actor.owns, generation_id)
        return Revoked(now=self.now, token=token, protocols=protocols)

    def reconcile(self, actor: Actor, assigned: tuple[int, ...]) -> None:
        """Apply an assignment as a cooperative application does."""
        revoked = sorted(set(actor.owns) - set(assigned))
        actor.owns = assigned
        self.note_owned(actor)
        self.check_owners()
        if revoked:
            self.write(actor, f"has revoked {' '.join(map(str, revoked))}")
            event = RejoinRequested(now=self.now, reason=f"revoked {len(revoked)} partitions")
            self.feed(actor, event)

    def finish_revocation(self, actor: Actor, token: int) -> None:
        if actor.dead:
            return
        if actor.drain:
            self.write(actor, "has revoked its partitions")
        actor.owns = ()
        actor.working = False
        actor.revokes_by = float("inf")
        self.feed(actor, Revoked(now=self.now, token=token))
        self.do_next_work(actor)

    def compute(self, actor: Actor, token: int, members: Mapping[str, bytes]) -> ClassicEvent:
        names = sorted(members)
        self.write(actor, f"leads and assigns to {', '.join(names)}")
        if actor.assignor_fails:
            return ComputeFailed(now=self.now, token=token, error=ValueError("no such strategy"))
        if actor.member.config.cooperative:
            assignment = cooperative_assignment(members)
        else:
            assignment = {
                name: bytes(range(index, PARTITIONS, len(names)))
                for index, name in enumerate(names)
            }
        return Computed(now=self.now, token=token, assignments=assignment)

    def check_owners(self) -> None:
        """S1, across generations: a partition has at most one owner within its deadline."""
        keeping = [a for a in self.actors.values() if not a.dead and self.now <= a.revokes_by]
        owners = Counter(p for a in keeping for p in a.owns)
        assert not [p for p, n in owners.items() if n > 1], self.lines

    # ------------------------------------------------------------ the wire

    def send(self, actor: Actor, send: Send) -> None:
        request = send.request
        match request:
            case JoinGroupRequest(member_id=member_id, reason=reason):
                identity_text = f" as {member_id}" if member_id else " without an id"
                self.write(
                    actor, f"sends JoinGroup{identity_text}" + (f": {reason}" if reason else "")
                )
            case SyncGroupRequest(generation_id=generation):
                self.write(actor, f"sends SyncGroup of generation {generation}")
            case LeaveGroupRequest(members=(identity,)):
                route_text = (
                    ", on a separate connection" if send.route is Route.SEPARATE_CONNECTION else ""
                )
                self.write(actor, f"sends LeaveGroup: {identity.reason}{route_text}")
        connection = actor.connections.get(send.route)
        if connection is None:
            connection = actor.connections[send.route] = Connection()
        connection.waiting.append(send)
        self.at(self.now + send.timeout, lambda: self.time_out(actor, send))
        if self.down:
            self.at(self.now + LATENCY, lambda: self.close_connection(actor, send.route))
        else:
            self.at(self.now + LATENCY, lambda: self.read(actor, connection))

    def read(self, actor: Actor, connection: Connection) -> None:
        if connection.busy or connection.closed or not connection.waiting:
            return
        connection.busy = True
        send = connection.waiting[0]
        answered = False

        def reply(response: Any) -> None:
            nonlocal answered
            if answered or actor.dead or connection.closed:
                return
            answered = True
            self.at(self.now + LATENCY, lambda: self.arrive(actor, connection, send, response))
            connection.busy = False
            connection.waiting.popleft()
            self.at(self.now, lambda: self.read(actor, connection))

        self.requester = actor.name
        self.handle(send, send.coordinator, actor, reply)
        self.timers.run(self.now)

    def handle(
        self, send: Send, node: Coordinator, actor: Actor, reply: Callable[[Any], None]
    ) -> None:
        code = 0 if node.node_id == self.node else ErrorCode.NOT_COORDINATOR
        coordinator = self.coordinator
        match send.request:
            case JoinGroupRequest() as request:
                if code:
                    reply(
                        JoinGroupResponse(
                            error_code=code, protocol_name="", leader="", member_id="", members=()
                        )
                    )
                else:
                    coordinator.join(request, self.caller(JOIN_VERSION, actor), reply)
            case SyncGroupRequest() as request:
                if code:
                    reply(SyncGroupResponse(error_code=code, assignment=b""))
                else:
                    coordinator.sync(request, self.caller(SYNC_VERSION, actor), reply)
            case HeartbeatRequest() as request:
                if code:
                    reply(HeartbeatResponse(error_code=code))
                else:
                    reply(coordinator.heartbeat(request, self.caller(HEARTBEAT_VERSION, actor)))
            case LeaveGroupRequest() as request:
                if code:
                    reply(LeaveGroupResponse(error_code=code))
                else:
                    reply(coordinator.leave(request, self.caller(LEAVE_VERSION, actor)))

    def caller(self, version: int, actor: Actor) -> Caller:
        return Caller(version=version, now=self.now, client_id=actor.name)

    def arrive(self, actor: Actor, connection: Connection, send: Send, response: Any) -> None:
        if not connection.closed:
            self.reply(actor, send, response)

    def reply(self, actor: Actor, effect: FindCoordinator | Send, response: Any) -> None:
        if actor.dead or actor.member.phase in (Phase.LEFT, Phase.FAILED):
            return
        match response:
            case Coordinator(node_id=node_id):
                self.write(actor, f"finds the coordinator: node {node_id}")
            case HeartbeatResponse(error_code=0):
                self.heartbeats[actor.name] += 1
            case HeartbeatResponse(error_code=code):
                self.write(actor, f"Heartbeat response: {error_name(code)}")
            case JoinGroupResponse(error_code=0):
                self.write(actor, f"is {response.member_id} in generation {response.generation_id}")
            case JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED):
                self.write(actor, f"receives its member id: {response.member_id}")
            case JoinGroupResponse() | SyncGroupResponse() if response.error_code:
                assert isinstance(effect, Send)
                text = NAMES[type(effect.request)]
                self.write(actor, f"{text} response: {error_name(response.error_code)}")
        self.feed(actor, Replied(now=self.now, token=effect.token, message=response))

    def time_out(self, actor: Actor, send: Send) -> None:
        connection = actor.connections.get(send.route)
        if connection is not None and send in connection.waiting:
            self.close_connection(actor, send.route, RequestTimeoutError("no answer"))

    def close_connection(self, actor: Actor, route: Route, error: Exception | None = None) -> None:
        connection = actor.connections.pop(route, None)
        if connection is None or actor.dead:
            return
        connection.closed = True
        if connection.waiting:
            self.write(actor, "gets no response in time" if error else "loses its connection")
        for send in connection.waiting:
            lost = error or ConnectionLostError("connection reset")
            self.feed(actor, SendFailed(now=self.now, token=send.token, error=lost))


def replay(text: str) -> str:
    """The transcript of the commands in `text`."""
    simulation = Simulation()
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            out.append(line)
        elif line.startswith("> "):
            out += ["", line, *simulation.command(line[2:])]
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_transcript(story: Path) -> None:
    written = story.read_text("utf-8")
    replayed = replay(written)
    if REWRITE:
        story.write_text(replayed, "utf-8")
    else:
        assert replayed == written


def test_there_are_transcripts() -> None:
    assert len(STORIES) >= 8


def test_a_changed_command_changes_the_transcript() -> None:
    story = next(path for path in STORIES if path.stem == "second_member")
    changed = story.read_text("utf-8").replace("> drain a 1", "> drain a 2")
    assert replay(changed) != changed

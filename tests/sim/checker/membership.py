"""The membership of a member: S10, S11 and S14, and what a fenced member may do (S1).

A response is stale if it is not to the last JoinGroup or SyncGroup sent, or if its request named
another member id or generation than those that are current when it arrives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import attrs

from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.assign.check import RULES, VALID, Violation, violations

from ..events import (
    Absent,
    Answered,
    Appended,
    Assigned,
    Away,
    Cancelling,
    Committed,
    Committing,
    Deleted,
    Delivered,
    Event,
    Formed,
    Lost,
    Partitions,
    Polling,
    Processed,
    Raised,
    Recreated,
    Revoked,
    Revoking,
    Sent,
)
from .epochs import GONE
from .recorder import BEATS, Handlers, MemberRun, Recorder, joins

_MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", BEATS))
"""Requests whose errors concern the membership."""

_MEMORY = 10.0
"""Seconds for which a client may use metadata of a topic."""

_PASSING = frozenset(
    (
        "NONE",
        "REBALANCE_IN_PROGRESS",
        "MEMBER_ID_REQUIRED",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
    )
)
"""Errors that do not end the membership."""


@attrs.define(eq=False)
class Standing:
    """The state of a membership, from the responses that the member received."""

    member_id: str = ""
    """Its current member id."""
    used_by: int = -1
    offered: set[str] = attrs.field(factory=set)
    """Member ids that the coordinator has assigned to it."""
    id_gone: bool = False
    """The coordinator does not know the id, or the member has left with it."""
    unknown_at: float = math.inf
    """When the member learned that."""
    join: int = -1
    """The event of the last JoinGroup."""
    joined_over: int = -1
    """The connection of the last JoinGroup or SyncGroup."""
    sync: int = -1
    """The event of the SyncGroup after that JoinGroup."""
    generation: int = -1
    """The generation in the response to that JoinGroup; -1 before it, and after the generation."""
    before: int = -1
    """The generation before the unanswered join: heartbeats for it may be sent after the join."""
    kept: int = -1
    """The generation before `before`, if the member never synced in `before`: it had given up that
    join when the response arrived."""
    assigned: Partitions | None = None
    """The assignment in the response to that SyncGroup; None before it."""
    assigned_by: int = -1
    synced_at: float = -math.inf
    """When that response arrived."""
    excused: int = -1
    """The last event that justifies a loss of partitions."""
    polled: float = 0.0
    """When the application last called the client, or got something from it."""
    polled_before: float = 0.0
    """The time before that."""
    given: float = 0.0
    """When the application last got something."""
    waiting: bool = False
    """The application waits in the client, so `max_poll_interval` does not run."""
    committing: int | None = None
    """The application's unfinished call of `commit`."""
    expired: bool = False
    """`max_poll_interval` has passed since the last join."""
    fenced: int | None = None
    fenced_at: float = 0.0


class Membership:
    """The rules of membership."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._standings: dict[MemberRun, Standing] = {}
        self._partitions: dict[str, int] = {}
        """Topic -> its first partition count."""
        self._misled_at = -math.inf
        """When any member last got an error for metadata, of a topic or of all."""
        self._read = False
        """Whether any member has fetched metadata; a partition written to before then exists from
        the start."""
        self.handlers: Handlers = {
            Appended: self._appended,
            Sent: self._sent,
            Answered: self._answered,
            Assigned: self._assigned,
            Lost: self._lost,
            Revoking: self._revoking,
            Revoked: self._revoking,
            Delivered: self._delivered,
            Processed: self._processed,
            Committing: self._committing,
            Committed: self._committed,
            Away: self._busied,
            Absent: self._left_client,
            Cancelling: self._left_client,
            Polling: self._polling,
            Deleted: self._moved_topic,
            Recreated: self._moved_topic,
            Raised: self._raised,
            Formed: self._formed,
        }

    def _standing(self, name: str) -> tuple[MemberRun, Standing]:
        run = self._recorder.run_of(name)
        standing = self._standings.get(run)
        if standing is None:
            standing = self._standings[run] = Standing()
        return run, standing

    # ------------------------------------------------------------ requests

    def _sent(self, number: int, event: Sent) -> None:
        if event.api not in _MEMBERSHIP and event.api != "LeaveGroup":
            return
        run, standing = self._standing(event.member)
        standing.expired = standing.expired and not joins(event)
        if standing.fenced is not None and event.api in _MEMBERSHIP:
            self._goes_on(number, event, run, standing, f"sends {event.api}")
        if event.api in ("JoinGroup", "SyncGroup"):
            standing.joined_over = event.connection
        match event.api:
            case "JoinGroup":
                self._check_id(number, event, standing)
                if standing.generation >= 0:
                    standing.kept = standing.before if standing.sync < 0 else standing.generation
                    standing.before = standing.generation
                standing.join, standing.sync = number, -1
                standing.generation, standing.assigned = -1, None
            case "SyncGroup":
                standing.sync = number
                self._check_generation(number, event, standing)
            case "Heartbeat" if standing.assigned is None and event.generation in (
                standing.before,
                standing.kept,
            ):
                pass  # to learn whether its membership lasts, while its join is unanswered
            case "Heartbeat" if not self._recorder.knew(run, standing.synced_at, event.issued_at):
                pass  # of the generation before, which was current when it was issued
            case "Heartbeat":
                self._check_generation(number, event, standing)
            case "LeaveGroup":
                standing.id_gone = True
        self._recorder.speakers[event.member_id] = run

    def _check_id(self, number: int, event: Sent, standing: Standing) -> None:
        used, name = standing.member_id, event.member
        if event.member_id == used:
            if used and event.time > standing.unknown_at + self._recorder.race:
                text = f"{name} insists on {used}, which the coordinator does not know"
                self._recorder.report("S11", event, text, standing.used_by, number)
        elif not event.member_id:
            if not standing.id_gone:
                text = f"{name} joins without its member id {used}"
                self._recorder.report("S11", event, text, standing.used_by, number)
        elif event.member_id not in standing.offered:
            text = f"{name} joins as {event.member_id}, an id that it was never given"
            self._recorder.report("S11", event, text, standing.used_by, number)
        if event.member_id != used:
            standing.member_id, standing.used_by = event.member_id, number
            standing.id_gone, standing.unknown_at = False, math.inf

    def _check_generation(self, number: int, event: Sent, standing: Standing) -> None:
        if event.generation != standing.generation:
            now = standing.generation if standing.generation >= 0 else "none"
            text = f"{event.member} sends {event.api} of generation {event.generation}, in {now}"
            self._recorder.report("S10", event, text, standing.join, number)

    # ------------------------------------------------------------ responses

    def _answered(self, number: int, event: Answered) -> None:
        if event.api == "Metadata":
            self._read = True
            if event.error != "NONE":
                self._misled_at = event.time
        if event.api not in _MEMBERSHIP and event.error in _PASSING:
            return
        request = self._recorder.request(event)
        if request is None:
            return
        by, sent = request
        run, standing = self._standing(event.member)
        if event.api not in _MEMBERSHIP:
            # A permanent error, of FindCoordinator or of an offset request.
            standing.excused = number
            return
        if event.api == "JoinGroup" and event.member_id:
            standing.offered.add(event.member_id)
        # Under its former member id, it may have been fenced by its own rejoin.
        is_fenced = event.error == "FENCED_INSTANCE_ID" and sent.member_id == standing.member_id
        if is_fenced and standing.fenced is None:
            standing.fenced, standing.fenced_at = number, event.time
        if event.api == BEATS:
            self._beaten(number, event, run, standing, sent)
        elif event.error == "NONE":
            if event.api == "JoinGroup" and by == standing.join:
                if run.opening.instance is not None and event.generation > standing.before + 1:
                    standing.excused = number  # KIP-345: it may have missed a generation
                standing.generation = event.generation
                standing.member_id, standing.used_by = event.member_id, number
                # After too long an absence since the request, the member needs a new id.
                standing.id_gone, standing.unknown_at = standing.expired, math.inf
                run.refused = None
            elif event.api == "SyncGroup" and by == standing.sync:
                standing.assigned, standing.assigned_by = event.assigned, number
                standing.synced_at = event.time
        elif event.error not in _PASSING and not self._is_stale(by, sent, standing):
            standing.excused = number
            run.refused = (number, event.time, sent.member_id, standing.generation)
            if event.error in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
                standing.id_gone = True
                # A heartbeat that overtook the join is ignored if the join succeeds; and a request
                # that left as the process resumed may have been given up at that moment.
                past = sent.api == "Heartbeat" and event.connection != standing.joined_over
                if not past and sent.time > run.thawed_at:
                    standing.unknown_at = max(event.time, run.thawed_at)
        elif is_fenced:
            standing.excused = number  # overtaking a join too, which would get the same error
        elif event.error == "UNKNOWN_MEMBER_ID" and sent.member_id == standing.member_id:
            # The request overtook a join, or one that was given up and may still be answered.
            standing.excused, standing.id_gone = number, True

    def _beaten(
        self, number: int, event: Answered, run: MemberRun, standing: Standing, sent: Sent
    ) -> None:
        if event.error == "NONE":
            if sent.generation == 0:
                run.refused = None
        elif event.error not in _PASSING:
            standing.excused = number
            if event.error in GONE and sent.generation > 0:
                run.refused = (number, event.time, sent.member_id, sent.generation)

    def _is_stale(self, by: int, sent: Sent, standing: Standing) -> bool:
        if sent.api == "JoinGroup":
            return by != standing.join
        if sent.api == "SyncGroup":
            return by != standing.sync
        return (sent.member_id, sent.generation) != (standing.member_id, standing.generation)

    # ------------------------------------------------------------ consequences

    def _assigned(self, number: int, event: Assigned) -> None:
        run, standing = self._standing(event.member)
        standing.polled = standing.polled or event.time
        if not run.wired or run.assigned_to:
            return
        name = run.name
        if event.generation != standing.generation:
            now = standing.generation if standing.generation >= 0 else "no answer"
            text = f"{name} takes up generation {event.generation}; its last join has {now}"
            self._recorder.report("S10", event, text, standing.join, number)
        elif standing.assigned is None:
            text = f"{name} takes up generation {event.generation} without its assignment"
            self._recorder.report("S10", event, text, standing.join, number)
        elif foreign := set(run.held) ^ set(standing.assigned):
            listed = ", ".join(map(str, sorted(foreign)))
            text = f"{name} has other partitions than it was assigned: {listed}"
            self._recorder.report("S10", event, text, standing.assigned_by, number)

    def _lost(self, number: int, event: Lost) -> None:
        run, standing = self._standing(event.member)
        self._note_away(event, run, standing)
        closing = run.closing is not None
        caused = standing.excused > run.joined_by or closing or standing.expired
        caused |= event.time < run.misassigned_until  # the client rejected its assignment
        if run.wired and event.partitions and not caused:
            text = f"{run.name} loses its partitions, and nothing has ended its generation"
            self._recorder.report("S10", event, text, run.joined_by, number)

    def _revoking(self, number: int, event: Revoking | Revoked) -> None:
        self._note_away(event, *self._standing(event.member))

    def _note_away(self, event: Event, run: MemberRun, standing: Standing) -> None:
        """Record whether the application was away for longer than `max_poll_interval`. Then the
        member has left if the coordinator was reachable; if not, it will need a new id."""
        if standing.waiting:
            return
        # At the same instant, the application may have come back just too late.
        at_once = standing.polled == event.time
        since = standing.polled_before if at_once else standing.polled
        away = event.time - since > run.opening.max_poll_interval - 1e-6
        standing.id_gone = standing.id_gone or away
        standing.expired = standing.expired or away

    def _raised(self, number: int, event: Raised) -> None:
        _, standing = self._standing(event.member)
        standing.excused = number

    def _processed(self, number: int, event: Processed) -> None:
        run, standing = self._standing(event.member)
        if run.held:
            self._note_away(event, run, standing)
        if event.time > standing.polled:
            standing.polled_before, standing.polled = standing.polled, event.time

    def _committing(self, number: int, event: Committing) -> None:
        if event.offsets is None:
            self._busied(number, event)
            self._standing(event.member)[1].committing = event.token

    def _committed(self, number: int, event: Committed) -> None:
        _, standing = self._standing(event.member)
        if event.token == standing.committing:
            standing.polled, standing.committing = event.time, None

    def _polling(self, number: int, event: Polling) -> None:
        run, standing = self._standing(event.member)
        if run.held:
            self._note_away(event, run, standing)
        standing.polled, standing.waiting = event.time, True

    def _left_client(self, number: int, event: Absent | Cancelling) -> None:
        _, standing = self._standing(event.member)
        if standing.waiting:
            standing.polled, standing.waiting = event.time, False

    def _moved_topic(self, number: int, event: Deleted | Recreated) -> None:
        self._misled_at = event.time

    def _busied(self, number: int, event: Committing | Away) -> None:
        """The application did other work before it polled: this does not count as a poll."""
        _, standing = self._standing(event.member)
        standing.waiting = False
        if standing.polled == event.time:
            standing.polled = standing.given

    def _delivered(self, number: int, event: Delivered) -> None:
        run, standing = self._standing(event.member)
        standing.polled = standing.given = event.time
        standing.waiting = False
        if standing.fenced is not None:
            self._goes_on(number, event, run, standing, f"delivers {event.partition}")

    def _goes_on(
        self, number: int, event: Sent | Delivered, run: MemberRun, standing: Standing, what: str
    ) -> None:
        if event.time > max(standing.fenced_at, run.thawed_at) + self._recorder.race:
            text = f"{run.name} {what} though another has its instance id"
            self._recorder.report("S1", event, text, standing.fenced or 0, number)

    # ------------------------------------------------------------ assignments

    def _appended(self, number: int, event: Appended) -> None:
        if not self._read:
            tp = event.partition
            count = max(self._partitions.get(tp.topic, 0), tp.partition + 1)
            self._partitions[tp.topic] = count

    def _formed(self, number: int, event: Formed) -> None:
        leader = self._recorder.speakers.get(event.leader)
        misassigned = leader is not None and event.time < leader.misassigned_until
        if misassigned or not event.partitions:
            return
        members = {
            member: MemberSpec(
                topics=frozenset(topics),
                owned=event.claims.get(member, ()),
                generation=event.claimed_at.get(member, -1),
            )
            for member, topics in event.subscriptions.items()
        }
        rules = RULES.get(event.protocol, VALID)
        found: tuple[Violation, ...] = ()
        for known in self._known_partitions(event):
            spec = GroupSpec(members=members, partitions=known)
            found = violations(spec, event.assignment, rules)
            if not found:
                return
        for wrong in found:
            text = f"generation {event.generation} by {event.protocol}: {wrong}"
            self._recorder.report("S14", event, text, number)

    def _known_partitions(self, event: Formed) -> Iterator[dict[str, int]]:
        """Topic -> partition counts that the leader may have known, the current counts last. It may
        not know partitions that were just added, and may just have been told that a whole topic
        does not exist; if partitions stay unassigned, L2 detects it."""
        known = {}
        doubtful = []
        for topic, count in event.partitions.items():
            first = self._partitions.setdefault(topic, count)
            shares = (*event.assignment.values(), *event.claims.values())
            seen = [tp for share in shares for tp in share if tp.topic == topic]
            # Partitions that others claim do not tell the leader that the topic exists.
            given = any(tp.topic == topic for share in event.assignment.values() for tp in share)
            known[topic] = min(count, max(first, *(tp.partition + 1 for tp in seen), 0))
            if not given and event.time - self._misled_at <= _MEMORY:
                doubtful.append(topic)
        for without in range(len(doubtful), -1, -1):
            for gone in combinations(doubtful, without):
                yield {topic: n for topic, n in known.items() if topic not in gone}

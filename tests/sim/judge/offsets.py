"""What is delivered, processed and committed: S3 to S8, S12 and S13.

A commit is known to have happened by what the broker stored, by its answer on the wire, or by what
the application was told; any of these will do, so real runs are judged with what they have. One
that was cancelled, or whose answer was lost, may have happened: nothing is concluded from it, and
the next one covers it.

Offsets may go back where the application seeks, where it asks for a commit by numbers, and where
the broker says that the position is not in the log.

Where a log was cut (`Truncated`) whoever has read beyond goes back to the cut, and nowhere else; up
to then it may hand out what it has fetched before. What took the place of the lost is a record as
any other: in the end it was processed, or nothing above it is committed. A cut is known by the
leader epoch, so this holds only where every commit and position has one: in a history with cuts no
application names offsets, but for a log's start. Where the client is not to find positions by
itself its application is told of the cut, and seeks.
"""

from __future__ import annotations

import math

from kafkagroup import TopicPartition

from ..events import (
    Answered,
    Appended,
    Assigned,
    Committed,
    Committing,
    Deleted,
    Delivered,
    Ended,
    Finished,
    Processed,
    Revoked,
    Sent,
    Sought,
    Stored,
    Truncated,
)
from .book import (
    BEATS,
    DELIVERED,
    HIDDEN,
    PASSED,
    PROCESSED,
    Book,
    Event,
    Handlers,
    Life,
    Log,
    Tenure,
    joins,
    leaves,
)

_TIMEOUT = 0.45
"""Seconds that the last commit is given at least: half of a second, or of what is left."""

_TRIED_AGAIN = frozenset(
    (
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNSTABLE_OFFSET_COMMIT",
    )
)
"""Errors after which the same commit is sent again."""

_QUIET = 5.0
"""Seconds after which a member in good health has fetched, and passed over, what was written."""


class Offsets:
    """The rules of positions and commits."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._asked: dict[tuple[str, int], dict[TopicPartition, tuple[Tenure, int]]] = {}
        """Member and token -> what its commit is to cover, when it is well."""
        self._unanswered: dict[str, list[Tenure]] = {}
        """Member -> what it has let go of while a commit of it was under way."""
        self.handlers: Handlers = {
            Appended: self._appended,
            Truncated: self._truncated,
            Deleted: self._deleted,
            Assigned: self._assigned,
            Delivered: self._delivered,
            Processed: self._processed,
            Committing: self._committing,
            Committed: self._committed,
            Sought: self._sought,
            Revoked: self._revoked,
            Sent: self._sent,
            Answered: self._answered,
            Stored: self._stored,
            Ended: self._gone,
            Finished: self._finished,
        }

    # ------------------------------------------------------------ logs

    def _appended(self, number: int, event: Appended) -> None:
        log = self._book.log(event.partition)
        log.known = True
        log.flag(event.offset, HIDDEN if event.sequence < 0 else 0)
        log.sequences.extend([-1] * (event.offset - len(log.sequences)))
        log.sequences.append(event.sequence)
        log.appended_at = event.time

    def _truncated(self, number: int, event: Truncated) -> None:
        self._book.log(event.partition).cut(event.offset)
        self._disturb(event.partition, event.offset)

    def _deleted(self, number: int, event: Deleted) -> None:
        for tp, log in self._book.logs.items():
            if tp.topic == event.topic:
                log.delete()
                self._disturb(tp, 0)

    def _disturb(self, tp: TopicPartition, end: int) -> None:
        """What was read from `end` on is no longer in the log."""
        for life in self._book.lives.values():
            if (tenure := life.tenures.get(tp)) is not None:
                tenure.cuts.add(end)
                tenure.gone.update(range(end, tenure.position or 0))
                tenure.loose = True

    # ------------------------------------------------------------ delivery

    def _assigned(self, number: int, event: Assigned) -> None:
        self._book.life(event.member).joined_by = number

    def _delivered(self, number: int, event: Delivered) -> None:
        tp, offset = event.partition, event.offset
        log = self._book.log(tp)
        life = self._book.life(event.member)
        life.came_back = number
        tenure = life.held.get(tp)
        written = log.sequences[offset] if offset < len(log.sequences) else -1
        as_written = not log.known or event.sequence == written >= 0
        is_gone = not as_written and _was_cut_off(tenure, event, log)
        if is_gone:
            log.gone_deliveries += 1
        else:
            if not as_written:
                self._misread(number, event, log)
            log.flag(offset, DELIVERED)
        if tenure is None:
            return
        if tenure.moved:
            tenure.moved = False
        elif tenure.position is None:
            self._first(number, event, tenure, log)
        else:
            self._next(number, event, tenure, log, tenure.position, is_gone=is_gone)
        if is_gone:
            tenure.gone.add(offset)
        else:
            tenure.gone.discard(offset)
            tenure.cuts = {cut for cut in tenure.cuts if cut > offset}
        tenure.position = offset + 1
        tenure.delivered_by = number

    def _next(
        self,
        number: int,
        event: Delivered,
        tenure: Tenure,
        log: Log,
        expected: int,
        *,
        is_gone: bool,
    ) -> None:
        """S8 of a record that is not the first. What lies above a cut and was read before it is not
        what lies there now: all of that is read anew."""
        offset = event.offset
        cuts = [cut for cut in tenure.cuts if cut < expected]
        if is_gone:
            lawful = any(log.adjoins(at, offset) for at in (expected, *cuts))
        elif cuts:
            lawful = tenure.life.told.resets and offset == log.next_visible(min(cuts))
            _leave_behind(tenure, log, number, event.time)
            _move(tenure, log, min(cuts))
        else:
            lawful = offset == expected or offset == log.next_visible(expected)
        if not lawful:
            how = "goes back" if offset < expected else "skips"
            since = f", and the log was cut at {min(cuts)}" if cuts else ""
            text = f"{event.member} {how}: {tenure.tp}@{offset} after {expected - 1}{since}"
            self._book.report(
                "S19" if cuts and log.recreated else "S8", event, text, tenure.delivered_by, number
            )

    def _misread(self, number: int, event: Delivered, log: Log) -> None:
        what = f"{event.member} delivers {event.partition}@{event.offset}"
        if event.offset >= len(log.sequences):
            text = f"{what}, which was never written"
        elif log.sequences[event.offset] < 0:
            text = f"{what}, which no reader may see"
        else:
            text = f"{what} as record {event.sequence}; it is {log.sequences[event.offset]}"
        self._book.report("S8", event, text, number)

    def _first(self, number: int, event: Delivered, tenure: Tenure, log: Log) -> None:
        offset = event.offset
        what = f"{event.member} starts {event.partition} at {offset}"
        committed = max(tenure.starts, default=0)
        cuts = [cut for cut in log.cuts if cut < committed]
        if tenure.life.wired and not tenure.starts:
            text = f"{what} without having been told what is committed"
            self._book.report("S12", event, text, tenure.began, number)
        elif not tenure.life.told.resets and max(tenure.starts, default=0) < 0:
            text = f"{what}, which it was told not to do where nothing is committed"
            self._book.report("S12", event, text, tenure.began, number)
        elif cuts and any(
            log.adjoins(at, offset)
            for at in (committed, *(cuts if tenure.life.told.resets else ()))
        ):
            pass  # what was committed may be of the log as it was
        elif offset < log.floor and not self._book.is_replaced(tenure.life):
            text = f"{what}, though {log.floor} was committed"
            self._book.report("S7", event, text, log.floor_by, tenure.began, number)
        elif tenure.starts:
            starts = {max(start, 0) for start in tenure.starts}
            if not any(log.adjoins(start, offset) for start in starts):
                places = sorted({log.next_visible(start) for start in starts})
                text = f"{what} instead of {' or '.join(map(str, places))}"
                self._book.report("S8", event, text, tenure.began, number)

    def _sought(self, number: int, event: Sought) -> None:
        tp = event.partition
        log = self._book.log(tp)
        tenure = self._book.life(event.member).held.get(tp)
        if tenure is None:
            return
        before = tenure.position if tenure.position is not None else log.floor
        for offset in range(before, event.offset):
            log.flag(offset, PROCESSED | PASSED)  # by the application's wish
        _leave_behind(tenure, log, number, event.time)
        _move(tenure, log, event.offset)

    def _processed(self, number: int, event: Processed) -> None:
        life, log = self._book.life(event.member), self._book.log(event.partition)
        last = life.tenures.get(event.partition)
        if last is None or event.offset not in last.gone:
            log.flag(event.offset, PROCESSED)
        tenure = life.held.get(event.partition)
        # What an earlier tenure has left in hand says nothing of this one.
        if tenure is None or tenure.position is None or event.offset >= tenure.position:
            return
        if tenure.life.came_back > tenure.processed_by:
            tenure.safe = tenure.processed
        tenure.processed = max(tenure.processed or 0, event.offset + 1)
        tenure.processed_by, tenure.processed_at = number, event.time

    # ------------------------------------------------------------ commits: what is asked

    def _committing(self, number: int, event: Committing) -> None:
        life = self._book.life(event.member)
        if event.offsets is None:
            life.came_back = number
        waiting = any(name == event.member for name, _ in self._asked)
        asked: dict[TopicPartition, tuple[Tenure, int]] = {}
        for tp, tenure in life.held.items():
            if event.offsets is None:
                if tenure.processed is not None:
                    asked[tp] = (tenure, tenure.processed)
            elif tp in event.offsets:
                asked[tp] = (tenure, event.offsets[tp])
                tenure.asked = max(tenure.asked, event.offsets[tp])
                until = math.inf if waiting else event.time + self._book.race
                tenure.named = event.offsets[tp], until
                if event.offsets[tp] != tenure.position or event.offsets[tp] < (tenure.sent or 0):
                    tenure.loose = True
        self._asked[event.member, event.token] = asked

    def _committed(self, number: int, event: Committed) -> None:
        asked = self._asked.pop((event.member, event.token), {})
        if event.outcome != "ok":
            # Nobody waits for its answer any more; the next commit covers what it was for.
            for tenure, offset in asked.values():
                tenure.flying, tenure.cancelled = False, (offset, event.time)
            return
        life = self._book.life(event.member)
        for tp, (tenure, offset) in asked.items():
            # Whoever let go of it meanwhile may have taken it out of the commit.
            if life.held.get(tp) is not tenure:
                continue
            log = self._book.log(tp)
            # One that was given up may be stored after the one that was acknowledged.
            if life.wired and max(log.floor, tenure.acked or 0) < offset and not tenure.loose:
                text = f"{life.name} is told that {tp}@{offset} is committed; {log.floor} is"
                self._book.report("S6", event, text, log.floor_by, number)
            self._happened(tp, offset, number)

    def _happened(self, tp: TopicPartition, offset: int, number: int) -> None:
        """The group's commit is at least there."""
        log = self._book.log(tp)
        if offset > log.floor and not self._book.sees_broker:
            log.floor, log.floor_by = offset, number

    # ------------------------------------------------------------ commits: what leaves

    def _sent(self, number: int, event: Sent) -> None:
        if event.api == "OffsetCommit":
            life = self._book.life(event.member)
            for tp, offset in event.offsets.items():
                tenure = life.held.get(tp)
                if tenure is not None and 0 <= event.generation < tenure.generation:
                    continue  # an earlier tenure's, tried again: the broker refuses it
                last = life.tenures.get(tp)
                if tenure is None and last is not None and last.ended == "revoked":
                    # It has heard; but nobody else can have it before it asks to join.
                    tenure = last if last.ended_by > last.told_by else None
                if tenure is None:
                    self._foreign(number, event, life, tp, offset)
                else:
                    self._commit(number, event, tenure, offset)
        elif joins(event) or leaves(event) or (event.api == BEATS and event.owned is not None):
            self._gone(number, event)
        elif event.api == "Fetch":
            for tp, offset in event.offsets.items():
                if offset < 0:
                    text = f"{event.member} fetches {tp} from offset {offset}"
                    self._book.report("S12", event, text, number)

    def _commit(self, number: int, event: Sent, tenure: Tenure, offset: int) -> None:
        tp, log, life = tenure.tp, self._book.log(tenure.tp), tenure.life
        identity = _identity(life, event, offset)
        if life.refused is not None and identity not in tenure.identities:
            by, at, *over = life.refused
            waited = life.has_waited(event.time) or self._raced(event, life, at)
            # KIP-848: one id for life, which no epoch of before saves.
            same = life.assigned_to or over[1] == event.generation
            if over[0] == event.member_id and same and not waited:
                text = f"{life.name} commits {tp}@{offset} for a membership that is over"
                self._book.report("S13", event, text, by, number)
        done = _done(tenure, log)
        # One that is tried again was right when it first left, whatever was sought since.
        again = identity in tenure.identities
        waited = life.has_waited(event.time) or life.found_by > tenure.sought_by >= 0
        if waited or event.time <= tenure.sought_at + self._book.race:
            # While it waited for that, or for its writer, the application may have sought.
            done = max(done, tenure.left_behind)
        tenure.left_behind = -1
        if offset > max(done, tenure.asked) and not again and not log.adjoins(done, offset):
            text = f"{life.name} commits {tp}@{offset} and has processed up to {done}"
            self._book.report("S4", event, text, tenure.processed_by, number)
        named, until = tenure.named
        if tenure.sent_at <= until and offset == named and tenure.sent is not None:
            # It was asked for while the one before was on its way out or waited for its connection,
            # which said of the same records: behind their marker too.
            tenure.loose |= log.adjoins(offset, tenure.sent)
        if tenure.sent is not None and offset < tenure.sent and not tenure.loose:
            text = f"{life.name} commits {tp}@{offset} after {tenure.sent}"
            self._book.report("S5", event, text, tenure.sent_by, number)
        tenure.sent, tenure.sent_by, tenure.sent_at = offset, number, event.time
        tenure.identities.add(identity)
        if tenure.cancelled is not None:
            dropped, at = tenure.cancelled
            same = dropped <= offset <= log.next_visible(dropped)
            if same and event.time - at <= self._book.race:
                return  # it was on its way out
        if not tenure.flying:
            tenure.flying = True
            # Commits go one after the other: it may have waited for the answer to the one before.
            if event.time > tenure.landed_at:
                tenure.flying_since = event.time

    def _raced(self, event: Sent, life: Life, at: float) -> bool:
        """Whether the member may not have noticed yet what reached it: all that came while it stood
        still it reads in one moment."""
        if self._book.virtual:
            return event.time <= life.thawed_at
        return event.time <= max(at, life.thawed_at) + self._book.race

    def _foreign(
        self, number: int, event: Sent, life: Life, tp: TopicPartition, offset: int
    ) -> None:
        """A commit of what the member does not have; one that is tried again was right when it
        first left."""
        last = life.tenures.get(tp)
        if last is not None and _identity(life, event, offset) in last.identities:
            return
        lost = last if last is not None and last.ended == "lost" else None
        waited = life.has_waited(event.time)
        if lost is not None and (waited or self._raced(event, life, lost.ended_at)):
            return  # it was on its way out before, and the coordinator refuses it
        rule = "S3" if lost is None else "S13"
        state = "never had it" if last is None else f"has it no longer ({last.ended})"
        text = f"{life.name} commits {tp}@{offset} and {state}"
        self._book.report(rule, event, text, -1 if last is None else last.ended_by, number)

    # ------------------------------------------------------------ commits: what comes of it

    def _answered(self, number: int, event: Answered) -> None:
        if event.api not in ("OffsetCommit", "OffsetFetch", "Fetch"):
            return
        request = self._book.request(event)
        if request is None:
            return
        by, sent = request
        life = self._book.life(event.member)
        if event.api == "OffsetCommit":
            self._acknowledged(number, event, life, by, sent)
        elif event.api == "Fetch":
            if event.error == "OFFSET_OUT_OF_RANGE":
                for tp, tenure in life.held.items():
                    if tp in sent.offsets or not sent.offsets:
                        _move(tenure, self._book.log(tp), None)
        else:
            for tp, offset in event.offsets.items():
                tenure = life.held.get(tp)
                # An answer to what was asked for an earlier tenure is no answer for this one.
                if tenure is not None and tenure.began < by:
                    tenure.starts.add(offset)
                    tenure.loose |= any(cut < offset for cut in self._book.log(tp).cuts)
                    if not tenure.loose:
                        self._happened(tp, offset, number)

    def _acknowledged(self, number: int, event: Answered, life: Life, by: int, sent: Sent) -> None:
        for tp, offset in sent.offsets.items():
            tenure = life.tenures.get(tp)
            if tenure is None or tenure.began > by:
                continue
            if tenure.sent_by <= by:
                tenure.flying, tenure.landed_at = False, event.time
            if tp in event.offsets:
                tenure.acked = offset
                if not tenure.flying:
                    tenure.identities.clear()
                self._happened(tp, offset, number)
            elif event.error not in _TRIED_AGAIN:
                tenure.identities.discard(_identity(life, sent, offset))

    def _stored(self, number: int, event: Stored) -> None:
        tp, offset = event.partition, event.offset
        self._book.sees_broker = True
        log = self._book.log(tp)
        tenure = self._committer(event)
        back = log.stored is not None and offset < log.stored
        # What comes late, after a later one, was overtaken on the way.
        overtaken = tenure is not None and (tenure.sent or 0) > offset
        lawful = tenure is not None and (tenure.loose or tenure.late == offset)
        if back and not (overtaken or lawful):
            text = f"the commit of {tp} goes back from {log.stored} to {offset}"
            self._book.report("S5", event, text, log.stored_by, number)
        elif back and overtaken:
            log.reached = max(log.reached, log.stored or 0)
        log.stored, log.stored_by = offset, number
        log.floor, log.floor_by = offset, number
        # Who has not heard of a cut yet commits what was there before it. To a topic that was
        # recreated nobody may.
        end = offset if log.recreated else min((offset, *log.cuts))
        self._check_processed(number, event, tp, log, end)

    def _committer(self, event: Stored) -> Tenure | None:
        life = self._book.speakers.get(event.member_id)
        return None if life is None else life.tenures.get(event.partition)

    def _check_processed(
        self, number: int, event: Event, tp: TopicPartition, log: Log, end: int
    ) -> None:
        """S6: all that lies below a commit was processed, by somebody."""
        flags, offset = log.flags, log.checked
        missing = 0
        first = -1
        while offset < end:
            if offset >= len(flags):
                missing += 0 if log.known else end - offset
                first = offset if first < 0 and missing else first
                break
            if not flags[offset] & (PROCESSED | HIDDEN):
                missing += 1
                first = offset if first < 0 else first
            offset += 1
        log.checked = max(log.checked, end)
        if missing:
            text = f"{tp}@{end} is committed; {missing} below were not processed, first {first}"
            self._book.report("S6", event, text, number)

    # ------------------------------------------------------------ letting go

    def _revoked(self, number: int, event: Revoked) -> None:
        life = self._book.life(event.member)
        for tp in event.partitions:
            tenure = life.tenures.get(tp)
            if tenure is None or tenure.ended_by != number:
                continue
            if life.wired:
                self._released(number, event, tenure)
            elif tenure.processed is not None and life.told.auto_commit:
                # Nothing else is known of its commits than that this was the last chance.
                self._happened(tp, tenure.processed, number)

    def _released(self, number: int, event: Revoked, tenure: Tenure) -> None:
        """S3. An error at the coordinator, or time enough for a deadline, excuses."""
        life, tp = tenure.life, tenure.tp
        if life.troubled > life.joined_by:
            return
        acked = -1 if tenure.acked is None else tenure.acked
        if tenure.sent is not None and tenure.sent > acked:
            self._unanswered.setdefault(event.member, []).append(tenure)
            return
        done = tenure.processed if life.came_back > tenure.processed_by else tenure.safe
        if (
            not life.told.auto_commit
            or done is None
            or tenure.processed_by > (tenure.revoking or 0)
            or any(cut < done for cut in tenure.cuts)
        ):
            return
        start = max(tenure.starts, default=0)
        if done > max(acked, start) and event.time - tenure.processed_at < _TIMEOUT:
            text = (
                f"{life.name} lets go of {tp} with {done} processed, {max(acked, start)} committed"
            )
            self._book.report("S3", event, text, tenure.processed_by, number)

    def _gone(self, number: int, event: Sent | Ended) -> None:
        """S3: now others may have what it has let go of."""
        kept = (event.owned or ()) if isinstance(event, Sent) and event.api == BEATS else ()
        for tp, tenure in self._book.life(event.member).tenures.items():
            if tp not in kept:
                tenure.told_by = number
        for tenure in self._unanswered.pop(event.member, ()):
            life, tp = tenure.life, tenure.tp
            if tp in kept:
                self._unanswered.setdefault(event.member, []).append(tenure)
                continue
            excused = life.troubled > life.joined_by
            if tenure.flying and not excused and event.time - tenure.flying_since < _TIMEOUT:
                text = f"{life.name} gives {tp} up before its commit of {tenure.sent} is answered"
                self._book.report("S3", event, text, tenure.sent_by, number)

    # ------------------------------------------------------------ the end

    def _finished(self, number: int, event: Finished) -> None:
        for tp, offset in event.committed.items():
            log = self._book.log(tp)
            if offset < log.floor:
                text = f"{tp}@{log.floor} was committed; the group is left at {offset}"
                self._book.report("S5", event, text, log.floor_by, number)
            log.checked = max(log.checked, event.starts.get(tp, 0))
            self._check_processed(number, event, tp, log, offset)
            self._check_end(number, event, tp, log, offset)

    def _check_end(
        self, number: int, event: Finished, tp: TopicPartition, log: Log, offset: int
    ) -> None:
        """S8: a commit behind the last record is behind all that follows it, markers and aborted
        records; else lag would stay above zero for ever. Once there was time to fetch them."""
        tenure, end = log.holder, event.ends.get(tp, 0)
        if tenure is None or not log.known or not tenure.life.told.auto_commit:
            return
        since = max(log.appended_at, tenure.began_at, self._book.healed or 0.0)
        quiet = tenure.ended == "revoked" and tenure.ended_at - since > _QUIET
        if quiet and offset < end <= log.next_visible(offset):
            text = f"{tp} is left at {offset}, with nothing to read up to its end at {end}"
            self._book.report("S8", event, text, tenure.began, tenure.ended_by, number)


def _was_cut_off(tenure: Tenure | None, event: Delivered, log: Log) -> bool:
    """Whether a record was in the log when it may have been fetched."""
    offset, sequence = event.offset, event.sequence
    lost = tenure is not None and any(cut <= offset for cut in tenure.cuts)
    return lost and sequence >= 0 and sequence in log.gone.get(offset, ())


def _identity(life: Life, commit: Sent, offset: int) -> tuple[str, int, int]:
    """What makes a commit the same as one before. KIP-848: the epoch that it is stamped with is the
    one of when it leaves, each time."""
    return commit.member_id, -1 if life.assigned_to else commit.generation, offset


def _leave_behind(tenure: Tenure, log: Log, number: int, now: float) -> None:
    """A commit that waits for its coordinator or its turn may still be of what was done before."""
    tenure.left_behind = max(tenure.left_behind, _done(tenure, log))
    tenure.sought_by, tenure.sought_at = number, now


def _move(tenure: Tenure, log: Log, offset: int | None) -> None:
    """What comes next is at `offset`, or, where that is None, wherever the log begins or ends."""
    tenure.moved = offset is None
    tenure.loose = True
    tenure.position = tenure.processed = tenure.safe = offset
    if log.holder is tenure:  # what another does that has it no longer says nothing of its commits
        log.floor = min(log.floor, offset or 0)


def _done(tenure: Tenure, log: Log) -> int:
    """Offset behind the last record that was processed, or where it started."""
    if tenure.processed is not None:
        return tenure.processed
    return max((*tenure.starts, 0 if tenure.life.wired else log.floor, 0))

"""What is delivered, processed and committed: S3 to S8, S12, S13, S19, S23, S25, S26
and L10.

A commit is known to have happened by what the broker stored, by its response on the wire, or by the
result that the application got; any of these is sufficient, so real runs are checked with the
events they have. A commit that was cancelled, or whose response was lost, may have happened:
nothing is concluded from it, and the next one covers it.

Offsets may go back where the application seeks, where it commits explicit offsets, and where the
broker reports that the position is not in the log.

After a truncation (`Truncated`), a member that has read beyond it goes back to exactly the cut;
until then it may deliver what it has fetched before. Records that replace the lost ones are like
any others: at the end they were processed, or no commit lies above them. The client recognizes a
cut by the leader epoch, so this holds only if every commit and position has one: in a run with
truncated logs, no application uses offsets without one, except for a log's start. If the client may
not reset positions by itself, its application is notified of the truncation, and seeks.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from kafkagroup import TopicPartition

from ..events import (
    Appended,
    Assigned,
    Committed,
    Committing,
    Connecting,
    Created,
    Deleted,
    Delivered,
    Ended,
    Event,
    Finished,
    Forgotten,
    Processed,
    Responded,
    Revoked,
    Sent,
    Sought,
    Stored,
    Truncated,
    Unlisted,
)
from .recorder import (
    CONSUMER_HEARTBEAT,
    DELIVERED,
    HIDDEN,
    PASSED,
    PROCESSED,
    Handlers,
    Log,
    MemberRun,
    OwnershipPeriod,
    Recorder,
    is_join,
    is_leave,
)

_LAST_COMMIT_TIMEOUT = 0.45
"""The last commit before a release gets half a second at least. A member that releases sooner, by
more than a tolerance of 0.05 s, has not waited for the response."""

_QUIET = 5.0
"""Seconds after which a healthy member has fetched and skipped new control records."""


class Offsets:
    """The rules of positions and commits."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._asked: dict[
            tuple[str, int], dict[TopicPartition, tuple[OwnershipPeriod, int | None]]
        ] = {}
        """Member and token -> what its commit must cover when it succeeds; no offset where nothing
        was processed yet: the commit may then contain the position at which the member started."""
        self._sent_offsets: dict[tuple[str, TopicPartition], set[int]] = {}
        """Member and partition -> the offsets that it has sent in commits."""
        self._floors: dict[tuple[str, int, int], dict[TopicPartition, int]] = {}
        """Member, connection and correlation id of a request for offsets -> what was committed."""
        self._connections: set[tuple[str, int]] = set()
        """Member and number of each connection on which a request was sent."""
        self._connecting: dict[str, set[int]] = {}
        """Member -> the nodes to which it has begun to connect, and sent nothing since."""
        self._coordinators: dict[str, int] = {}
        """Member -> the node to which it sent its last heartbeat or commit."""
        self._unanswered: dict[str, list[OwnershipPeriod]] = {}
        """Member -> the periods that ended while one of its commits was unanswered."""
        self.handlers: Handlers = {
            Appended: self._appended,
            Truncated: self._truncated,
            Deleted: self._deleted,
            Created: self._created,
            Forgotten: self._forgotten,
            Assigned: self._assigned,
            Unlisted: self._unlisted,
            Delivered: self._delivered,
            Processed: self._processed,
            Committing: self._committing,
            Committed: self._committed,
            Sought: self._sought,
            Revoked: self._revoked,
            Connecting: self._on_connecting,
            Sent: self._sent,
            Responded: self._answered,
            Stored: self._stored,
            Ended: self._on_release,
            Finished: self._finished,
        }

    # ------------------------------------------------------------ logs

    def _appended(self, number: int, event: Appended) -> None:
        log = self._recorder.log(event.partition)
        log.has_appends = True
        log.set_flag(event.offset, HIDDEN if event.sequence < 0 else 0)
        log.sequences.extend([-1] * (event.offset - len(log.sequences)))
        log.sequences.append(event.sequence)
        log.appended_at = event.time

    def _truncated(self, number: int, event: Truncated) -> None:
        self._recorder.log(event.partition).cut(event.offset)
        self._disturb(event.partition, event.offset)

    def _deleted(self, number: int, event: Deleted) -> None:
        for tp, log in self._recorder.logs.items():
            if tp.topic == event.topic:
                log.delete(number)
                self._disturb(tp, 0)

    def _created(self, number: int, event: Created) -> None:
        for tp in event.partitions:
            self._recorder.log(tp).created_by = number

    def _forgotten(self, number: int, event: Forgotten) -> None:
        """The group has no commit of these partitions any more: the next owner starts without."""
        for tp in event.partitions:
            log = self._recorder.log(tp)
            log.stored, log.stored_by, log.highest_stored = None, -1, 0
            log.floor, log.floor_by = 0, number
            log.forgotten_by, log.forgotten_at = number, event.time

    def _disturb(self, tp: TopicPartition, end: int) -> None:
        """The records from `end` on are no longer in the log."""
        for run in self._recorder.runs.values():
            if (period := run.periods.get(tp)) is not None:
                period.truncations.add(end)
                _lower_floor(period, end)
                period.minimum_commit = min(period.minimum_commit, end)

    # ------------------------------------------------------------ delivery

    def _assigned(self, number: int, event: Assigned) -> None:
        self._recorder.run_of(event.member).assigned_by = number

    def _unlisted(self, number: int, event: Unlisted) -> None:
        self._recorder.run_of(event.member).unlisted.update(event.partitions)

    def _delivered(self, number: int, event: Delivered) -> None:
        tp, offset = event.partition, event.offset
        log = self._recorder.log(tp)
        run = self._recorder.run_of(event.member)
        run.polled_by = number
        period = run.held.get(tp)
        written = log.sequences[offset] if offset < len(log.sequences) else -1
        as_written = not log.has_appends or event.sequence == written >= 0
        is_truncated = not as_written and _was_truncated_away(period, event, log)
        if is_truncated:
            log.lost_deliveries += 1
        else:
            if not as_written:
                self._misread(number, event, log)
            log.set_flag(offset, DELIVERED)
            log.read_by.setdefault(run.name, set()).add(offset)
        if period is None:
            return
        if period.is_position_unknown:
            period.is_position_unknown = False
        elif period.position is None:
            self._check_first_delivery(number, event, period, log)
        else:
            self._check_next_delivery(
                number, event, period, log, period.position, is_truncated=is_truncated
            )
        if not is_truncated:
            period.truncations = {cut for cut in period.truncations if cut > offset}
        period.in_flight[offset] = period.position
        period.position = offset + 1
        period.delivered_by = number

    def _check_next_delivery(
        self,
        number: int,
        event: Delivered,
        period: OwnershipPeriod,
        log: Log,
        expected: int,
        *,
        is_truncated: bool,
    ) -> None:
        """S8 of a record that is not the first. Records above a cut that were delivered before it
        have been replaced: everything from the cut on is read again."""
        offset = event.offset
        cuts = [cut for cut in period.truncations if cut < expected]
        if is_truncated:
            is_allowed = any(log.adjoins(at, offset) for at in (expected, *cuts))
        elif cuts:
            is_allowed = period.run.opening.resets and offset == log.next_visible(min(cuts))
            _move(period, log, min(cuts), number, event.time)
        else:
            is_allowed = offset == expected or offset == log.next_visible(expected)
        if not is_allowed:
            how = "goes back" if offset < expected else "skips"
            since, rule = f", and the log was cut at {min(cuts)}" if cuts else "", "S8"
            if cuts and log.deleted_by >= 0:
                rule = "S19"
            elif period.denied_by > period.delivered_by:
                since, rule = f", which was refused falsely (#{period.denied_by})", "S23"
            text = f"{event.member} {how}: {period.tp}@{offset} after {expected - 1}{since}"
            self._recorder.report(rule, event, text, period.delivered_by, number)

    def _misread(self, number: int, event: Delivered, log: Log) -> None:
        what = f"{event.member} delivers {event.partition}@{event.offset}"
        if event.offset >= len(log.sequences):
            text = f"{what}, which was never written"
        elif log.sequences[event.offset] < 0:
            text = f"{what}, which no reader may see"
        else:
            text = f"{what} as record {event.sequence}; it is {log.sequences[event.offset]}"
        self._recorder.report("S8", event, text, number)

    def _check_first_delivery(
        self, number: int, event: Delivered, period: OwnershipPeriod, log: Log
    ) -> None:
        """S12, S7, S8 and S26: a member starts at the committed offset, once it has fetched that;
        without one, at the start of a partition that was created since it opened."""
        offset = event.offset
        what = f"{event.member} starts {event.partition} at {offset}"
        committed = max(period.starts, default=0)
        is_own = log.committer is period.run
        expected = min(log.floor, period.committed_before) if is_own else log.floor
        cuts = [cut for cut in log.truncations if cut < committed]
        is_uncommitted = max(period.starts, default=0) < 0
        is_new = (
            0 <= period.run.opened_by < log.created_by or event.partition in period.run.unlisted
        )
        if period.run.has_wire_events and not period.starts:
            text = f"{what} before it has fetched the committed offset"
            self._recorder.report("S12", event, text, period.began_by, number)
        elif not period.run.opening.resets and is_uncommitted and not is_new:
            text = f"{what}, but nothing is committed, and its options forbid a reset"
            self._recorder.report("S12", event, text, period.began_by, number)
        elif cuts and any(
            log.adjoins(at, offset)
            for at in (committed, *(cuts if period.run.opening.resets else ()))
        ):
            pass  # the commit may be of the log before the cut
        elif offset < expected and not self._recorder.is_replaced(period.run):
            text = f"{what}, though {expected} was committed"
            self._recorder.report("S7", event, text, log.floor_by, period.began_by, number)
        elif period.starts:
            starts = {max(start, 0) for start in period.starts}
            if not any(log.adjoins(start, offset) for start in starts):
                places = sorted({log.next_visible(start) for start in starts})
                text = f"{what} instead of {' or '.join(map(str, places))}"
                rule = "S8" if period.denied_by < 0 else "S23"
                rule = "S26" if is_new and is_uncommitted else rule
                self._recorder.report(rule, event, text, period.began_by, number)

    def _sought(self, number: int, event: Sought) -> None:
        tp = event.partition
        log = self._recorder.log(tp)
        period = self._recorder.run_of(event.member).held.get(tp)
        if period is None:
            return
        before = period.position if period.position is not None else log.floor
        for offset in range(before, event.offset):
            log.set_flag(offset, PROCESSED | PASSED)  # skipped by the application
        period.in_flight.clear()
        _move(period, log, event.offset, number, event.time)

    def _processed(self, number: int, event: Processed) -> None:
        run, log = self._recorder.run_of(event.member), self._recorder.log(event.partition)
        if event.offset in log.read_by.get(run.name, ()):
            log.set_flag(event.offset, PROCESSED)
            log.processed_end = max(log.processed_end, event.offset + 1)
        period = run.held.get(event.partition)
        if period is not None and period.is_position_unknown and period.truncations:
            # Reset because of a cut: a record below it may have been in flight meanwhile.
            kept = min(event.offset + 1, *period.truncations)
            period.processed_before_move = max(period.processed_before_move, kept)
        # A record of an earlier period, or from before a seek, does not count for this one.
        if period is None or event.offset not in period.in_flight:
            return
        if period.run.polled_by > period.processed_by:
            period.reported_processed, period.reported_at = period.processed, period.processed_at
        del period.in_flight[event.offset]
        period.processed = _watermark(period)
        period.processed_by, period.processed_at = number, event.time

    # ------------------------------------------------------------ commits: the application's calls

    def _committing(self, number: int, event: Committing) -> None:
        run = self._recorder.run_of(event.member)
        if event.offsets is None:
            run.polled_by = number
        asked: dict[TopicPartition, tuple[OwnershipPeriod, int | None]] = {}
        for tp, period in run.held.items():
            if event.offsets is None:
                asked[tp] = (period, period.processed)
            elif tp in event.offsets:
                asked[tp] = (period, event.offsets[tp])
        self._asked[event.member, event.token] = asked

    def _committed(self, number: int, event: Committed) -> None:
        asked = self._asked.pop((event.member, event.token), {})
        if event.outcome != "ok":
            # Its response is not awaited any more; the next commit covers its offsets.
            for period, _ in asked.values():
                period.called_at, period.failed_commit = None, (number, event.time)
            return
        run = self._recorder.run_of(event.member)
        for tp, (period, offset) in asked.items():
            # A period that ended in the meantime may have been removed from the commit.
            if offset is None or run.held.get(tp) is not period:
                continue
            log = self._recorder.log(tp)
            # A commit that timed out may be stored after the acknowledged one.
            stored = max(log.floor, period.acked or 0, *period.starts)
            if run.has_wire_events and stored < min((offset, *period.truncations)):
                text = f"{run.name}: commit of {tp}@{offset} succeeded, but {log.floor} is stored"
                self._recorder.report("S6", event, text, log.floor_by, number)
            self._raise_floor(tp, offset, number)

    def _raise_floor(self, tp: TopicPartition, offset: int, number: int) -> None:
        """Record that the group's commit is at least this offset."""
        log = self._recorder.log(tp)
        if offset > log.floor and not self._recorder.sees_broker:
            log.floor, log.floor_by = offset, number

    # ------------------------------------------------------------ commits: requests

    def _on_connecting(self, number: int, event: Connecting) -> None:
        self._connecting.setdefault(event.member, set()).add(event.node)

    def _sent(self, number: int, event: Sent) -> None:
        if (event.member, event.connection) not in self._connections:
            self._connections.add((event.member, event.connection))
            self._connecting.get(event.member, set()).discard(event.node)
        if event.api in ("Heartbeat", CONSUMER_HEARTBEAT, "OffsetCommit"):
            self._coordinators[event.member] = event.node
        if event.api == "OffsetFetch":
            floors = {tp: log.floor for tp, log in self._recorder.logs.items()}
            self._floors[event.member, event.connection, event.correlation] = floors
        elif event.api == "OffsetCommit":
            run = self._recorder.run_of(event.member)
            for tp, offset in event.offsets.items():
                self._sent_offsets.setdefault((run.name, tp), set()).add(offset)
                period = run.held.get(tp)
                if period is not None and 0 <= event.generation < period.generation:
                    continue  # a retry from an earlier period: the broker rejects it
                last = run.periods.get(tp)
                if period is None and last is not None and last.end_reason == "revoked":
                    # Revoked, but other members cannot get it before this one rejoins.
                    period = last if last.ended_by > last.released_by else None
                if period is None:
                    self._check_commit_of_others(number, event, run, tp, offset)
                else:
                    self._commit(number, event, period, offset)
        elif (
            is_join(event)
            or is_leave(event)
            or (event.api == CONSUMER_HEARTBEAT and event.owned is not None)
        ):
            self._on_release(number, event)
        elif event.api == "Fetch":
            for tp, offset in event.offsets.items():
                if offset < 0:
                    text = f"{event.member} fetches {tp} from offset {offset}"
                    self._recorder.report("S12", event, text, number)

    def _commit(self, number: int, event: Sent, period: OwnershipPeriod, offset: int) -> None:
        """S13: the commit is of a current membership; S4: of processed records; S5: not before the
        last one; S25: not before the period's first position. Each as far as the member knew when
        it issued the commit. Above that the application may commit any offsets."""
        tp, log, run = period.tp, self._recorder.log(period.tp), period.run
        if run.membership_end is not None:
            by, at, member_id, generation = run.membership_end
            # KIP-848: the id is constant in a run, so an older epoch does not excuse the commit.
            same = run.uses_consumer_protocol or generation == event.generation
            same = same and member_id == event.member_id
            if same and self._recorder.knew(by, at, event):
                text = f"{run.name} commits {tp}@{offset} for a membership that has ended"
                self._recorder.report("S13", event, text, by, number)
        is_of_position = period.moved is None or self._recorder.knew(*period.moved, event)
        done = max(_done(period, log), -1 if is_of_position else period.processed_before_move)
        if period.is_position_unknown and period.truncations:
            # Reset because of a cut: below it, what was processed stays processed. All of a deleted
            # topic does: S19 says whether a commit of it may be stored.
            cuts = () if log.deleted_by > period.began_by else period.truncations
            done = max(done, min((period.processed_before_move, *cuts)))
        if not event.explicit and offset > done and not log.adjoins(done, offset):
            text = f"{run.name} commits {tp}@{offset} and has processed up to {done}"
            self._recorder.report("S4", event, text, period.processed_by, number)
        if is_of_position:
            if not event.explicit and offset < period.minimum_commit:
                text = f"{run.name} commits {tp}@{offset} after {period.minimum_commit}"
                self._recorder.report("S5", event, text, period.sent_by, number)
            # An explicit commit does not move the position: after a seek back, the next commit of
            # processed records, as far as the client knows of them, may be below it.
            known = max(period.minimum_commit, _or_start(_reported(period)[0], period, log))
            least = min(offset, known) if event.explicit else offset
            period.minimum_commit = min((least, *period.truncations))
        is_floor_known = self._recorder.knew(*period.floor_known, event)
        is_below = period.floor is not None and offset < period.floor
        if event.explicit and is_below and is_floor_known:  # S5 covers the others
            text = f"{run.name} commits {tp}@{offset}; its assignment began at {period.floor}"
            self._recorder.report("S25", event, text, period.floor_known[0], number)
        period.sent, period.sent_by = offset, number
        if period.failed_commit is None or self._recorder.knew(*period.failed_commit, event):
            period.called_at = event.called_at

    def _check_commit_of_others(
        self, number: int, event: Sent, run: MemberRun, tp: TopicPartition, offset: int
    ) -> None:
        """S3 and S13: a member commits only partitions that it owned when it issued the commit."""
        last = run.periods.get(tp)
        if last is not None and not self._recorder.knew(last.ended_by, last.ended_at, event):
            return
        rule = "S13" if last is not None and last.end_reason == "lost" else "S3"
        state = "never owned it" if last is None else f"no longer owns it ({last.end_reason})"
        text = f"{run.name} commits {tp}@{offset} and {state}"
        self._recorder.report(rule, event, text, -1 if last is None else last.ended_by, number)

    # ------------------------------------------------------------ commits: results

    def _answered(self, number: int, event: Responded) -> None:
        if event.api not in ("OffsetCommit", "OffsetFetch", "Fetch"):
            return
        request = self._recorder.request(event)
        if request is None:
            return
        by, sent = request
        run = self._recorder.run_of(event.member)
        if event.api == "OffsetCommit":
            self._acknowledged(number, event, run, by, sent)
        elif event.api == "Fetch":
            for tp, error in event.refused.items():
                period = run.held.get(tp)
                if error == "OFFSET_OUT_OF_RANGE" and period is not None:
                    self._out_of_range(number, event, sent, period)
        else:
            floors = self._floors.pop((event.member, event.connection, event.correlation))
            for tp, offset in event.offsets.items():
                period = run.held.get(tp)
                # The response to a request of an earlier period does not count for this one.
                if period is not None and period.began_by < by:
                    period.starts.add(offset)
                    if period.floor is None:
                        period.floor, period.floor_known = max(offset, 0), (number, event.time)
                    _lower_floor(period, max(offset, 0))  # the reset policy decides for -1
                    period.committed_before = floors.get(tp, 0)
                    offset = min((offset, *self._recorder.log(tp).truncations))
                    self._raise_floor(tp, offset, number)
                    if period.moved is None and period.sent is None:
                        period.minimum_commit = max(period.minimum_commit, offset)

    def _out_of_range(
        self, number: int, event: Responded, sent: Sent, period: OwnershipPeriod
    ) -> None:
        """The position moves if the log does not contain it; S23: otherwise it stays, whatever one
        answer says."""
        log = self._recorder.log(period.tp)
        position = max(period.starts, default=0) if period.position is None else period.position
        # An unchanged partition of a fetch session is fetched as before.
        position = sent.offsets.get(period.tp, position)
        is_of_current_log = log.has_appends and not period.truncations
        if is_of_current_log and position <= len(log.sequences):
            period.denied_by = number
        else:
            _move(period, log, None, number, event.time)

    def _acknowledged(
        self, number: int, event: Responded, run: MemberRun, by: int, sent: Sent
    ) -> None:
        for tp, offset in sent.offsets.items():
            period = run.periods.get(tp)
            if period is None or period.began_by > by:
                continue
            if period.sent_by <= by:
                period.called_at = None
            if tp in event.offsets:
                period.acked, period.acked_by = offset, number
                self._raise_floor(tp, offset, number)

    def _stored(self, number: int, event: Stored) -> None:
        tp, offset = event.partition, event.offset
        self._recorder.sees_broker = True
        log = self._recorder.log(tp)
        if log.stored is not None and offset < log.stored:
            # The member's later commits are checked when it leaves. A commit that timed out may
            # still be stored, even after the next one.
            if self._was_sent(event):
                log.highest_stored = max(log.highest_stored, log.stored)
            else:
                text = f"the commit of {tp} goes back from {log.stored} to {offset}"
                self._recorder.report("S5", event, text, log.stored_by, number)
        if log.deleted_by >= 0 and offset > log.next_visible(log.processed_end):
            text = f"{tp} was recreated and processed to {log.processed_end}; {offset} is committed"
            self._recorder.report("S19", event, text, log.deleted_by, number)
        log.stored, log.stored_by = offset, number
        log.floor, log.floor_by = offset, number
        log.committer = self._recorder.run_of_member_id.get(event.member_id)
        # A member that does not know of a cut yet may commit offsets above it; but no member may do
        # so for a recreated topic.
        end = offset if log.deleted_by >= 0 else min((offset, *log.truncations))
        self._check_processed(number, event, tp, log, end)

    def _was_sent(self, event: Stored) -> bool:
        run = self._recorder.run_of_member_id.get(event.member_id)
        return run is not None and event.offset in self._sent_offsets.get(
            (run.name, event.partition), ()
        )

    def _check_processed(
        self, number: int, event: Event, tp: TopicPartition, log: Log, end: int
    ) -> None:
        """S6: every record below a commit was processed, by any member."""
        flags, offset = log.flags, log.checked_end
        missing = 0
        first = -1
        while offset < end:
            if offset >= len(flags):
                missing += 0 if log.has_appends else end - offset
                first = offset if first < 0 and missing else first
                break
            if not flags[offset] & (PROCESSED | HIDDEN):
                missing += 1
                first = offset if first < 0 else first
            offset += 1
        log.checked_end = max(log.checked_end, end)
        if missing:
            text = f"{tp}@{end} is committed; {missing} below were not processed, first {first}"
            self._recorder.report("S6", event, text, number)

    # ------------------------------------------------------------ revocation

    def _revoked(self, number: int, event: Revoked) -> None:
        run = self._recorder.run_of(event.member)
        for tp in event.partitions:
            period = run.periods.get(tp)
            if period is None or period.ended_by != number:
                continue
            if run.has_wire_events:
                self._released(number, event, period)
            elif period.processed is not None and run.opening.auto_commit:
                # Without wire events: the revocation was its last chance to commit.
                self._raise_floor(tp, period.processed, number)

    def _released(self, number: int, event: Revoked, period: OwnershipPeriod) -> None:
        """S3: what is processed is committed before the partition is released. A coordinator error
        since the assignment, or a passed deadline, excuses a missing commit."""
        run, tp = period.run, period.tp
        if run.troubled_by > run.assigned_by:
            return
        self._check_forgotten(number, event, period)
        acked = -1 if period.acked is None else period.acked
        if period.sent is not None and period.sent > acked:
            self._unanswered.setdefault(event.member, []).append(period)
            return
        done, done_at = _reported(period)
        if (
            not run.opening.auto_commit
            or done is None
            or period.processed_by > (period.revoking_by or 0)
            or any(cut < done for cut in period.truncations)
        ):
            return
        start = max(period.starts, default=0)
        if done > max(acked, start) and event.time - done_at < _LAST_COMMIT_TIMEOUT:
            text = (
                f"{run.name} releases {tp} with {done} processed and {max(acked, start)} committed"
            )
            self._recorder.report("S3", event, text, period.processed_by, number)

    def _check_forgotten(self, number: int, event: Revoked, period: OwnershipPeriod) -> None:
        """L10: a member with auto-commit sends what the broker has acknowledged to it once more,
        unless the broker forgot that only during the revocation, or before the response came; or
        the member was frozen or throttled until just before the release, so that the time for its
        last commit passed, or gets no connection to the coordinator. Whether the broker has
        answered a commit that was sent since does not depend on the member."""
        log, run, revoking_by = self._recorder.log(period.tp), period.run, period.revoking_by or 0
        if (
            run.opening.auto_commit
            and period.acked is not None
            and log.stored is None
            and log.deleted_by < period.began_by
            and period.began_by < log.forgotten_by < revoking_by
            and max(period.acked_by, period.sent_by) < log.forgotten_by
            and event.time - period.revoking_at < _LAST_COMMIT_TIMEOUT
            and event.time - run.hindered_until >= _LAST_COMMIT_TIMEOUT
            and self._coordinators.get(run.name) not in self._connecting.get(run.name, ())
        ):
            text = (
                f"{run.name} releases {period.tp}; the broker forgot its commit of {period.acked}"
            )
            self._recorder.report("L10", event, text, log.forgotten_by, number)

    def _on_release(self, number: int, event: Sent | Ended) -> None:
        """S3: other members may get the released partitions from now on."""
        kept = (
            (event.owned or ())
            if isinstance(event, Sent) and event.api == CONSUMER_HEARTBEAT
            else ()
        )
        for tp, period in self._recorder.run_of(event.member).periods.items():
            if tp not in kept:
                period.released_by = number
        for period in self._unanswered.pop(event.member, ()):
            run, tp = period.run, period.tp
            if tp in kept:
                self._unanswered.setdefault(event.member, []).append(period)
                continue
            excused = run.troubled_by > run.assigned_by
            if (
                period.called_at is not None
                and not excused
                and event.time - period.called_at < _LAST_COMMIT_TIMEOUT
            ):
                text = f"{run.name} releases {tp} before its commit of {period.sent} is answered"
                self._recorder.report("S3", event, text, period.sent_by, number)

    # ------------------------------------------------------------ the end

    def _finished(self, number: int, event: Finished) -> None:
        for tp, offset in event.committed.items():
            log = self._recorder.log(tp)
            if offset < log.floor:
                text = f"{tp}@{log.floor} was committed; the group is left at {offset}"
                self._recorder.report("S5", event, text, log.floor_by, number)
            log.checked_end = max(log.checked_end, event.starts.get(tp, 0))
            self._check_processed(number, event, tp, log, offset)
            self._check_end(number, event, tp, log, offset)

    def _check_end(
        self, number: int, event: Finished, tp: TopicPartition, log: Log, offset: int
    ) -> None:
        """S8: a commit after the last visible record also covers the control and aborted records
        after it, once there was time to fetch them and the application polls, which passes them;
        else the lag would never reach zero."""
        period, end = log.current, event.ends.get(tp, 0)
        if period is None or not log.has_appends or not period.run.opening.auto_commit:
            return
        healed_at = self._recorder.healed_at if self._recorder.healed_at < math.inf else 0.0
        since = max(log.appended_at, period.began_at, healed_at)
        polls = period.run.polls
        if polls.delivered_at < since + _QUIET < polls.processed_at:
            since = polls.processed_at  # it was still processing these records
        quiet = period.end_reason == "revoked" and period.ended_at - since > _QUIET
        if quiet and offset < end <= log.next_visible(offset):
            text = f"{tp} is left at {offset}, with nothing to read up to its end at {end}"
            self._recorder.report("S8", event, text, period.began_by, period.ended_by, number)


def _was_truncated_away(period: OwnershipPeriod | None, event: Delivered, log: Log) -> bool:
    """Whether a truncation or deletion has removed the record since it may have been fetched."""
    was_cut = period is not None and any(cut <= event.offset for cut in period.truncations)
    return was_cut and log.has_lost(event.offset, event.sequence)


def _move(period: OwnershipPeriod, log: Log, offset: int | None, number: int, now: float) -> None:
    """Set the next position to `offset`, or, if None, to wherever the log begins or ends."""
    # A commit issued before this may still cover the records processed until now.
    period.processed_before_move = max(period.processed_before_move, _done(period, log))
    period.moved = number, now
    period.is_position_unknown = offset is None
    kept = [(o, at) for o, at in period.in_flight.items() if offset is not None and o < offset]
    period.in_flight = OrderedDict(kept)
    period.position = offset
    period.processed = period.reported_processed = _watermark(period)
    period.minimum_commit = 0
    _lower_floor(period, offset or 0)
    if log.current is period:  # a former owner's seek does not concern the group's commits
        log.floor = min(log.floor, offset or 0)


def _watermark(period: OwnershipPeriod) -> int | None:
    """Return the position before the first record in flight; without one, the position."""
    return next(iter(period.in_flight.values()), period.position)


def _lower_floor(period: OwnershipPeriod, offset: int) -> None:
    """Note a position that may be the lowest one since the period began."""
    if period.floor is not None:
        period.floor = min(period.floor, offset)


def _done(period: OwnershipPeriod, log: Log) -> int:
    """Return the offset below which all is processed, or the start offset."""
    return _or_start(period.processed, period, log)


def _reported(period: OwnershipPeriod) -> tuple[int | None, float]:
    """Return the offset below which the application has reported all as processed by its polls, and
    when that was processed."""
    if period.run.polled_by > period.processed_by:
        return period.processed, period.processed_at
    return period.reported_processed, period.reported_at


def _or_start(offset: int | None, period: OwnershipPeriod, log: Log) -> int:
    if offset is not None:
        return offset
    return max((*period.starts, 0 if period.run.has_wire_events else log.floor, 0))

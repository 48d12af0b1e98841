"""The transactions of a producer: one pure `step`. Nothing here reads a clock or touches a socket.

The rules that the state keeps:

- A transaction is ended by EndTxn if a response has said that a partition or a group was added to
  it, otherwise without a request. From `transaction.version` 2 on a partition or group counts as
  added as soon as the addition was attempted. Below version 2 only the response tells, so an abort
  first waits for the responses to the requests that add.
- A transaction commits only if no record or request of it has failed, and every request was
  answered.
- An EndTxn without a response is repeated with the same outcome until it is answered.
- Below version 2 the requests of all transactions in one epoch look alike. If one of them got no
  response, it may be executed later. Then the next transaction begins in another epoch. The
  producer requests that epoch as the owner of the present one, and never while the end of a
  transaction is unknown: the coordinator would abort that transaction.
- If a lost request would have added something, it may have begun a transaction after the end of its
  own. That one is aborted before the epoch is requested: otherwise the coordinator aborts it as it
  handles the InitProducerId, and then takes the producer for one that was fenced.
- A producer that was fenced, or is not known to the coordinator any more, never requests an epoch.

`transaction_state.MOVES` is the whole table of phases. Sources: KIP-98, 360, 447, 890, 1050;
KAFKA-18019, KAFKA-18227, KAFKA-20785.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from kafkagroup._values import evolve
from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    IllegalStateError,
    KafkaGroupError,
    LocalProtocolError,
    NotWrittenError,
    ProducerFencedError,
    RequestTimeoutError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from kafkagroup.produce.transaction_codes import codes_of, reaction, worst
from kafkagroup.produce.transaction_errors import (
    aborted_error,
    fenced_error,
    no_group_fencing,
    no_next_epoch,
    request_error,
    timeout_text,
    unknown_outcome_error,
)
from kafkagroup.produce.transaction_requests import (
    add_offsets_request,
    add_partitions_codes,
    add_partitions_request,
    end_request,
    init_request,
    offset_commit_codes,
    offsets_request,
)
from kafkagroup.produce.transaction_state import (
    ENDED,
    ENDS_EPOCH,
    MOVES,
    Attempt,
    Call,
    CallKind,
    OffsetCommit,
    Phase,
    Transactions,
)
from kafkagroup.produce.transaction_vocabulary import (
    AbortRequested,
    BeginRequested,
    CallAbandoned,
    CommitRequested,
    Complete,
    Destination,
    Effect,
    EpochNeeded,
    Event,
    InitializeRequested,
    OffsetsRequested,
    PartitionsRequested,
    RecordFailed,
    Refused,
    Replied,
    Send,
    SendFailed,
    Sent,
)
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import (
    ADD_OFFSETS_ACTIONS,
    ADD_PARTITIONS_ACTIONS,
    COORDINATOR_AWAITS_MARKERS,
    END_TXN_ACTIONS,
    FAILED_RECORD_ACTIONS,
    INIT_PRODUCER_ID_ACTIONS,
    TXN_OFFSET_COMMIT_ACTIONS,
    TransactionAction,
    is_unknown,
)
from kafkagroup.wire.schema import Request

__all__ = ["step"]

_LAST_EPOCH = 2**15 - 2
"""The last epoch of a producer id; the producer gets another id after it. The coordinator keeps
the highest, 2^15 - 1, to fence the producer."""

# The lowest and the highest version of each request.
_INIT_VERSIONS = (0, 5)
_OWNER_INIT_VERSIONS = (3, 5)
"""From version 3 on InitProducerId names the present id and epoch, by which the coordinator checks
that the request is the owner's (KIP-360)."""
_ADD_PARTITIONS_VERSIONS = (0, 3)
"""Later versions are for brokers."""
_ADD_OFFSETS_VERSIONS = (0, 4)
_OFFSETS_VERSIONS = (3, 4)
"""From version 3 on TxnOffsetCommit fences members of a group (KIP-447)."""
_END_VERSIONS = (0, 4)
_EPOCH_ENDING_VERSIONS = (5, 5)
"""Of EndTxn and TxnOffsetCommit, from `transaction.version` 2 on."""


def step(state: Transactions, event: Event) -> tuple[Transactions, tuple[Effect, ...]]:
    """Return the state after an event, and the effects to execute.

    Raises, and changes nothing: IllegalStateError for a call that is not allowed now;
    LocalProtocolError for a move that is not in the table.
    """
    run = _Step(state, event.now)
    run.take(event)
    return run.state, tuple(run.effects)


class _Step:
    """One call of `step`: the state so far, and the effects."""

    def __init__(self, state: Transactions, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []

    def take(self, event: Event) -> None:
        match event:
            case InitializeRequested(call=call):
                if self._begin_call(Call(call, CallKind.INITIALIZE), Phase.UNINITIALIZED):
                    self._initialize()
            case BeginRequested(call=call, version=version, timeout_ms=timeout_ms):
                self._on_begin(Call(call, CallKind.BEGIN, version, timeout_ms))
            case PartitionsRequested(number=number, partitions=partitions):
                if self._is_open(number):
                    self._add(partitions)
            case OffsetsRequested():
                self._on_offsets(event)
            case RecordFailed(error=error):
                self._on_record_failed(error)
            case EpochNeeded():
                if not self.state.ends_epoch:
                    self._set(needs_epoch=True)
            case CommitRequested(call=call):
                self._on_commit(Call(call, CallKind.COMMIT))
            case AbortRequested(call=call):
                self._on_abort(Call(call, CallKind.ABORT))
            case CallAbandoned(call=call, reason=reason):
                self._on_abandoned(call, reason)
            case Sent() | Replied() | SendFailed() | Refused():
                self._on_request(event)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ calls

    def _begin_call(self, call: Call, *phases: Phase) -> bool:
        """Note a call that waits, and return True. If the producer has ended, fail the call with
        the error that ended the producer, and return False.

        Raises: IllegalStateError while another call waits, and in a phase that is not in
        `phases`."""
        if self.state.call is not None:
            kind, other = call.kind.value, self.state.call.kind.value
            raise IllegalStateError(f"cannot {kind}: another task waits for the {other} to end")
        if self.state.phase in ENDED:
            self._complete(call.number, self.state.error)
            return False
        if self.state.phase not in phases:
            raise IllegalStateError(
                f"cannot {call.kind.value} the transaction: {_REASONS[self.state.phase]}"
            )
        self._set(call=call)
        return True

    def _on_begin(self, call: Call) -> None:
        if self._begin_call(call, Phase.READY, Phase.UNRESOLVED):
            if self.state.phase is Phase.UNRESOLVED:
                self._resume()
            else:
                self._begin()

    def _on_commit(self, call: Call) -> None:
        if self.state.phase is Phase.ABORTABLE_ERROR:
            self._complete(call.number, aborted_error(self.state))
            return
        if self.state.phase is Phase.UNRESOLVED and not self.state.commits:
            raise IllegalStateError("cannot commit the transaction: it is being aborted")
        if not self._begin_call(call, Phase.IN_TRANSACTION, Phase.UNRESOLVED):
            return
        if self.state.phase is Phase.UNRESOLVED:
            self._resume()
        elif self.state.wanted or self.state.add_attempt or self.state.offset_commit:
            what = "partitions" if self.state.offset_commit is None else "offsets"
            error = IllegalStateError(f"{what} were not added to the transaction yet")
            self._require_abort(error)
            self._complete_call(aborted_error(self.state))
        else:
            self._move(Phase.COMMITTING, commits=True)
            self._end()

    def _on_abort(self, call: Call) -> None:
        if self.state.phase is Phase.UNRESOLVED and self.state.commits:
            raise IllegalStateError(
                "cannot abort the transaction: the request to commit it may have been executed"
            )
        phases = Phase.IN_TRANSACTION, Phase.ABORTABLE_ERROR, Phase.UNRESOLVED
        if not self._begin_call(call, *phases):
            return
        if self.state.phase is Phase.UNRESOLVED:
            self._resume()
            return
        self._move(Phase.ABORTING, commits=False)
        self._stop_adding(IllegalStateError("the transaction is aborted"))
        self._end()

    def _on_abandoned(self, number: int, reason: str) -> None:
        call, offsets = self.state.call, self.state.offset_commit
        if offsets is not None and offsets.call == number:
            trouble = self.state.trouble
            reason += f"; the last failure was: {trouble}" if trouble else ""
            given_up = RequestTimeoutError(f"committing offsets was given up: {reason}")
            self._complete(number, given_up)
            self._set(offset_commit=evolve(offsets, call=None))
            self._require_abort(given_up)
            return
        if call is None or call.number != number:
            return
        trouble = self.state.trouble
        error: KafkaGroupError = RequestTimeoutError(
            f"the {_NOUNS[call.kind]} of transactional id {self.state.transactional_id!r} was given"
            f" up: {reason}" + (f"; the last failure was: {trouble}" if trouble else "")
        )
        match self.state.phase:
            case Phase.INITIALIZING:
                has_identity = self.state.has_identity
                self._move(Phase.READY if has_identity else Phase.UNINITIALIZED, attempt=None)
            case Phase.COMMITTING if call.kind is CallKind.COMMIT and not self._is_end_uncertain:
                # The coordinator has no request to commit, so the transaction can be aborted.
                self._move(Phase.ABORTABLE_ERROR, attempt=None, error=error)
                error = aborted_error(self.state)
            case Phase.COMMITTING | Phase.ABORTING:
                if self.state.phase is Phase.COMMITTING:
                    error = unknown_outcome_error(self.state, error)
                self._move(Phase.UNRESOLVED)
            case _:
                raise LocalProtocolError(f"a call waits in {self.state.phase}")
        self._complete_call(error)

    # ------------------------------------------------------------ epochs

    def _initialize(self) -> None:
        """Request an epoch: the first, or the next as the owner of the present one."""
        is_owner = self.state.has_identity
        # `needs_epoch` is set until there is a response: if this call is given up, the next `begin`
        # requests the epoch again.
        self._move(Phase.INITIALIZING, needs_epoch=is_owner)
        versions = _OWNER_INIT_VERSIONS if is_owner else _INIT_VERSIONS
        self._set(attempt=self._attempt(init_request(self.state), versions))

    def _on_init(self, attempt: Attempt, response: Any) -> None:
        code = response.error_code
        match action := reaction(INIT_PRODUCER_ID_ACTIONS, code, TransactionAction.FATAL):
            case None:
                self._on_epoch(response.producer_id, response.producer_epoch)
            case TransactionAction.RETRY | TransactionAction.LOOK_UP:
                self._set(attempt=self._again(attempt, action, code))
            case _:
                error = self._error("asking for an epoch", code)
                self._end_producer(action, error)

    def _on_epoch(self, producer_id: int, epoch: int) -> None:
        state = self.state
        if state.has_identity and producer_id != state.producer_id and state.epoch < _LAST_EPOCH:
            # A new id before the epochs are used up: the coordinator has forgotten the
            # transactional id, and with it whether another producer has fenced this one.
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            self._fail(Phase.FATAL, self._error("asking for an epoch", code))
            return
        self._move(Phase.READY, needs_epoch=False, attempt=None)
        self._set_epoch(producer_id, epoch)
        if state.call is not None and state.call.kind is CallKind.BEGIN:
            self._open()
        self._complete_call()

    def _begin_with_former_timeout(self, attempt: Attempt, error: KafkaGroupError) -> bool:
        """Begin the transaction with the timeout that the coordinator has already; return whether
        that was done. It is done only if the epoch was requested just for another timeout, the
        broker is older than Kafka 2.5, which gives no next epoch, and this was the first attempt:
        an earlier one, at another broker, may have begun an epoch."""
        call = self.state.call
        former = None if call is None else call.former_timeout_ms
        is_too_old = isinstance(error, UnsupportedVersionError)
        if former is None or attempt.send.attempts or not is_too_old:
            return False
        self._move(Phase.READY, needs_epoch=False, attempt=None, timeout_ms=former)
        self._open()
        self._complete_call()
        return True

    def _set_epoch(self, producer_id: int, epoch: int) -> None:
        self._set(producer_id=producer_id, epoch=epoch, is_epoch_used=False)

    # ------------------------------------------------------------ beginning

    def _begin(self) -> None:
        """Begin a transaction; the producer is READY."""
        if self.state.may_be_open:
            self._move(Phase.ABORTING, commits=False)
            self._send_end()
            return
        call = self.state.call
        assert call is not None
        # KAFKA-18227: in the same epoch a broker may add the first record to the transaction
        # before, whose markers are still being written.
        is_upgrade = (
            call.version >= ENDS_EPOCH and not self.state.ends_epoch and self.state.is_epoch_used
        )
        timeout_ms = call.timeout_ms or self.state.timeout_ms
        former = self.state.timeout_ms
        needs_epoch = self.state.needs_epoch or is_upgrade
        self._set(version=call.version, timeout_ms=timeout_ms)
        if needs_epoch:
            self._initialize()
        elif timeout_ms != former:
            self._set(call=evolve(call, former_timeout_ms=former))
            self._initialize()
        else:
            self._open()
            self._complete_call()

    def _open(self) -> None:
        self._move(
            Phase.IN_TRANSACTION,
            number=self.state.number + 1,
            begun_at=self.now,
            is_epoch_used=True,
        )

    def _is_open(self, number: int) -> bool:
        return self.state.is_open and number == self.state.number

    # ------------------------------------------------------------ partitions

    def _add(self, partitions: frozenset[TopicPartition]) -> None:
        if self.state.ends_epoch:
            self._set(added=self.state.added | partitions)
            return
        wanted = self.state.wanted | partitions
        self._set(wanted=wanted - self.state.added - self.state.adding)
        self._add_wanted()

    def _add_wanted(self) -> None:
        """Request to add the wanted partitions, unless an earlier such request is not answered."""
        wanted = self.state.wanted
        if wanted and self.state.add_attempt is None:
            request = add_partitions_request(self.state, wanted)
            attempt = self._attempt(request, _ADD_PARTITIONS_VERSIONS)
            self._set(adding=wanted, wanted=frozenset(), add_attempt=attempt)

    def _on_add_request(self, attempt: Attempt, event: RequestEvent) -> None:
        match event:
            case Sent():
                self._set(add_attempt=evolve(attempt, is_in_flight=True))
            case Replied(response=response):
                self._on_added(attempt, response)
            case SendFailed():
                self._on_add_lost(attempt)
            case Refused(error=error):
                self._set(adding=frozenset(), add_attempt=None)
                self._on_refusal(error)

    def _on_added(self, attempt: Attempt, response: Any) -> None:
        adding = self.state.adding
        codes = codes_of(adding, add_partitions_codes(response))
        if codes is None:
            self._on_add_lost(attempt)
            return
        tp, code, action = worst(codes, ADD_PARTITIONS_ACTIONS)
        match action:
            case None:
                self._set(added=self.state.added | adding)
                self._end_adding()
            case TransactionAction.LOOK_UP:
                # Also in a transaction that is aborted: the partitions may have been added.
                self._set(add_attempt=self._again(attempt, action, code, is_lost=True))
            case TransactionAction.RETRY if self.state.is_open:
                self._set(add_attempt=self._again(attempt, action, code))
            case TransactionAction.RETRY:
                # The transaction will be aborted. This attempt has added nothing; what a lost one
                # may have added ends with the next epoch.
                self._end_adding()
            case _:
                self._note_lost(is_unknown(code), adds=True)
                self._set(adding=frozenset(), add_attempt=None)
                what = f"adding {tp} to the transaction"
                self._on_refusal(self._error(what, code, topic=tp.topic), action)

    def _on_add_lost(self, attempt: Attempt) -> None:
        """The request got no response, or one without some of its partitions. Send it again if the
        coordinator may have executed it, or may yet; or if the transaction is still open."""
        attempt = self._lost(attempt, adds=True)
        if self.state.is_open or attempt.is_lost:
            self._set(add_attempt=self._again(attempt, TransactionAction.LOOK_UP))
        else:
            self._end_adding()

    def _end_adding(self) -> None:
        self._set(adding=frozenset(), add_attempt=None)
        if self.state.is_open:
            self._add_wanted()
        self._end_when_answered()

    # ------------------------------------------------------------ offsets

    def _on_offsets(self, event: OffsetsRequested) -> None:
        if self.state.phase in ENDED:
            self._complete(event.call, self.state.error)
            return
        if self.state.phase is Phase.ABORTABLE_ERROR and event.number == self.state.number:
            self._complete(event.call, aborted_error(self.state))
            return
        if not self._is_open(event.number):
            raise IllegalStateError("cannot commit offsets: the transaction has ended")
        if self.state.offset_commit is not None:
            raise IllegalStateError("cannot commit offsets: another task is committing some")
        if not event.offsets:
            self._complete(event.call)
            return
        group_id = event.group.group_id
        for tp, offset in event.offsets.items():
            if self.state.doubtful_offsets.get((group_id, tp), offset) != offset:
                error = RequestTimeoutError(
                    f"an earlier request with the offset of {tp} got no response, and may be"
                    " executed after this one"
                )
                self._complete(event.call, error)
                self._require_abort(error)
                return
        is_adding = group_id not in self.state.groups and not self.state.ends_epoch
        if is_adding:
            request: Request[Any] = add_offsets_request(self.state, group_id)
            attempt = self._attempt(request, _ADD_OFFSETS_VERSIONS)
            commit = OffsetCommit(event.call, event.group, event.offsets, is_adding, attempt)
            self._set(offset_commit=commit)
        else:
            self._set(groups=self.state.groups | {group_id})
            self._send_offsets(event)

    def _send_offsets(self, commit: OffsetsRequested | OffsetCommit) -> None:
        group = commit.group
        versions = _EPOCH_ENDING_VERSIONS if self.state.ends_epoch else _OFFSETS_VERSIONS
        request = offsets_request(self.state, group, commit.offsets)
        attempt = self._attempt(request, versions, Destination.GROUP, group.group_id)
        self._set(offset_commit=OffsetCommit(commit.call, group, commit.offsets, False, attempt))

    def _on_offsets_request(self, commit: OffsetCommit, event: RequestEvent) -> None:
        match event:
            case Sent():
                attempt = evolve(commit.attempt, is_in_flight=True)
                self._set(offset_commit=evolve(commit, attempt=attempt))
            case Replied(response=response) if commit.is_adding:
                self._on_group_added(commit, response.error_code)
            case Replied(response=response):
                self._on_offsets_committed(commit, response)
            case SendFailed():
                self._on_offsets_lost(commit)
            case Refused(error=error):
                # Below version 2 a broker may be too old for a TxnOffsetCommit that fences members.
                if not commit.is_adding and not self.state.ends_epoch:
                    error = no_group_fencing(error)
                self._on_offsets_refused(commit, error)

    def _on_group_added(self, commit: OffsetCommit, code: int) -> None:
        group_id = commit.group.group_id
        match action := reaction(ADD_OFFSETS_ACTIONS, code, TransactionAction.ABORT):
            case None:
                self._set(groups=self.state.groups | {group_id})
                if self.state.is_open:
                    self._send_offsets(commit)
                else:
                    self._end_offsets()
            case TransactionAction.LOOK_UP:  # as for partitions: the group may have been added
                attempt = self._again(commit.attempt, action, code, is_lost=True)
                self._set(offset_commit=evolve(commit, attempt=attempt))
            case TransactionAction.RETRY:
                self._retry_offsets(commit, action, code)
            case _:
                self._note_lost(is_unknown(code), adds=True)
                what = f"adding the offsets of group {group_id!r} to the transaction"
                self._on_offsets_refused(commit, self._error(what, code, group=group_id), action)

    def _on_offsets_committed(self, commit: OffsetCommit, response: Any) -> None:
        codes = codes_of(commit.offsets, offset_commit_codes(response))
        if codes is None:
            self._on_offsets_lost(commit)
            return
        tp, code, action = worst(codes, TXN_OFFSET_COMMIT_ACTIONS)
        match action:
            case None:
                self._end_offsets()
                self._complete(commit.call)
            case TransactionAction.RETRY | TransactionAction.LOOK_UP:
                self._retry_offsets(commit, action, code)
            case _:
                group_id = commit.group.group_id
                what = f"committing the offset of {tp} of group {group_id!r} with the transaction"
                error = self._error(what, code, topic=tp.topic, group=group_id)
                self._on_offsets_refused(commit, error, action)

    def _retry_offsets(self, commit: OffsetCommit, action: TransactionAction, code: int) -> None:
        if self.state.is_open:
            attempt = self._again(commit.attempt, action, code)
            self._set(offset_commit=evolve(commit, attempt=attempt))
        else:
            self._end_offsets()

    def _on_offsets_refused(
        self,
        commit: OffsetCommit,
        error: KafkaGroupError,
        action: TransactionAction = TransactionAction.ABORT,
    ) -> None:
        self._set(offset_commit=None)
        self._on_refusal(error, action)
        self._complete(commit.call, error)

    def _on_offsets_lost(self, commit: OffsetCommit) -> None:
        """The request got no response, or one without some of its partitions. Send it again if the
        coordinator may have executed it, or may yet; or if the transaction is still open."""
        attempt = self._lost(commit.attempt, adds=commit.is_adding)
        if attempt.is_lost and not commit.is_adding:
            doubtful = {(commit.group.group_id, tp): o for tp, o in commit.offsets.items()}
            self._set(doubtful_offsets={**self.state.doubtful_offsets, **doubtful})
        # In a transaction that is aborted only AddOffsetsToTxn is still here: `_stop_adding` has
        # withdrawn a TxnOffsetCommit.
        if self.state.is_open or attempt.is_lost:
            attempt = self._again(attempt, TransactionAction.LOOK_UP)
            self._set(offset_commit=evolve(commit, attempt=attempt))
        else:
            self._end_offsets()

    def _end_offsets(self) -> None:
        self._set(offset_commit=None)
        self._end_when_answered()

    # ------------------------------------------------------------ failures

    def _on_record_failed(self, error: KafkaGroupError) -> None:
        if self.state.phase not in (Phase.IN_TRANSACTION, Phase.ABORTABLE_ERROR):
            return  # a commit begins when all records have ended, and an abort drops them
        why = error.why if isinstance(error, NotWrittenError) else error
        code = why.code if isinstance(why, BrokerError) else ErrorCode.NONE
        match FAILED_RECORD_ACTIONS.get(code, TransactionAction.ABORT):
            case TransactionAction.FENCED:
                self._fail(
                    Phase.FENCED, fenced_error(self.state, self.now, "writing a record", code)
                )
            case TransactionAction.FATAL:
                self._fail(Phase.FATAL, self._error("writing a record", code))
            case _:
                self._require_abort(error)

    def _on_refusal(
        self, error: KafkaGroupError, action: TransactionAction = TransactionAction.ABORT
    ) -> None:
        """A request that adds something was refused."""
        code = error.code if isinstance(error, BrokerError) else ErrorCode.NONE
        if isinstance(error, ProducerFencedError):
            self._fail(Phase.FENCED, error)
        elif (
            action is TransactionAction.FATAL
            # The look-up of the coordinator may raise this; no `action` comes with its errors.
            or code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ):
            self._fail(Phase.FATAL, error)
        else:
            self._require_abort(error)
            self._end_when_answered()

    def _require_abort(self, error: KafkaGroupError) -> None:
        """Note that the transaction cannot commit. The first error counts."""
        if self.state.is_open:
            self._move(Phase.ABORTABLE_ERROR, error=error)
        self._stop_adding(TransactionAbortedError(error))

    def _stop_adding(self, error: KafkaGroupError) -> None:
        """Withdraw the requests that add to the transaction, except those that the coordinator may
        have executed: the abort needs their responses. A TxnOffsetCommit is always withdrawn, as
        its group was added before. A call with offsets fails with `error`."""
        attempt, commit = self.state.add_attempt, self.state.offset_commit
        self._set(wanted=frozenset())
        if attempt is not None and not attempt.is_uncertain:
            self._set(adding=frozenset(), add_attempt=None)
        if commit is None:
            return
        is_uncertain = commit.attempt.is_uncertain
        if is_uncertain and commit.is_adding:
            self._set(offset_commit=evolve(commit, call=None))
        else:
            self._set(offset_commit=None)
            self._note_lost(is_uncertain)
        self._complete(commit.call, error)

    def _end_producer(self, action: TransactionAction, error: KafkaGroupError) -> None:
        """End the producer with the error of a response: FENCED for that action, else FATAL."""
        self._fail(Phase.FENCED if action is TransactionAction.FENCED else Phase.FATAL, error)

    def _fail(self, phase: Phase, error: KafkaGroupError) -> None:
        """End the producer with an error, in the phase FENCED or FATAL."""
        call, commit = self.state.call, self.state.offset_commit
        is_unknown = self._is_commit_lost
        self._move(
            phase,
            error=error,
            attempt=None,
            add_attempt=None,
            adding=frozenset(),
            wanted=frozenset(),
            offset_commit=None,
        )
        if commit is not None:
            self._complete(commit.call, error)
        # `begin` fails with the error itself: the commit has reported its outcome as unknown.
        if call is not None and is_unknown and call.kind is not CallKind.BEGIN:
            error = unknown_outcome_error(self.state, error)
        self._complete_call(error)

    # ------------------------------------------------------------ the end

    @property
    def _is_end_uncertain(self) -> bool:
        """Whether the coordinator may have executed the request to end the transaction."""
        attempt = self.state.attempt
        return self.state.is_end_lost or (attempt is not None and attempt.is_in_flight)

    @property
    def _is_commit_lost(self) -> bool:
        return self.state.is_end_lost and self.state.commits

    def _end_when_answered(self) -> None:
        """Continue an abort that waits for the responses to requests that add."""
        if self.state.phase in (Phase.ABORTING, Phase.UNRESOLVED) and self.state.attempt is None:
            self._end()

    def _end(self) -> None:
        """Send EndTxn, unless a request that adds is not answered: on its response `_end` is called
        again. A transaction to which nothing was added ends without EndTxn."""
        if self.state.add_attempt is not None or self.state.offset_commit is not None:
            return
        if not (self.state.added or self.state.groups):
            self._on_ended()
            return
        self._send_end()

    def _send_end(self) -> None:
        versions = _EPOCH_ENDING_VERSIONS if self.state.ends_epoch else _END_VERSIONS
        self._set(attempt=self._attempt(end_request(self.state), versions))

    def _resume(self) -> None:
        """Wait again for the end of the last transaction, whose call was given up."""
        self._move(Phase.COMMITTING if self.state.commits else Phase.ABORTING)

    def _on_end(self, attempt: Attempt, response: Any) -> None:
        state, code = self.state, self._end_code(response)
        action = reaction(END_TXN_ACTIONS, code, TransactionAction.FATAL)
        # From version 2 on this code says that there is no transaction to commit, also after an
        # attempt without a response: if that attempt was executed, the repeated one succeeds
        # (KIP-890).
        is_aborted = code == ErrorCode.INVALID_TXN_STATE and state.ends_epoch
        # After an attempt of unknown outcome the code proves nothing: that attempt may have
        # committed the transaction.
        is_abortable = action is TransactionAction.ABORT and not state.is_end_lost
        if action is TransactionAction.LOOK_UP or (action and code not in END_TXN_ACTIONS):
            self._set(is_end_lost=True)
        match action:
            case None:
                if state.ends_epoch and response.producer_id >= 0:
                    self._set_epoch(response.producer_id, response.producer_epoch)
                if not self._is_own:
                    self._set(may_be_open=False)
                self._on_ended()
            case TransactionAction.RETRY | TransactionAction.LOOK_UP:
                self._set(attempt=self._again(attempt, action, code))
            case _ if state.commits and (is_aborted or is_abortable):
                self._on_not_committed(code)
            case _:
                error = self._error(self._ending, code)
                self._end_producer(action, error)

    def _end_code(self, response: Any) -> int:
        """Return what the response to EndTxn says, where its code alone does not."""
        state, code = self.state, response.error_code
        if code == ErrorCode.INVALID_TXN_STATE and not self._is_own:
            return ErrorCode.NONE  # no late request has begun a transaction
        if (
            code == ErrorCode.PRODUCER_FENCED
            and state.ends_epoch
            and state.commits
            and not state.is_end_lost
            and timeout_text(state, self.now)
        ):
            # The code of coordinators after Kafka 4.3, also if they have aborted the transaction at
            # its timeout (KAFKA-20785). If another producer has fenced this one, the abort tells.
            return ErrorCode.INVALID_TXN_STATE
        return int(code)

    @property
    def _is_own(self) -> bool:
        """Whether EndTxn ends a transaction of this producer; else one that a late request may have
        begun."""
        return bool(self.state.added or self.state.groups)

    @property
    def _ending(self) -> str:
        """What EndTxn does, for the text of an error."""
        return f"{'committing' if self.state.commits else 'aborting'} the transaction"

    def _on_not_committed(self, code: int) -> None:
        """The coordinator will never commit the transaction."""
        call = self.state.call
        error = self._error(self._ending, code)
        self._set(attempt=None, is_end_lost=False)
        if call is not None and call.kind is CallKind.COMMIT:
            self._move(Phase.ABORTABLE_ERROR, error=error)
            self._complete_call(aborted_error(self.state))
            return
        # The call that committed was given up: abort at once. Without a call, stay UNRESOLVED.
        if call is not None:
            self._move(Phase.ABORTING)
        self._set(commits=False)
        self._end()

    def _on_ended(self) -> None:
        """The transaction has ended, with the outcome that was requested."""
        self._move(
            Phase.READY,
            attempt=None,
            added=frozenset(),
            groups=frozenset(),
            doubtful_offsets={},
            is_end_lost=False,
            error=None,
        )
        if self.state.call is not None and self.state.call.kind is CallKind.BEGIN:
            self._begin()
        else:
            self._complete_call()

    # ------------------------------------------------------------ requests

    def _on_request(self, event: RequestEvent) -> None:
        """Handle an event of a request. If the request is not awaited any more, change nothing."""
        state, token = self.state, event.token
        if isinstance(event, SendFailed) and state.awaits(token):
            self._set(trouble=str(event.error))
        if state.attempt is not None and state.attempt.send.token == token:
            self._on_main_request(state.attempt, event)
        elif state.add_attempt is not None and state.add_attempt.send.token == token:
            self._on_add_request(state.add_attempt, event)
        elif state.offset_commit is not None and state.offset_commit.attempt.send.token == token:
            self._on_offsets_request(state.offset_commit, event)

    def _on_main_request(self, attempt: Attempt, event: RequestEvent) -> None:
        """Handle an event of InitProducerId or EndTxn."""
        is_init = self.state.phase is Phase.INITIALIZING
        match event:
            case Sent():
                self._set(attempt=evolve(attempt, is_in_flight=True))
            case Replied(response=response) if is_init:
                self._on_init(attempt, response)
            case Replied(response=response):
                self._on_end(attempt, response)
            case SendFailed():
                if not is_init:
                    self._set(is_end_lost=self.state.is_end_lost or attempt.is_in_flight)
                    attempt = self._lost(attempt)
                self._set(attempt=self._again(attempt, TransactionAction.LOOK_UP))
            case Refused(error=error):
                if is_init and self._begin_with_former_timeout(attempt, error):
                    return
                if is_init and self.state.has_identity:
                    error = no_next_epoch(error)
                self._fail(Phase.FATAL, error)

    def _attempt(
        self,
        request: Request[Any],
        versions: tuple[int, int],
        to: Destination = Destination.TRANSACTION,
        key: str | None = None,
    ) -> Attempt:
        """Send a request for the first time."""
        send = Send(
            token=self._token(),
            request=request,
            to=to,
            key=self.state.transactional_id if key is None else key,
            lowest=versions[0],
            highest=versions[1],
        )
        self.effects.append(send)
        self._set(trouble="")
        return Attempt(send)

    def _again(
        self,
        attempt: Attempt,
        action: TransactionAction,
        code: int = ErrorCode.NONE,
        *,
        is_lost: bool = False,
    ) -> Attempt:
        """Send the same request again. `code`: the error of the response; NONE without one.
        `is_lost`: whether the request may have been executed all the same."""
        send = evolve(
            attempt.send,
            token=self._token(),
            attempts=attempt.send.attempts + 1,
            awaits_markers=code in COORDINATOR_AWAITS_MARKERS,
            needs_look_up=action is TransactionAction.LOOK_UP,
        )
        if code != ErrorCode.NONE:
            self._set(trouble=str(BrokerError(code)))
        self.effects.append(send)
        is_lost = is_lost or (attempt.is_lost and code == ErrorCode.NONE)
        return Attempt(send, is_lost=is_lost)

    def _lost(self, attempt: Attempt, *, adds: bool = False) -> Attempt:
        """Return the attempt without a response. It is lost if it, or an earlier one that was not
        answered, was sent."""
        self._note_lost(attempt.is_in_flight, adds=adds)
        return evolve(attempt, is_in_flight=False, is_lost=attempt.is_uncertain)

    def _note_lost(self, is_lost: bool, *, adds: bool = False) -> None:
        """If a request got no response, or one that does not tell whether it was executed, begin
        the next transaction in another epoch: below version 2 a broker that executes the request
        late would take it for one of the next transaction. `adds`: whether the coordinator begins a
        transaction as it executes the request, unless one is open."""
        if is_lost and not self.state.ends_epoch:
            self._set(needs_epoch=True, may_be_open=self.state.may_be_open or adds)

    def _token(self) -> int:
        self._set(last_token=self.state.last_token + 1)
        return self.state.last_token

    # ------------------------------------------------------------ helpers

    def _error(
        self, what: str, code: int, topic: str | None = None, group: str | None = None
    ) -> KafkaGroupError:
        return request_error(self.state, self.now, what, code, topic, group)

    def _set(self, **changes: Any) -> None:
        self.state = evolve(self.state, **changes)

    def _move(self, phase: Phase, **changes: Any) -> None:
        if phase not in MOVES[self.state.phase]:
            raise LocalProtocolError(f"no move from {self.state.phase} to {phase}")
        self._set(phase=phase, **changes)

    def _complete(self, call: int | None, error: KafkaGroupError | None = None) -> None:
        if call is not None:
            self.effects.append(Complete(call=call, error=error))

    def _complete_call(self, error: KafkaGroupError | None = None) -> None:
        if self.state.call is not None:
            self._complete(self.state.call.number, error)
            self._set(call=None)


RequestEvent = Sent | Replied | SendFailed | Refused

_NOUNS: Mapping[CallKind, str] = {
    CallKind.INITIALIZE: "start",
    CallKind.BEGIN: "beginning",
    CallKind.COMMIT: "commit",
    CallKind.ABORT: "abort",
}

_REASONS: Mapping[Phase, str] = {
    Phase.UNINITIALIZED: "the producer has not started",
    Phase.INITIALIZING: "the producer is asking for an epoch",
    Phase.READY: "none has begun",
    Phase.IN_TRANSACTION: "one is open",
    Phase.ABORTABLE_ERROR: "one is open, and must be aborted",
    Phase.COMMITTING: "it is being committed",
    Phase.ABORTING: "it is being aborted",
    Phase.UNRESOLVED: "its outcome is not known yet",
}
"""Why a call is not allowed in a phase, as the end of an error's text."""

"""The transactions of a producer as a function: `step(state, event) == (state, effects)`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    CommitFailedError,
    ConnectionLostError,
    ErrorCode,
    FencedError,
    IllegalStateError,
    KafkaGroupError,
    LocalProtocolError,
    NotWrittenError,
    ProducerFencedError,
    RequestTimeoutError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    UnsupportedVersionError,
)
from kafkagroup.produce import transaction_step
from kafkagroup.produce.transaction_state import MOVES, Phase, Transactions
from kafkagroup.produce.transaction_step import step
from kafkagroup.produce.transaction_vocabulary import (
    AbortRequested,
    BeginRequested,
    CallAbandoned,
    CommitRequested,
    Complete,
    Destination,
    EpochNeeded,
    Event,
    GroupIdentity,
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
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

E = ErrorCode
NOT_WRITTEN: Any = NotWrittenError
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
GROUP = GroupIdentity("g", 4, "member", "instance")
TEN = {T0: OffsetAndMetadata(10, "note", 2)}
TWENTY = {T0: OffsetAndMetadata(20)}
LOST = ConnectionLostError("reset by peer")
NEW = Transactions(transactional_id="tx", timeout_ms=60_000)
VERSIONS = pytest.mark.parametrize("version", [0, 1, 2])
BELOW_2 = pytest.mark.parametrize("version", [0, 1])


class Like(Exception):
    """Equals any exception of this type whose message contains these words."""

    def __init__(self, kind: type[Exception], words: str = "") -> None:
        super().__init__(kind, words)

    def __eq__(self, other: object) -> bool:
        kind, words = self.args
        return type(other) is kind and words in str(other)

    __hash__ = None  # type: ignore[assignment]


def added(codes: Mapping[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                name=tp.topic,
                results_by_partition=(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=tp.partition, partition_error_code=code
                    ),
                ),
            )
            for tp, code in codes.items()
        ),
    )


def committed(codes: Mapping[TopicPartition, int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=tp.topic,
                partitions=(
                    TxnOffsetCommitResponsePartition(partition_index=tp.partition, error_code=code),
                ),
            )
            for tp, code in codes.items()
        ),
    )


def response_to(request: Any, code: int, **fields: Any) -> Any:
    """Return a response with this error code, for each partition if it has them."""
    match request:
        case InitProducerIdRequest():
            given = {"producer_id": 7, "producer_epoch": 3} | fields
            return InitProducerIdResponse(throttle_time_ms=0, error_code=code, **given)
        case AddPartitionsToTxnRequest():
            topics = request.v3_and_below_topics
            tps = [TopicPartition(t.name, p) for t in topics for p in t.partitions]
            return added(dict.fromkeys(tps, code))
        case AddOffsetsToTxnRequest():
            return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)
        case TxnOffsetCommitRequest():
            named = [(t.name, p.partition_index) for t in request.topics for p in t.partitions]
            return committed({TopicPartition(*one): code for one in named})
        case EndTxnRequest():
            return EndTxnResponse(throttle_time_ms=0, error_code=code, **fields)
    raise AssertionError(request)


@attrs.define
class Run:
    """A producer, and what it is doing."""

    state: Transactions = NEW
    now: float = 100.0
    calls: int = 0
    ended: dict[int, KafkaGroupError | None] = attrs.field(factory=dict)
    """The calls that have ended, and how."""
    sends: list[Send] = attrs.field(factory=list)
    """All requests."""

    def do(self, kind: Callable[..., Event], **fields: Any) -> tuple[Any, ...]:
        self.state, effects = step(self.state, kind(now=self.now, **fields))
        for effect in effects:
            if isinstance(effect, Complete):
                self.ended[effect.call] = effect.error
            else:
                self.sends.append(effect)
        return effects

    def call(self, kind: Callable[..., Event], **fields: Any) -> int:
        self.calls += 1
        self.do(kind, call=self.calls, **fields)
        return self.calls

    def sent(self) -> Send:
        """Send the last request."""
        self.do(Sent, token=self.sends[-1].token)
        return self.sends[-1]

    def respond(self, code: int = E.NONE, **fields: Any) -> tuple[Any, ...]:
        """Send the last request, and answer it."""
        send = self.sent()
        return self.do(
            Replied, token=send.token, response=response_to(send.request, code, **fields)
        )

    def respond_with(self, response: Any) -> tuple[Any, ...]:
        return self.do(Replied, token=self.sent().token, response=response)

    def lose(self) -> tuple[Any, ...]:
        """Send the last request, which gets no response."""
        return self.do(SendFailed, token=self.sent().token, error=LOST)

    def fail_to_send(self) -> tuple[Any, ...]:
        return self.do(SendFailed, token=self.sends[-1].token, error=LOST)

    def refuse(self, error: KafkaGroupError) -> tuple[Any, ...]:
        return self.do(Refused, token=self.sends[-1].token, error=error)

    def add(self, *partitions: TopicPartition) -> tuple[Any, ...]:
        number = self.state.number
        return self.do(PartitionsRequested, number=number, partitions=frozenset(partitions))

    def commit_offsets(self, offsets: Any = None, group: GroupIdentity = GROUP) -> int:
        number, offsets = self.state.number, TEN if offsets is None else offsets
        return self.call(OffsetsRequested, number=number, group=group, offsets=offsets)

    def give_up(self, call: int) -> tuple[Any, ...]:
        return self.do(CallAbandoned, call=call, reason="no response within 5 s")

    def fail_record(self, error: KafkaGroupError | None = None) -> tuple[Any, ...]:
        error = error or BrokerError(E.MESSAGE_TOO_LARGE)
        return self.do(RecordFailed, error=error)

    def at(self, phase: Phase) -> bool:
        return self.state.phase is phase

    @property
    def requests(self) -> list[str]:
        """The kinds of the requests so far."""
        return [type(send.request).__name__.removesuffix("Request") for send in self.sends]


def ready(version: int) -> Run:
    """A producer with id 7 in epoch 3, after a transaction of this version."""
    run = Run()
    run.call(InitializeRequested)
    run.respond()
    run.state = attrs.evolve(run.state, version=version, is_epoch_used=True)
    run.sends.clear()
    assert run.at(Phase.READY)
    return run


def opened(version: int) -> Run:
    run = ready(version)
    call = run.call(BeginRequested, version=version)
    assert run.ended[call] is None
    return run


def with_t0(version: int) -> Run:
    """A transaction to which a partition was added."""
    run = opened(version)
    run.add(T0)
    if version < 2:
        run.respond()
    run.sends.clear()
    assert T0 in run.state.added
    return run


def committing(version: int) -> tuple[Run, int]:
    run = with_t0(version)
    return run, run.call(CommitRequested)


def end(*, commit: bool, token: int, version: int = 1, **fields: Any) -> Send:
    return Send(
        token=token,
        request=EndTxnRequest(
            transactional_id="tx", producer_id=7, producer_epoch=3, committed=commit
        ),
        to=Destination.TRANSACTION,
        key="tx",
        lowest=5 if version == 2 else 0,
        highest=5 if version == 2 else 4,
        **fields,
    )


# ---------------------------------------------------------------- epochs


def test_a_producer_gets_its_id_and_epoch() -> None:
    started, effects = step(NEW, InitializeRequested(now=0.0, call=1))
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    send = Send(token=1, request=request, to=Destination.TRANSACTION, key="tx", highest=5)
    assert effects == (send,)
    assert started.phase is Phase.INITIALIZING
    started, effects = step(started, Sent(now=0.0, token=1))
    assert effects == ()
    response = response_to(request, E.NONE)
    after, effects = step(started, Replied(now=0.0, token=1, response=response))
    assert effects == (Complete(call=1),)
    assert after == attrs.evolve(NEW, phase=Phase.READY, producer_id=7, epoch=3, last_token=1)


@pytest.mark.parametrize(
    ("code", "needs_look_up", "awaits_markers"),
    [
        (E.CONCURRENT_TRANSACTIONS, False, True),
        (E.COORDINATOR_LOAD_IN_PROGRESS, False, True),
        (E.NOT_COORDINATOR, True, False),
        (E.COORDINATOR_NOT_AVAILABLE, True, False),
        (E.REQUEST_TIMED_OUT, True, False),
    ],
)
def test_a_request_is_repeated(code: int, needs_look_up: bool, awaits_markers: bool) -> None:
    """The same request, until it is answered otherwise."""
    for run in (Run(), opened(1), opened(1), committing(1)[0]):
        if run.state.phase is Phase.UNINITIALIZED:
            run.call(InitializeRequested)
        elif run.state.phase is Phase.IN_TRANSACTION and run.calls == 2:
            run.commit_offsets()
            run.respond()
        first = run.sends[-1]
        for attempts in (1, 2):
            (send,) = run.respond(code)
            assert send == attrs.evolve(
                first,
                token=send.token,
                attempts=attempts,
                needs_look_up=needs_look_up,
                awaits_markers=awaits_markers,
            )
        run.respond()
        assert run.sends[-1].attempts in (2, 0)


def test_adding_partitions_is_repeated() -> None:
    run = opened(1)
    run.add(T0)
    (send,) = run.respond(E.UNKNOWN_TOPIC_OR_PARTITION)
    assert (send.attempts, send.needs_look_up, run.state.needs_epoch) == (1, False, False)
    run.respond()
    assert run.state.added == {T0}


def test_a_start_that_is_given_up_can_be_repeated() -> None:
    run = Run()
    first = run.call(InitializeRequested)
    late = run.sent()
    run.give_up(first)
    assert (
        Like(RequestTimeoutError, "the start of transactional id 'tx' was given up: no response")
        == run.ended[first]
    )
    assert run.at(Phase.UNINITIALIZED)
    run.call(InitializeRequested)
    before = run.state
    run.do(Replied, token=late.token, response=response_to(late.request, E.NONE))
    assert run.state == before
    run.respond()
    assert run.at(Phase.READY)


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH])
def test_the_owner_of_an_epoch_is_fenced(code: int) -> None:
    run = ready(1)
    run.do(EpochNeeded)
    call = run.call(BeginRequested, version=1)
    run.respond(code)
    fenced = Like(ProducerFencedError, "another producer has begun with transactional id 'tx'")
    assert run.at(Phase.FENCED)
    assert fenced == run.ended[call]
    again = run.call(BeginRequested, version=1)
    assert fenced == run.ended[again]
    assert run.requests == ["InitProducerId"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "WRITE on transactional id 'tx' is not allowed: asking for an epoch",
        ),
        (E.INVALID_TRANSACTION_TIMEOUT, "transaction_timeout_ms=60000 exceeds the broker's"),
        (E.INVALID_REQUEST, "asking for an epoch"),
        (9999, "asking for an epoch"),
    ],
)
def test_a_start_is_refused(code: int, words: str) -> None:
    run = Run()
    call = run.call(InitializeRequested)
    run.respond(code)
    assert run.at(Phase.FATAL)
    assert words in str(run.ended[call])


def test_a_forgotten_transactional_id_is_not_taken_up_again() -> None:
    """KAFKA-18019: a coordinator that has forgotten the id takes a zombie for a new producer."""
    run = ready(1)
    run.do(EpochNeeded)
    call = run.call(BeginRequested, version=1)
    run.respond(producer_id=8, producer_epoch=0)
    assert run.at(Phase.FATAL)
    error = run.ended[call]
    assert Like(BrokerError, "idle for transactional.id.expiration.ms (7 days by default)") == error
    assert Like(BrokerError, "or another producer has taken it over") == error


def test_after_the_last_epoch_there_is_another_id() -> None:
    run = ready(1)
    run.state = attrs.evolve(run.state, epoch=32766, needs_epoch=True)
    call = run.call(BeginRequested, version=1)
    run.respond(producer_id=8, producer_epoch=0)
    assert (run.ended[call], run.state.producer_id, run.state.epoch) == (None, 8, 0)


# ---------------------------------------------------------------- beginning


@VERSIONS
def test_a_transaction_begins_without_a_request(version: int) -> None:
    run = ready(version)
    call = run.call(BeginRequested, version=version)
    assert (run.sends, run.ended[call]) == ([], None)
    assert (run.state.phase, run.state.number) == (Phase.IN_TRANSACTION, 1)
    assert run.state.begun_at == 100.0


def test_version_2_begins_in_an_epoch_of_its_own() -> None:
    """KAFKA-18227."""
    run = ready(1)
    call = run.call(BeginRequested, version=2)
    (send,) = run.sends
    assert send.request == InitProducerIdRequest(
        transactional_id="tx", transaction_timeout_ms=60_000, producer_id=7, producer_epoch=3
    )
    assert send.lowest == 3
    run.respond(producer_epoch=4)
    assert (run.ended[call], run.state.phase) == (None, Phase.IN_TRANSACTION)
    assert (run.state.epoch, run.state.version) == (4, 2)


@VERSIONS
def test_another_timeout_comes_with_another_epoch(version: int) -> None:
    run = ready(version)
    told = []
    for timeout_ms in (60_000, 10_000, None, 10_000, 60_000):
        begun = run.call(BeginRequested, version=version, timeout_ms=timeout_ms)
        if begun not in run.ended:
            told.append(run.sends[-1].request.transaction_timeout_ms)
            run.respond(producer_epoch=run.state.epoch + 1)
        assert run.ended[begun] is None
        run.call(AbortRequested)
    assert told == [10_000, 60_000]


def test_version_2_begins_in_an_unused_epoch() -> None:
    run = ready(1)
    run.state = attrs.evolve(run.state, is_epoch_used=False)
    call = run.call(BeginRequested, version=2)
    assert (run.ended[call], run.sends) == (None, [])


def test_version_1_goes_on_in_the_epoch_of_version_2() -> None:
    run = ready(2)
    run.call(BeginRequested, version=1)
    assert (run.sends, run.state.phase) == ([], Phase.IN_TRANSACTION)
    assert run.state.produce_highest_version == 11


@VERSIONS
def test_versions_of_produce(version: int) -> None:
    assert opened(version).state.produce_highest_version == (None if version == 2 else 11)


def test_a_new_epoch_that_is_given_up_is_still_needed() -> None:
    run = ready(1)
    call = run.call(BeginRequested, version=2)
    run.lose()
    run.give_up(call)
    assert isinstance(run.ended[call], RequestTimeoutError)
    assert (run.state.phase, run.state.needs_epoch) == (Phase.READY, True)
    run.call(BeginRequested, version=2)
    assert run.requests == ["InitProducerId"] * 3


def test_a_broker_without_epochs_for_owners_ends_the_producer() -> None:
    run = ready(0)
    run.do(EpochNeeded)
    call = run.call(BeginRequested, version=0)
    run.refuse(UnsupportedVersionError("InitProducerId 3"))
    assert run.at(Phase.FATAL)
    words = "brokers before 2.5 do not give: create a new producer: InitProducerId 3"
    assert Like(UnsupportedVersionError, words) == run.ended[call]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_broker_without_epochs_for_owners_keeps_the_timeout(lost: int) -> None:
    run = ready(0)
    call = run.call(BeginRequested, version=0, timeout_ms=10_000)
    if lost:  # by a coordinator of another release
        run.lose()
    run.refuse(UnsupportedVersionError("InitProducerId 3"))
    if lost:
        assert run.at(Phase.FATAL)
    else:
        assert (run.ended[call], run.state.timeout_ms) == (None, 60_000)
        assert (run.state.phase, run.state.needs_epoch) == (Phase.IN_TRANSACTION, False)


def test_an_epoch_is_denied() -> None:
    run = ready(1)
    run.do(EpochNeeded)
    call = run.call(BeginRequested, version=1)
    error = AuthorizationError(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    run.refuse(error)
    assert (run.state.phase, run.ended[call]) == (Phase.FATAL, error)


# ---------------------------------------------------------------- partitions


@BELOW_2
def test_partitions_are_added_before_records(version: int) -> None:
    run = opened(version)
    assert T0 not in run.state.added
    (send,) = run.add(U0, T1, T0)
    assert send == Send(
        token=2,
        request=AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=7,
            v3_and_below_producer_epoch=3,
            v3_and_below_topics=(
                AddPartitionsToTxnTopic(name="t", partitions=(0, 1)),
                AddPartitionsToTxnTopic(name="u", partitions=(0,)),
            ),
        ),
        to=Destination.TRANSACTION,
        key="tx",
        highest=3,
    )
    assert T0 not in run.state.added
    assert run.respond() == ()
    assert run.state.added == {T0, T1, U0}
    assert run.add(T0) == ()


def test_version_2_notes_the_attempt() -> None:
    run = opened(2)
    assert run.add(T0) == ()
    assert run.state.added == {T0}


def test_one_request_adds_what_was_wanted_meanwhile() -> None:
    run = opened(1)
    run.add(T0)
    assert (run.add(T1), run.add(T0), run.add(U0)) == ((), (), ())
    (send,) = run.respond()
    assert [t.name for t in send.request.v3_and_below_topics] == ["t", "u"]
    run.respond()
    assert run.state.added == {T0, T1, U0}


def test_a_refused_partition_leaves_the_others_added() -> None:
    """franz-go 1348: p0 was forgotten, so the transaction was left open."""
    run = with_t0(1)
    run.add(T1)
    run.respond(E.TOPIC_AUTHORIZATION_FAILED)
    assert run.at(Phase.ABORTABLE_ERROR)
    assert Like(AuthorizationError, "WRITE on topic 't' is not allowed") == run.state.error
    assert run.state.added == {T0}
    call = run.call(AbortRequested)
    assert run.sends[-1] == end(commit=False, token=4)
    run.respond()
    assert (run.ended[call], run.state.phase) == (None, Phase.READY)


def test_the_gravest_code_of_a_partition_counts() -> None:
    run = opened(1)
    run.add(T0, T1, U0)
    (send,) = run.respond_with(
        added({T0: E.OPERATION_NOT_ATTEMPTED, T1: E.UNKNOWN_TOPIC_OR_PARTITION, U0: E.NONE})
    )
    assert send.attempts == 1
    run.respond_with(
        added({T0: E.OPERATION_NOT_ATTEMPTED, T1: E.TOPIC_AUTHORIZATION_FAILED, U0: 0})
    )
    assert Like(AuthorizationError, "adding t/1") == run.state.error
    assert run.state.added == frozenset()


def test_a_response_without_a_partition_is_none() -> None:
    """aiokafka 1039: other partitions than were asked for ended its task."""
    run = opened(1)
    run.add(T0, T1)
    (send,) = run.respond_with(added({T0: E.NONE, U0: E.NONE}))
    assert (send.attempts, send.needs_look_up, run.state.needs_epoch) == (1, True, True)
    run.respond_with(added({T0: E.NONE, T1: E.NONE, U0: E.INVALID_REQUEST}))
    assert run.state.added == {T0, T1}


# ---------------------------------------------------------------- offsets


@BELOW_2
def test_offsets_are_committed_after_their_group_was_added(version: int) -> None:
    run = opened(version)
    call = run.commit_offsets()
    assert run.sends == [
        Send(
            token=2,
            request=AddOffsetsToTxnRequest(
                transactional_id="tx", producer_id=7, producer_epoch=3, group_id="g"
            ),
            to=Destination.TRANSACTION,
            key="tx",
            highest=4,
        )
    ]
    (send,) = run.respond()
    assert send == offsets_send(3, lowest=3, highest=4)
    assert run.respond() == (Complete(call=call),)
    run.commit_offsets(TWENTY)
    assert run.requests == ["AddOffsetsToTxn", "TxnOffsetCommit", "TxnOffsetCommit"]


def test_version_2_commits_offsets_at_once() -> None:
    run = opened(2)
    call = run.commit_offsets()
    assert run.sends == [offsets_send(2, lowest=5, highest=5)]
    assert run.respond() == (Complete(call=call),)


def offsets_send(token: int, *, lowest: int, highest: int) -> Send:
    return Send(
        token=token,
        request=TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="g",
            producer_id=7,
            producer_epoch=3,
            generation_id=4,
            member_id="member",
            group_instance_id="instance",
            topics=(
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=(
                        TxnOffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=10,
                            committed_leader_epoch=2,
                            committed_metadata="note",
                        ),
                    ),
                ),
            ),
        ),
        to=Destination.GROUP,
        key="g",
        lowest=lowest,
        highest=highest,
    )


@VERSIONS
def test_no_offsets_need_no_request(version: int) -> None:
    run = opened(version)
    call = run.commit_offsets({})
    assert (run.ended[call], run.sends) == (None, [])


@VERSIONS
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (E.ILLEGAL_GENERATION, CommitFailedError),
        (E.UNKNOWN_MEMBER_ID, CommitFailedError),
        (E.STALE_MEMBER_EPOCH, CommitFailedError),
        (E.FENCED_MEMBER_EPOCH, CommitFailedError),
        (E.GROUP_ID_NOT_FOUND, CommitFailedError),
        (E.REBALANCE_IN_PROGRESS, CommitFailedError),
        (E.FENCED_INSTANCE_ID, FencedError),
        (E.GROUP_AUTHORIZATION_FAILED, AuthorizationError),
        (E.TRANSACTION_ABORTABLE, BrokerError),
        (E.OFFSET_METADATA_TOO_LARGE, BrokerError),
        (E.INVALID_TXN_STATE, BrokerError),
        (9999, BrokerError),
    ],
)
def test_refused_offsets_abort(version: int, code: int, kind: type[Exception]) -> None:
    """A stale member is no reason to end the producer (KAFKA-20444)."""
    run = opened(version)
    call = run.commit_offsets()
    if version < 2:
        run.respond()
    run.respond(code)
    refused = Like(kind)
    assert refused == run.ended[call]
    assert refused == run.state.error
    assert run.at(Phase.ABORTABLE_ERROR)
    assert isinstance(run.ended[run.call(CommitRequested)], TransactionAbortedError)
    run.call(AbortRequested)
    assert run.requests[-1] == "EndTxn"
    run.respond()
    assert run.at(Phase.READY)


@BELOW_2
def test_a_group_that_may_not_be_read_aborts(version: int) -> None:
    run = opened(version)
    call = run.commit_offsets()
    run.respond(E.GROUP_AUTHORIZATION_FAILED)
    assert Like(AuthorizationError, "READ on group 'g' is not allowed") == run.ended[call]
    assert run.at(Phase.ABORTABLE_ERROR)
    run.call(AbortRequested)
    assert run.requests == ["AddOffsetsToTxn"]  # nothing was added


@VERSIONS
def test_offsets_need_a_broker_that_fences_members(version: int) -> None:
    run = opened(version)
    call = run.commit_offsets()
    if version < 2:
        run.respond()
    error = UnsupportedVersionError("TxnOffsetCommit 3")
    run.refuse(error)
    words = "TxnOffsetCommit 3" if version == 2 else "need brokers from 2.5 on"
    assert Like(UnsupportedVersionError, words) == run.ended[call]
    assert run.at(Phase.ABORTABLE_ERROR)


@VERSIONS
def test_a_response_without_an_offset_is_none(version: int) -> None:
    run = opened(version)
    call = run.commit_offsets({T0: OffsetAndMetadata(1), T1: OffsetAndMetadata(2)})
    if version < 2:
        run.respond()
    (send,) = run.respond_with(committed({T0: E.NONE, U0: E.NONE}))
    assert (send.attempts, send.needs_look_up) == (1, True)
    run.respond_with(committed({T0: E.NONE, T1: E.NONE, U0: E.INVALID_REQUEST}))
    assert run.ended[call] is None


@VERSIONS
def test_offsets_that_are_given_up_abort(version: int) -> None:
    """Their commit may still be executed."""
    run = opened(version)
    call = run.commit_offsets()
    if version < 2:
        run.respond()
    run.sent()
    run.give_up(call)
    assert (
        Like(RequestTimeoutError, "committing offsets was given up: no respon") == run.ended[call]
    )
    assert run.at(Phase.ABORTABLE_ERROR)
    assert run.state.needs_epoch == (version < 2)
    run.call(AbortRequested)
    assert run.sends[-1] == end(commit=False, token=3 + (version < 2), version=version)


@VERSIONS
def test_a_late_commit_of_offsets_cannot_follow_a_newer_one(version: int) -> None:
    """Otherwise the transaction would commit the older of the two."""
    run = opened(version)
    run.commit_offsets()
    if version < 2:
        run.respond()
    run.lose()
    run.respond()
    assert run.at(Phase.IN_TRANSACTION)
    again = run.commit_offsets(TEN)
    run.respond()
    assert run.ended[again] is None
    newer = run.commit_offsets(TWENTY)
    assert Like(RequestTimeoutError, "with the offset of t/0 got no response") == run.ended[newer]
    assert run.at(Phase.ABORTABLE_ERROR)


def test_only_one_task_commits_offsets() -> None:
    run = opened(2)
    run.commit_offsets()
    before = run.state
    with pytest.raises(IllegalStateError, match="another task"):
        run.commit_offsets(TWENTY)
    assert run.state == before


# ---------------------------------------------------------------- the end


@BELOW_2
@pytest.mark.parametrize("kind", [CommitRequested, AbortRequested])
def test_a_transaction_ends_with_one_request(version: int, kind: Callable[..., Event]) -> None:
    run = with_t0(version)
    call = run.call(kind)
    assert run.sends == [end(commit=kind is CommitRequested, token=3)]
    assert run.respond() == (Complete(call=call),)
    assert run.state == attrs.evolve(
        ready(version).state,
        number=1,
        begun_at=100.0,
        commits=kind is CommitRequested,
        last_token=3,
    )


@pytest.mark.parametrize("kind", [CommitRequested, AbortRequested])
def test_version_2_ends_the_epoch(kind: Callable[..., Event]) -> None:
    run = with_t0(2)
    call = run.call(kind)
    assert run.sends == [end(commit=kind is CommitRequested, token=2, version=2)]
    assert run.respond(producer_id=8, producer_epoch=0) == (Complete(call=call),)
    assert (run.state.producer_id, run.state.epoch) == (8, 0)
    assert run.at(Phase.READY)


@VERSIONS
@pytest.mark.parametrize("kind", [CommitRequested, AbortRequested])
def test_nothing_is_ended_that_was_not_begun(version: int, kind: Callable[..., Event]) -> None:
    run = opened(version)
    call = run.call(kind)
    assert (run.sends, run.ended[call], run.state.phase) == ([], None, Phase.READY)


@VERSIONS
def test_offsets_alone_are_a_transaction(version: int) -> None:
    run = opened(version)
    run.commit_offsets()
    if version < 2:
        run.respond()
    run.respond()
    run.call(CommitRequested)
    assert run.requests[-1] == "EndTxn"


def test_an_attempt_in_version_2_is_ended() -> None:
    """franz-go 1348: all records had failed, so their partition was left in the transaction."""
    run = opened(2)
    run.add(T0)
    run.fail_record()
    run.call(AbortRequested)
    assert run.sends == [end(commit=False, token=2, version=2)]


@VERSIONS
def test_a_failed_record_aborts_while_offsets_are_committed(version: int) -> None:
    run = opened(version)
    offsets = run.commit_offsets()
    run.fail_record(BrokerError(E.MESSAGE_TOO_LARGE))
    assert Like(TransactionAbortedError, "MESSAGE_TOO_LARGE") == run.ended[offsets]


@VERSIONS
def test_a_failed_record_aborts(version: int) -> None:
    """librdkafka 3325: the commit succeeded without it, as its error was not read."""
    run = with_t0(version)
    error = NOT_WRITTEN(T0, BrokerError(E.MESSAGE_TOO_LARGE))
    run.fail_record(error)
    run.fail_record(BrokerError(E.NOT_ENOUGH_REPLICAS))
    call = run.call(CommitRequested)
    aborted = run.ended[call]
    assert isinstance(aborted, TransactionAbortedError)
    assert (aborted.why, run.state.error, run.sends) == (error, error, [])
    assert run.at(Phase.ABORTABLE_ERROR)
    run.call(AbortRequested)
    run.respond()
    run.call(BeginRequested, version=version)
    assert (run.state.phase, run.state.error) == (Phase.IN_TRANSACTION, None)


@pytest.mark.parametrize(
    ("code", "phase"),
    [
        (E.INVALID_PRODUCER_EPOCH, Phase.ABORTABLE_ERROR),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, Phase.ABORTABLE_ERROR),
        (E.TRANSACTION_ABORTABLE, Phase.ABORTABLE_ERROR),
        (E.PRODUCER_FENCED, Phase.FENCED),
        (E.INVALID_PRODUCER_ID_MAPPING, Phase.FATAL),
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Phase.FATAL),
        (E.CLUSTER_AUTHORIZATION_FAILED, Phase.FATAL),
    ],
)
@VERSIONS
def test_what_a_failed_record_means(version: int, code: int, phase: Phase) -> None:
    for error in (BrokerError(code), NOT_WRITTEN(T0, BrokerError(code))):
        run = with_t0(version)
        run.fail_record(error)
        assert run.at(phase)


@BELOW_2
def test_a_commit_without_a_response_is_repeated_in_another_epoch(version: int) -> None:
    """KAFKA-17754: the first request arrived late, and ended the next transaction."""
    run, call = committing(version)
    (again,) = run.lose()
    assert again == end(commit=True, token=again.token, attempts=1, needs_look_up=True)
    assert run.state.is_end_lost
    run.respond(E.CONCURRENT_TRANSACTIONS)
    assert run.state.is_end_lost  # franz-go 1359: a retriable response cleared it
    run.respond()
    assert (run.ended[call], run.state.phase) == (None, Phase.READY)
    assert run.requests == ["EndTxn"] * 3
    begun = run.call(BeginRequested, version=version)
    assert run.sends[-1].request == InitProducerIdRequest(
        transactional_id="tx", transaction_timeout_ms=60_000, producer_id=7, producer_epoch=3
    )
    assert begun not in run.ended
    run.respond(producer_epoch=4)
    assert (run.ended[begun], run.state.epoch, run.state.needs_epoch) == (None, 4, False)


def test_version_2_needs_no_other_epoch() -> None:
    run, call = committing(2)
    run.lose()
    run.respond(producer_id=7, producer_epoch=4)
    assert (run.ended[call], run.state.needs_epoch) == (None, False)
    run.call(BeginRequested, version=2)
    assert run.requests == ["EndTxn", "EndTxn"]


@BELOW_2
def test_a_request_that_was_not_sent_cannot_come_late(version: int) -> None:
    run, _ = committing(version)
    run.fail_to_send()
    assert not run.state.needs_epoch
    assert not run.state.is_end_lost


@BELOW_2
def test_what_adds_may_come_late(version: int) -> None:
    """It would begin a transaction that nobody ends, or add to the next one."""
    for begin in (Run.add, Run.commit_offsets):
        run = opened(version)
        begin(run, *((T0,) if begin is Run.add else ()))
        run.lose()
        run.respond()
        assert run.state.needs_epoch
        assert run.at(Phase.IN_TRANSACTION)


def aborted_with_a_late_addition(version: int, begin: Any = Run.add) -> Run:
    """A producer whose request to add was answered the second time, in a transaction that is
    aborted."""
    run = opened(version)
    begin(run, *((T0,) if begin is Run.add else ()))
    run.lose()
    run.respond()
    run.call(AbortRequested)
    while not run.at(Phase.READY):
        run.respond()
    return run


@BELOW_2
@pytest.mark.parametrize("code", [E.NONE, E.INVALID_TXN_STATE], ids=["late", "not late"])
@pytest.mark.parametrize("next_version", [1, 2])
def test_what_a_late_addition_has_begun_is_aborted(
    version: int, next_version: int, code: int
) -> None:
    """Otherwise the coordinator aborts it at the InitProducerId in another epoch, and then refuses
    the epoch to this producer."""
    for begin in (Run.add, Run.commit_offsets):
        run = aborted_with_a_late_addition(version, begin)
        call = run.call(BeginRequested, version=next_version)
        assert run.requests[-2:] == ["EndTxn", "EndTxn"]
        assert run.sends[-1].request == EndTxnRequest(
            transactional_id="tx", producer_id=7, producer_epoch=3, committed=False
        )
        assert run.sends[-1].highest == 4
        run.respond(E.CONCURRENT_TRANSACTIONS)
        run.lose()
        run.respond(code)
        assert run.requests[-4:] == ["EndTxn", "EndTxn", "EndTxn", "InitProducerId"]
        run.respond(producer_epoch=4)
        assert (run.ended[call], run.state.epoch) == (None, 4)
        assert not run.state.may_be_open


@BELOW_2
def test_the_abort_of_what_a_late_addition_has_begun_may_be_given_up(version: int) -> None:
    run = aborted_with_a_late_addition(version)
    first = run.call(BeginRequested, version=version)
    run.give_up(first)
    assert isinstance(run.ended[first], RequestTimeoutError)
    assert run.at(Phase.UNRESOLVED)
    second = run.call(BeginRequested, version=version)
    run.respond()
    run.respond(producer_epoch=4)
    assert (run.ended[second], run.state.epoch) == (None, 4)


@BELOW_2
def test_a_fenced_producer_learns_it_from_that_abort(version: int) -> None:
    run = aborted_with_a_late_addition(version)
    call = run.call(BeginRequested, version=version)
    run.respond(E.PRODUCER_FENCED)
    assert isinstance(run.ended[call], ProducerFencedError)
    assert run.at(Phase.FENCED)


@BELOW_2
@pytest.mark.parametrize("code", [E.COORDINATOR_NOT_AVAILABLE, E.UNKNOWN_SERVER_ERROR])
@pytest.mark.parametrize("is_aborted", [False, True], ids=["open", "aborted"])
def test_an_abort_repeats_what_a_coordinator_may_have_added_before_it_failed(
    version: int, is_aborted: bool, code: int
) -> None:
    """The next coordinator would find a transaction in its log that nobody ends."""
    for begin in (Run.add, Run.commit_offsets):
        run = opened(version)
        begin(run, *((T0,) if begin is Run.add else ()))
        run.sent()
        if is_aborted:
            run.call(AbortRequested)
            run.respond(code)
        else:
            run.respond(code)
            run.call(AbortRequested)
        assert run.at(Phase.ABORTING)
        run.respond()
        assert run.requests[-2:] == [run.requests[0], "EndTxn"]
        run.respond()
        assert run.at(Phase.READY)
        assert not run.state.needs_epoch


@BELOW_2
@pytest.mark.parametrize(
    ("code", "may_have_added"),
    [(9_999, True), (E.GROUP_AUTHORIZATION_FAILED, False)],
)
def test_an_error_that_does_not_tell_what_was_added_needs_another_epoch(
    version: int, code: int, may_have_added: bool
) -> None:
    """The next transaction would join the one that the coordinator has begun, and time out with
    it."""
    for begin in (Run.add, Run.commit_offsets):
        run = opened(version)
        begin(run, *((T0,) if begin is Run.add else ()))
        run.respond(code)
        assert run.at(Phase.ABORTABLE_ERROR)
        assert run.state.needs_epoch == run.state.may_be_open == may_have_added


@BELOW_2
def test_a_batch_without_a_response_may_come_late(version: int) -> None:
    run = with_t0(version)
    run.do(EpochNeeded)
    run.fail_record(RequestTimeoutError("expired"))
    run.call(AbortRequested)
    run.respond()
    run.call(BeginRequested, version=version)
    assert run.requests == ["EndTxn", "InitProducerId"]


def test_version_2_ends_the_epoch_of_such_a_batch() -> None:
    run = with_t0(2)
    run.do(EpochNeeded)
    assert not run.state.needs_epoch


@VERSIONS
def test_the_outcome_of_a_commit_is_unknown(version: int) -> None:
    run, call = committing(version)
    run.lose()
    run.sent()
    run.give_up(call)
    assert (
        Like(
            TransactionOutcomeUnknownError,
            "the transaction of transactional id 'tx' may or may not be committed",
        )
        == run.ended[call]
    )
    assert run.at(Phase.UNRESOLVED)
    with pytest.raises(IllegalStateError, match="may have been executed"):
        run.call(AbortRequested)
    begun = run.call(BeginRequested, version=version)
    assert run.at(Phase.COMMITTING)
    assert begun not in run.ended
    assert run.requests == ["EndTxn", "EndTxn"]
    run.respond(producer_id=7, producer_epoch=4)
    if version < 2:
        run.respond(producer_epoch=4)
        assert run.requests == ["EndTxn", "EndTxn", "InitProducerId"]
    assert (run.ended[begun], run.state.phase) == (None, Phase.IN_TRANSACTION)
    assert (run.state.number, run.state.epoch) == (2, 4)


@VERSIONS
def test_an_unknown_outcome_is_awaited(version: int) -> None:
    run, call = committing(version)
    run.sent()
    run.give_up(call)
    run.lose()
    assert run.at(Phase.UNRESOLVED)
    again = run.call(CommitRequested)
    run.respond()
    assert (run.ended[again], run.state.phase, run.state.commits) == (None, Phase.READY, True)


@VERSIONS
def test_the_response_comes_after_the_call_was_given_up(version: int) -> None:
    run, call = committing(version)
    run.sent()
    run.give_up(call)
    assert run.respond() == ()
    assert (run.state.phase, run.state.commits) == (Phase.READY, True)
    assert len(run.sends) == 1


@VERSIONS
def test_a_commit_that_was_never_sent_has_not_happened(version: int) -> None:
    run, call = committing(version)
    run.fail_to_send()
    run.give_up(call)
    assert isinstance(run.ended[call], TransactionAbortedError)
    assert run.at(Phase.ABORTABLE_ERROR)
    late = run.sends[-1]
    run.call(AbortRequested)
    assert not run.state.awaits(late.token)
    assert end(commit=False, token=0).request == run.sends[-1].request


@VERSIONS
def test_a_begin_that_waits_for_a_commit_is_given_up(version: int) -> None:
    """The commit goes on, though its last request was refused for now."""
    run, call = committing(version)
    run.sent()
    run.give_up(call)
    run.respond(E.CONCURRENT_TRANSACTIONS)
    begun = run.call(BeginRequested, version=version)
    run.give_up(begun)
    assert isinstance(run.ended[begun], TransactionOutcomeUnknownError)
    assert run.at(Phase.UNRESOLVED)
    run.respond()
    assert run.at(Phase.READY)


@VERSIONS
def test_an_abort_goes_on_after_it_was_given_up(version: int) -> None:
    run = with_t0(version)
    call = run.call(AbortRequested)
    run.lose()
    run.give_up(call)
    assert Like(RequestTimeoutError, "the abort of transactional id 'tx'") == run.ended[call]
    assert run.at(Phase.UNRESOLVED)
    with pytest.raises(IllegalStateError, match="it is being aborted"):
        run.call(CommitRequested)
    again = run.call(AbortRequested)
    assert run.at(Phase.ABORTING)
    run.respond()
    assert (run.ended[again], run.state.phase) == (None, Phase.READY)


@VERSIONS
@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH])
def test_a_commit_is_fenced(version: int, code: int) -> None:
    run, call = committing(version)
    run.respond(code)
    assert run.at(Phase.FENCED)
    assert (
        Like(
            ProducerFencedError,
            "another producer has begun with transactional id 'tx': give each producer an id",
        )
        == run.ended[call]
    )
    assert "timeout" not in str(run.ended[call])


def test_a_timeout_may_be_the_reason() -> None:
    run, call = committing(1)
    run.now += 60.0
    run.respond(E.PRODUCER_FENCED)
    assert (
        Like(
            ProducerFencedError,
            "the coordinator has aborted the transaction, which was open for 60 s;"
            " transaction_timeout_ms is 60000; or another producer",
        )
        == run.ended[call]
    )


@VERSIONS
@pytest.mark.parametrize("kind", [CommitRequested, BeginRequested])
def test_a_fenced_commit_may_have_been_executed_before(
    version: int, kind: Callable[..., Event]
) -> None:
    run, call = committing(version)
    run.lose()
    if kind is BeginRequested:
        run.give_up(call)
        call = run.call(kind, version=version)
    run.respond(E.PRODUCER_FENCED)
    assert run.at(Phase.FENCED)
    if kind is BeginRequested:  # the outcome was reported as unknown before
        assert isinstance(run.ended[call], ProducerFencedError)
    else:
        assert isinstance(run.ended[call], TransactionOutcomeUnknownError)
        assert "another producer has begun" in str(run.ended[call])


@VERSIONS
@pytest.mark.parametrize("code", [E.INVALID_PRODUCER_ID_MAPPING, E.UNKNOWN_PRODUCER_ID])
def test_an_unknown_producer_id_ends_the_producer(version: int, code: int) -> None:
    run, call = committing(version)
    run.respond(code)
    assert run.at(Phase.FATAL)
    assert Like(BrokerError, "was idle for") == run.ended[call]


@pytest.mark.parametrize("code", [E.INVALID_TXN_STATE, E.PRODUCER_FENCED])
def test_version_2_tells_that_the_coordinator_aborted(code: int) -> None:
    """After Kafka 4.3 with the code of a fenced producer (KAFKA-20785)."""
    run, call = committing(2)
    run.now += 61.0
    run.respond(code)
    assert (
        Like(
            TransactionAbortedError,
            "the coordinator has aborted the transaction, which was open for 61 s",
        )
        == run.ended[call]
    )
    assert run.at(Phase.ABORTABLE_ERROR)
    run.call(AbortRequested)
    run.respond(producer_id=7, producer_epoch=4)
    assert (run.state.phase, run.state.epoch) == (Phase.READY, 4)


def test_version_2_learns_from_the_abort_whether_it_is_fenced() -> None:
    run, call = committing(2)
    run.now += 61.0
    run.respond(E.PRODUCER_FENCED)
    assert isinstance(run.ended[call], TransactionAbortedError)
    call = run.call(AbortRequested)
    run.respond(E.PRODUCER_FENCED)
    assert isinstance(run.ended[call], ProducerFencedError)
    assert run.at(Phase.FENCED)


def test_version_2_has_nothing_to_commit_for_another_reason() -> None:
    run, call = committing(2)
    run.respond(E.INVALID_TXN_STATE)
    words = "the coordinator has aborted it, or none of its records was written"
    assert Like(TransactionAbortedError, words) == run.ended[call]


@pytest.mark.parametrize("resume", [True, False])
def test_a_commit_of_unknown_outcome_was_aborted(resume: bool) -> None:
    run, call = committing(2)
    run.lose()
    run.give_up(call)
    if resume:
        call = run.call(BeginRequested, version=2)
    (send,) = run.respond(E.INVALID_TXN_STATE)
    assert send == end(commit=False, token=send.token, version=2)
    assert run.at(Phase.ABORTING if resume else Phase.UNRESOLVED)
    run.respond(producer_id=7, producer_epoch=4)
    assert run.at(Phase.IN_TRANSACTION if resume else Phase.READY)
    assert not run.state.commits
    assert not resume or run.ended[call] is None


@BELOW_2
def test_below_version_2_the_state_of_a_transaction_is_no_reason(version: int) -> None:
    run, call = committing(version)
    run.respond(E.INVALID_TXN_STATE)
    assert run.at(Phase.FATAL)
    assert Like(BrokerError, "committing the") == run.ended[call]


@VERSIONS
def test_a_commit_is_refused(version: int) -> None:
    run, call = committing(version)
    run.respond(E.TRANSACTION_ABORTABLE)
    assert isinstance(run.ended[call], TransactionAbortedError)
    assert run.at(Phase.ABORTABLE_ERROR)


@VERSIONS
def test_a_refusal_does_not_tell_what_an_earlier_request_did(version: int) -> None:
    run, call = committing(version)
    run.lose()
    run.respond(E.TRANSACTION_ABORTABLE)
    assert isinstance(run.ended[call], TransactionOutcomeUnknownError)
    assert run.at(Phase.FATAL)


def test_a_commit_waits_for_nothing() -> None:
    for begin, what in ((Run.add, "partitions"), (Run.commit_offsets, "offsets")):
        run = opened(1)
        begin(run, *((T0,) if begin is Run.add else ()))
        call = run.call(CommitRequested)
        assert Like(TransactionAbortedError, f"{what} were not added to the tra") == run.ended[call]
        assert run.at(Phase.ABORTABLE_ERROR)


# ---------------------------------------------------------------- an abort waits for what adds


@BELOW_2
def test_an_abort_waits_for_partitions_in_flight(version: int) -> None:
    run = opened(version)
    run.add(T0)
    run.sent()
    call = run.call(AbortRequested)
    assert run.requests == ["AddPartitionsToTxn"]
    (send,) = run.respond()
    assert send == end(commit=False, token=3)
    run.respond()
    assert run.ended[call] is None


@BELOW_2
def test_an_abort_repeats_what_may_have_been_added(version: int) -> None:
    run = opened(version)
    run.add(T0)
    run.sent()
    run.call(AbortRequested)
    (send,) = run.lose()
    assert (run.requests[-1], send.attempts) == ("AddPartitionsToTxn", 1)
    run.respond()
    assert run.requests[-1] == "EndTxn"


@BELOW_2
def test_an_abort_ends_nothing_if_the_partitions_were_refused(version: int) -> None:
    for code in (E.UNKNOWN_TOPIC_OR_PARTITION, E.TOPIC_AUTHORIZATION_FAILED):
        run = opened(version)
        run.add(T0)
        run.sent()
        call = run.call(AbortRequested)
        run.respond(code)
        assert (run.ended[call], run.state.phase) == (None, Phase.READY)
        assert run.requests == ["AddPartitionsToTxn"]


@BELOW_2
def test_an_abort_does_not_wait_for_a_retry(version: int) -> None:
    run = opened(version)
    run.add(T0)
    (send,) = run.respond(E.CONCURRENT_TRANSACTIONS)
    call = run.call(AbortRequested)
    assert (run.ended[call], run.state.awaits(send.token)) == (None, False)


@BELOW_2
def test_a_refusal_tells_that_an_earlier_request_was_not_executed(version: int) -> None:
    """Or will be late, and then the next epoch ends what it begins."""
    run = opened(version)
    run.add(T0)
    run.lose()
    run.respond(E.CONCURRENT_TRANSACTIONS)
    call = run.call(AbortRequested)
    assert run.ended[call] is None
    assert run.requests == ["AddPartitionsToTxn"] * 3  # the last one is not sent
    assert run.state.needs_epoch


@BELOW_2
def test_an_abort_waits_for_a_group_in_flight(version: int) -> None:
    run = opened(version)
    offsets = run.commit_offsets()
    run.sent()
    call = run.call(AbortRequested)
    assert Like(IllegalStateError, "the transaction is aborted") == run.ended[offsets]
    run.lose()
    (send,) = run.respond()
    assert send.request == end(commit=False, token=0).request
    run.respond()
    assert run.ended[call] is None


@BELOW_2
def test_an_abort_that_waits_is_given_up(version: int) -> None:
    run = opened(version)
    run.add(T0)
    run.sent()
    run.give_up(run.call(AbortRequested))
    assert run.at(Phase.UNRESOLVED)
    run.respond()
    assert run.requests[-1] == "EndTxn"
    run.respond()
    assert run.at(Phase.READY)


def test_a_failure_keeps_what_may_have_been_added() -> None:
    run = opened(1)
    run.add(T0)
    run.sent()
    run.add(T1)
    run.fail_record()
    assert run.lose() != ()
    assert run.respond() == ()
    assert run.state.added == {T0}
    assert run.state.wanted == frozenset()


# ---------------------------------------------------------------- late responses, wrong calls


@VERSIONS
def test_late_responses_change_nothing(version: int) -> None:
    run = opened(version)
    if version < 2:
        run.add(T0)
        run.respond()
    run.commit_offsets()
    while run.sends[-1].to is Destination.TRANSACTION:
        run.respond()
    run.respond()
    run.call(CommitRequested)
    run.respond()
    first = list(run.sends)
    run.call(BeginRequested, version=version)
    before = run.state
    for send in first:
        assert run.do(Sent, token=send.token) == ()
        for code in (E.NONE, E.PRODUCER_FENCED, E.CONCURRENT_TRANSACTIONS):
            response = response_to(send.request, code)
            assert run.do(Replied, token=send.token, response=response) == ()
        assert run.do(SendFailed, token=send.token, error=LOST) == ()
        assert run.do(Refused, token=send.token, error=LOST) == ()
    assert run.do(PartitionsRequested, number=1, partitions=frozenset({U0})) == ()
    assert run.do(CallAbandoned, call=1, reason="late") == ()
    assert run.state == before


CALLS: Mapping[str, Callable[[Run], int]] = {
    "initialize": lambda run: run.call(InitializeRequested),
    "begin": lambda run: run.call(BeginRequested, version=1),
    "commit": lambda run: run.call(CommitRequested),
    "abort": lambda run: run.call(AbortRequested),
}
STATES: Mapping[str, tuple[Callable[[], Run], set[str]]] = {
    "new": (Run, {"initialize"}),
    "ready": (lambda: ready(1), {"begin"}),
    "open": (lambda: with_t0(1), {"commit", "abort"}),
    "ending": (lambda: committing(1)[0], set()),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_not_allowed_changes_nothing(name: str, call: str) -> None:
    make, allowed = STATES[name]
    run = make()
    before = run.state
    if call in allowed:
        CALLS[call](run)
        assert run.state != before or run.ended[run.calls] is None
    else:
        with pytest.raises(IllegalStateError, match=f"cannot {call}"):
            CALLS[call](run)
        assert run.state == before


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("phase", [Phase.FENCED, Phase.FATAL])
def test_a_producer_that_has_ended_fails_each_call(call: str, phase: Phase) -> None:
    error = ProducerFencedError("fenced")
    run = Run(attrs.evolve(NEW, phase=phase, error=error))
    before = run.state
    assert run.ended[CALLS[call](run)] is error
    assert run.ended[run.commit_offsets()] is error
    assert run.state == before


def test_offsets_of_another_transaction_are_refused() -> None:
    run = opened(2)
    before = run.state
    with pytest.raises(IllegalStateError, match="the transaction has ended"):
        run.call(OffsetsRequested, number=0, group=GROUP, offsets=TEN)
    assert run.state == before
    run.fail_record()
    assert isinstance(run.ended[run.commit_offsets()], TransactionAbortedError)


def test_a_move_that_is_not_in_the_table_raises() -> None:
    run = opened(1)
    moving = transaction_step._Step(run.state, 0.0)
    with pytest.raises(LocalProtocolError, match="no move from"):
        moving._move(Phase.UNRESOLVED)
    assert moving.state == run.state


# ---------------------------------------------------------------- random runs


@attrs.define
class RandomRun(Run):
    """A producer, with an application and brokers that do anything at any time."""

    random: random.Random = attrs.field(factory=random.Random)
    unanswered: list[Send] = attrs.field(factory=list)
    ends: dict[int, list[bool]] = attrs.field(factory=dict)
    """For each transaction, whether each of its EndTxn requests commits."""
    had: dict[int, bool] = attrs.field(factory=dict)
    """For each transaction, whether anything was added to it."""

    def live(self, steps: int) -> None:
        for _ in range(steps):
            before = len(self.sends)
            number = self.state.number
            self.now += self.random.random()
            self.choose()
            for send in self.sends[before:]:
                self.unanswered.append(send)
                if isinstance(send.request, EndTxnRequest) and not self.has_own:
                    assert not send.request.committed  # what late requests have begun
                elif isinstance(send.request, EndTxnRequest):
                    self.ends.setdefault(number, []).append(send.request.committed)
            if self.has_own:
                self.had[self.state.number] = True
            if self.state.number != number:
                assert not self.state.may_be_open
            self.check()

    @property
    def has_own(self) -> bool:
        """Whether the transaction has something to end."""
        return bool(self.state.added or self.state.groups)

    @property
    def waits(self) -> int | None:
        """The call that waits."""
        if self.state.call is not None:
            return self.state.call.number
        return None if self.state.offset_commit is None else self.state.offset_commit.call

    def choose(self) -> None:
        if self.unanswered and self.random.random() < 0.5:
            self.answer_some()
        elif self.waits is None:
            self.decide()
        elif self.random.random() < 0.4:
            self.give_up(self.waits)

    def decide(self) -> None:
        """What the application does next."""
        version = self.random.choice((1, 2))
        match self.state.phase:
            case Phase.UNINITIALIZED:
                self.call(InitializeRequested)
            case Phase.READY:
                self.call(BeginRequested, version=version)
            case Phase.IN_TRANSACTION:
                actions: tuple[Callable[[], object], ...] = (
                    lambda: self.add(self.random.choice((T0, T1, U0))),
                    lambda: self.commit_offsets(self.random.choice((TEN, TWENTY))),
                    self.fail_record,
                    lambda: self.do(EpochNeeded),
                    *3 * (lambda: self.call(CommitRequested),),  # most commits are refused here
                    lambda: self.call(AbortRequested),
                )
                self.random.choice(actions)()
            case Phase.ABORTABLE_ERROR:
                if self.random.random() < 0.1:
                    self.fail_record(BrokerError(E.PRODUCER_FENCED))
                else:
                    self.call(self.random.choice((AbortRequested, CommitRequested)))
            case Phase.UNRESOLVED:
                same = CommitRequested if self.state.commits else AbortRequested
                if self.random.choice((True, False)):
                    self.call(BeginRequested, version=version)
                else:
                    self.call(same)

    def answer_some(self) -> None:
        send = self.unanswered.pop(self.random.randrange(len(self.unanswered)))
        chance = self.random.random()
        if self.random.random() < 0.9:
            self.do(Sent, token=send.token)
        if chance < 0.8:
            codes = [E.NONE] * 12
            codes += [E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR, E.TRANSACTION_ABORTABLE]
            codes += [E.INVALID_TXN_STATE]
            if isinstance(send.request, EndTxnRequest):
                codes += 6 * [E.TRANSACTION_ABORTABLE]  # a late one is rare
            if self.random.random() < 0.15:
                codes += [E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING]
            fields: dict[str, Any] = {}
            if isinstance(send.request, InitProducerIdRequest | EndTxnRequest):
                fields = {"producer_id": 7, "producer_epoch": self.state.epoch + 1}
            response = response_to(send.request, self.random.choice(codes), **fields)
            self.do(Replied, token=send.token, response=response)
        elif chance < 0.98:
            self.do(SendFailed, token=send.token, error=LOST)
        else:
            self.do(Refused, token=send.token, error=UnsupportedVersionError("old"))

    def check(self) -> None:
        state = self.state
        is_working = any(state.awaits(send.token) for send in self.unanswered)
        if self.waits is not None or state.phase is Phase.UNRESOLVED:
            assert is_working
        if state.phase in (Phase.INITIALIZING, Phase.COMMITTING, Phase.ABORTING):
            assert state.call is not None
        if state.phase in (Phase.READY, Phase.UNINITIALIZED, Phase.FENCED, Phase.FATAL):
            assert self.waits is None
            assert not is_working
        for number, ends in self.ends.items():
            assert self.had[number]
            # Only a coordinator that refuses to commit makes a producer abort after all.
            assert ends == sorted(ends, reverse=True)
        if state.phase is Phase.READY:
            assert self.had.keys() == self.ends.keys()


@pytest.mark.parametrize("part", range(8))
def test_random_runs_end_each_transaction_and_every_call(part: int) -> None:
    for seed in range(250):
        RandomRun(random=random.Random(seed * 8 + part)).live(80)


def test_random_runs_make_every_move_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above covers the whole table, and the table has no superfluous row."""
    seen: set[tuple[Phase, Phase]] = set()
    move = transaction_step._Step._move

    def noted(self: Any, phase: Phase, **changes: Any) -> None:
        seen.add((self.state.phase, phase))
        move(self, phase, **changes)

    monkeypatch.setattr(transaction_step._Step, "_move", noted)
    for seed in range(2_500):
        RandomRun(random=random.Random(seed)).live(80)
    assert {(a, b) for a, moves in MOVES.items() for b in moves} - seen == set()

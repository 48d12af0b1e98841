"""The errors of transactions: what a refusal means, and what to do."""

from __future__ import annotations

from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    FencedError,
    KafkaGroupError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    UnsupportedVersionError,
    broker_error,
    error_name,
)
from kafkagroup.produce.transaction_state import Phase, Transactions
from kafkagroup.wire.error_codes import FENCED_COMMITS

__all__ = [
    "aborted_error",
    "fenced_error",
    "no_group_fencing",
    "no_next_epoch",
    "request_error",
    "timeout_text",
    "unknown_outcome_error",
]

_STALE_MEMBER = FENCED_COMMITS | {ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.REBALANCE_IN_PROGRESS}
"""The codes that refuse the offsets of a member whose generation or epoch is not the current
one."""


def request_error(
    state: Transactions,
    now: float,
    what: str,
    code: int,
    topic: str | None = None,
    group: str | None = None,
) -> KafkaGroupError:
    """Return the error of a code in a response. `what`: what the request was to do; `topic` and
    `group`: what the code is about. Times are on the loop's clock."""
    name = f"transactional id {state.transactional_id!r}"
    match code:
        case ErrorCode.PRODUCER_FENCED | ErrorCode.INVALID_PRODUCER_EPOCH:
            return fenced_error(state, now, what, code)
        case ErrorCode.INVALID_PRODUCER_ID_MAPPING | ErrorCode.UNKNOWN_PRODUCER_ID:
            return BrokerError(
                code,
                f"{what}: the coordinator does not know the producer id of {name}: it was idle"
                " for transactional.id.expiration.ms (7 days by default), or another producer"
                " has taken it over; create a new producer",
            )
        case ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return AuthorizationError(code, what, name, "WRITE")
        case ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return BrokerError(
                code,
                f"{what} of {name}: transaction_timeout_ms={state.timeout_ms} exceeds the"
                " broker's transaction.max.timeout.ms",
            )
        case ErrorCode.INVALID_TXN_STATE if state.ends_epoch:
            reason = "the coordinator has aborted it, or none of its records was written"
            return BrokerError(code, f"{what}: {timeout_text(state, now) or reason}")
        case ErrorCode.FENCED_INSTANCE_ID:
            return FencedError(f"{what}: another member took this group_instance_id")
        case _ if group is not None and code in _STALE_MEMBER:
            return CommitFailedError(
                f"{what}: {error_name(code)} ({code}): the group has rebalanced, or this member"
                " has another epoch by now; abort, and begin another transaction"
            )
    operation = "READ" if group is not None else "WRITE"
    return broker_error(code, what, operation=operation, topic=topic, group=group)


def fenced_error(state: Transactions, now: float, what: str, code: int) -> ProducerFencedError:
    """Return the error of a producer that was fenced; or whose transaction the coordinator has
    aborted at its timeout, where the code may be the same."""
    what = f"{what}: {error_name(code)} ({code})"
    other = f"another producer has begun with transactional id {state.transactional_id!r}"
    advice = "give each producer an id of its own"
    is_open = state.phase not in (Phase.INITIALIZING, Phase.UNINITIALIZED)
    timeout = timeout_text(state, now) if is_open else ""
    reason = f"{timeout}; or {other}" if timeout else other
    return ProducerFencedError(f"{what}: {reason}: {advice}")


def timeout_text(state: Transactions, now: float) -> str:
    """Say that the coordinator has aborted the transaction at its timeout; "" if it has not
    been open for so long."""
    elapsed, timeout_ms = now - state.begun_at, state.timeout_ms
    if elapsed < timeout_ms / 1000:
        return ""
    return (
        f"the coordinator has aborted the transaction, which was open for {elapsed:.4g} s;"
        f" transaction_timeout_ms is {timeout_ms}"
    )


def aborted_error(state: Transactions) -> TransactionAbortedError:
    """Return the error of a transaction that can only be aborted."""
    assert state.error is not None
    return TransactionAbortedError(state.error)


def unknown_outcome_error(
    state: Transactions, error: KafkaGroupError
) -> TransactionOutcomeUnknownError:
    """Return the error of a commit that the coordinator may have executed."""
    unknown = TransactionOutcomeUnknownError(
        f"the transaction of transactional id {state.transactional_id!r} may or may not be"
        f" committed: {error}"
    )
    unknown.__cause__ = error
    return unknown


def no_next_epoch(error: KafkaGroupError) -> KafkaGroupError:
    """Return the error of brokers that are too old to give the owner of an epoch the next one."""
    if not isinstance(error, UnsupportedVersionError):
        return error
    return UnsupportedVersionError(
        "the outcome of a request of an earlier transaction is not known, so the next one needs"
        f" another epoch, which brokers before 2.5 do not give: create a new producer: {error}"
    )


def no_group_fencing(error: KafkaGroupError) -> KafkaGroupError:
    """Return the error of brokers that are too old to fence members of a group."""
    if not isinstance(error, UnsupportedVersionError):
        return error
    return UnsupportedVersionError(
        "offsets in a transaction need brokers from 2.5 on, which compare the generation of the"
        f" member: {error}"
    )

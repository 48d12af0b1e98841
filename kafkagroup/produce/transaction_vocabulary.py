"""Events and effects of a producer's transactions.

Events are past tense, effects imperative. A `Send` has a token, which its answer echoes. The token
is current as long as the state awaits the answer (`Transactions.awaits`). A `Send` whose token
stays current is answered once, with `Replied`, `SendFailed` or `Refused`; `Sent` comes before the
answer if the request may have reached the broker. Any other `Send` may get no answer, and its
answer changes nothing. Each call of the application has a number, which its `Complete` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from kafkagroup._values import frozen
from kafkagroup.errors import KafkaGroupError
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.schema import Request

__all__ = [
    "AbortRequested",
    "BeginRequested",
    "CallAbandoned",
    "CommitRequested",
    "Complete",
    "Destination",
    "Effect",
    "EpochNeeded",
    "Event",
    "GroupIdentity",
    "InitializeRequested",
    "OffsetsRequested",
    "PartitionsRequested",
    "RecordFailed",
    "Refused",
    "Replied",
    "Send",
    "SendFailed",
    "Sent",
]


@frozen
class GroupIdentity:
    """The member of a group that commits offsets, as its coordinator checks it (KIP-447)."""

    group_id: str
    generation_id: int = -1
    """The generation, or the member's epoch (KIP-848); -1 for no member."""
    member_id: str = ""
    group_instance_id: str | None = None


# ---------------------------------------------------------------- events


@frozen(kw_only=True)
class BaseEvent:
    """What every event carries."""

    now: float
    """Seconds on the loop's clock."""


@frozen(kw_only=True)
class InitializeRequested(BaseEvent):
    """The producer starts."""

    call: int


@frozen(kw_only=True)
class BeginRequested(BaseEvent):
    """The application begins a transaction."""

    call: int
    version: int
    """The finalized `transaction.version`: 0, 1, or 2 (KIP-890)."""
    timeout_ms: int | None = None
    """The time after which the coordinator aborts the transaction if it is still open; None: as in
    the last one."""


@frozen(kw_only=True)
class PartitionsRequested(BaseEvent):
    """Records are about to be written to partitions."""

    number: int
    """The number of the transaction."""
    partitions: frozenset[TopicPartition]


@frozen(kw_only=True)
class OffsetsRequested(BaseEvent):
    """The application commits offsets of a group with the transaction."""

    call: int
    number: int
    """The number of the transaction."""
    group: GroupIdentity
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


@frozen(kw_only=True)
class RecordFailed(BaseEvent):
    """A record of the last transaction was not acknowledged."""

    error: KafkaGroupError


@frozen(kw_only=True)
class EpochNeeded(BaseEvent):
    """A batch that was sent has ended without a definite response. If the broker receives it late,
    it must not append it to a later transaction."""


@frozen(kw_only=True)
class CommitRequested(BaseEvent):
    """The application commits, after all records have ended."""

    call: int


@frozen(kw_only=True)
class AbortRequested(BaseEvent):
    """The application aborts."""

    call: int


@frozen(kw_only=True)
class CallAbandoned(BaseEvent):
    """A call of the application has timed out, or was cancelled."""

    call: int
    reason: str


@frozen(kw_only=True)
class Sent(BaseEvent):
    """A request is given to the connection: the broker may execute it from now on."""

    token: int


@frozen(kw_only=True)
class Replied(BaseEvent):
    """A request was answered, perhaps with an error code."""

    token: int
    response: Any


@frozen(kw_only=True)
class SendFailed(BaseEvent):
    """A request got no response. The broker may have executed it if it was `Sent`, or may yet."""

    token: int
    error: KafkaGroupError


@frozen(kw_only=True)
class Refused(BaseEvent):
    """A request was not sent, and no retry would help."""

    token: int
    error: KafkaGroupError


Event = (
    InitializeRequested
    | BeginRequested
    | PartitionsRequested
    | OffsetsRequested
    | RecordFailed
    | EpochNeeded
    | CommitRequested
    | AbortRequested
    | CallAbandoned
    | Sent
    | Replied
    | SendFailed
    | Refused
)


# ---------------------------------------------------------------- effects


class Destination(Enum):
    """Which coordinator a request is for."""

    TRANSACTION = "transaction"
    GROUP = "group"


@frozen(kw_only=True)
class Send:
    """Send a request, after a backoff if it is a retry, unless its token is no longer current."""

    token: int
    request: Request[Any]
    to: Destination
    key: str
    """The transactional id, or the group id."""
    highest: int
    """The highest version that has the wanted effect."""
    lowest: int = 0
    """The lowest version that has it. If the broker has none of these versions, the request is
    `Refused`."""
    attempts: int = 0
    """The attempts before this one, for the backoff."""
    awaits_markers: bool = False
    """Whether the last attempt was refused because the markers of the transaction before are still
    being written. That takes milliseconds, so the backoff is short."""
    needs_look_up: bool = False
    """Whether the coordinator must first be looked up again: the last attempt failed at the one
    that was known."""


@frozen(kw_only=True)
class Complete:
    """End a call of the application."""

    call: int
    error: KafkaGroupError | None = None


Effect = Send | Complete

"""The codes in responses to the requests of a transaction, and the gravest reaction to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkagroup.errors import ErrorCode
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import TransactionAction

__all__ = ["codes_of", "reaction", "worst"]


_MISSING = -(2**16)
"""Stands for a code that is missing. Error codes have 16 bits, so none is so low."""

_SEVERITY = (
    None,
    TransactionAction.RETRY,
    TransactionAction.LOOK_UP,
    TransactionAction.ABORT,
    TransactionAction.FATAL,
    TransactionAction.FENCED,
)
"""The reactions, from the mildest; None is success."""


def reaction(
    actions: Mapping[int, TransactionAction], code: int, other: TransactionAction
) -> TransactionAction | None:
    """Return the reaction to an error code: that in `actions`, else `other`; None for success."""
    return None if code == ErrorCode.NONE else actions.get(code, other)


def codes_of(
    wanted: Iterable[TopicPartition], answered: Iterable[tuple[TopicPartition, int]]
) -> dict[TopicPartition, int] | None:
    """Return the code of each partition, the first if it has several; None if one is missing."""
    codes = dict.fromkeys(wanted, _MISSING)
    for tp, code in answered:
        if codes.get(tp) == _MISSING:
            codes[tp] = code
    return None if _MISSING in codes.values() else codes


def worst(
    codes: Mapping[TopicPartition, int], actions: Mapping[int, TransactionAction]
) -> tuple[TopicPartition, int, TransactionAction | None]:
    """Return the partition whose code has the gravest reaction, the code, and the reaction. Of
    several such partitions, the first in their order."""
    found = [
        (tp, code, reaction(actions, code, TransactionAction.ABORT)) for tp, code in codes.items()
    ]
    return max(sorted(found), key=lambda one: _SEVERITY.index(one[2]))

"""Checks whether open transactions keep consumers with `read_committed` from a topic's records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import attrs

from kafkagroup.admin import transactions
from kafkagroup.admin.doctor.addresses import name_of
from kafkagroup.admin.doctor.findings import Finding, Status, failed, not_checked, ok
from kafkagroup.admin.doctor.requesting import request_from
from kafkagroup.admin.transaction_values import OpenTransaction
from kafkagroup.errors import (
    AuthorizationError,
    KafkaGroupError,
    UnsupportedVersionError,
)
from kafkagroup.runtime.client.calls import RetriedCalls
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.runtime.offsets.values import LATEST, READ_COMMITTED, READ_UNCOMMITTED
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.types import TopicPartition

__all__ = ["examine_transactions"]

_CHECK = "last stable offset"

_MAX_FINDINGS = 5
"""The limit of partitions that have a finding each."""

_LONGEST_TIMEOUT = 15 * 60.0
"""Seconds: Kafka's default of `transaction.max.timeout.ms`, the limit of the timeout of a
transaction. It is used if a transaction's own timeout is not known."""

_GRACE = 60.0
"""Seconds for which a transaction may be open beyond its timeout: the coordinator looks for
overdue ones every 10 s, and its clock may differ."""


@attrs.frozen
class _Behind:
    """A partition whose last stable offset is below its high watermark."""

    stable: int
    """The last stable offset."""
    end: int
    """The high watermark."""
    opened: tuple[OpenTransaction, ...]
    """The partition's open transactions, the first one first."""


async def examine_transactions(
    servers: Sequence[Address], options: ClientOptions, topic: str, partitions: Iterable[int]
) -> list[Finding]:
    """Check partitions of a topic, each of which has a leader. Return a finding for each partition
    whose first open transaction is overdue; beyond `_MAX_FINDINGS`, one for all the others. If no
    transaction is overdue, or the check failed, return one finding."""
    wanted = [TopicPartition(topic, number) for number in sorted(partitions)]
    try:
        behind = await request_from(servers, options, lambda cluster: _behind(cluster, wanted))
    except UnsupportedVersionError:
        return [not_checked(_CHECK, topic, "brokers describe transactions from Kafka 3.0 on")]
    except AuthorizationError as error:
        return [not_checked(_CHECK, topic, str(error))]
    except KafkaGroupError as error:
        return [failed(_CHECK, topic, error, "try again; then look into the brokers' logs")]
    now = datetime.fromtimestamp(time.time(), UTC)
    stuck = [
        _stuck(tp, found, one, now)
        for tp, found in behind.items()
        for one in found.opened[:1]
        if _is_overdue(one, now)
    ]
    if stuck:
        more = len(stuck) - _MAX_FINDINGS
        rest = f"{more} more partition{'' if more == 1 else 's'} like these"
        return [
            *stuck[:_MAX_FINDINGS],
            *([failed(_CHECK, topic, rest)] if more > 0 else []),
        ]
    opened = [one for found in behind.values() for one in found.opened]
    if not opened:
        return [ok(_CHECK, topic, "no open transaction")]
    ages = [seconds for one in opened if (seconds := _open_for(one, now)) is not None]
    oldest = f", the oldest for {_duration(max(ages))}" if ages else ""
    count = f"{len(opened)} open transaction{'' if len(opened) == 1 else 's'}"
    return [ok(_CHECK, topic, f"{count}{oldest}; none for longer than its timeout")]


async def _behind(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, _Behind]:
    """Return the partitions with records that `read_committed` does not deliver yet. Raises: the
    first error."""
    requested = dict.fromkeys(partitions, LATEST)
    stable = await LogOffsets(cluster, READ_COMMITTED).at(requested)
    ends = await LogOffsets(cluster, READ_UNCOMMITTED).at(requested)
    behind = [tp for tp in partitions if stable[tp].offset < ends[tp].offset]
    if not behind:
        return {}
    calls = RetriedCalls(cluster.options, cluster.options.request_timeout)
    calls.open(cluster)
    opened = await transactions.open_transactions(calls, behind)
    found = {}
    for tp, result in opened.items():
        if isinstance(result, KafkaGroupError):
            raise result
        if result:  # else the transactions have ended since the offsets were read
            found[tp] = _Behind(stable[tp].offset, ends[tp].offset, result)
    return found


def _open_for(one: OpenTransaction, now: datetime) -> float | None:
    """Return for how many seconds a transaction has been open. If it hangs, no coordinator knows
    its start: return the seconds since its last record. None if the time is not known."""
    known = None if one.is_hanging else one.transaction
    since = one.producer.last_written_at if known is None else known.started_at
    return None if since is None else max((now - since).total_seconds(), 0.0)


def _is_overdue(one: OpenTransaction, now: datetime) -> bool:
    known = None if one.is_hanging else one.transaction
    seconds = _open_for(one, now)
    limit = _LONGEST_TIMEOUT if known is None else known.timeout
    return seconds is not None and seconds > limit + _GRACE


def _stuck(tp: TopicPartition, found: _Behind, one: OpenTransaction, now: datetime) -> Finding:
    """Return the finding for a partition whose first open transaction, `one`, is overdue."""
    seconds = _open_for(one, now) or 0.0  # never None, as the transaction is overdue
    known = one.transaction
    named = f"producer id {one.producer.producer_id}"
    if known is not None:
        named += f" (transactional id {known.transactional_id!r})"
    if known is None or one.is_hanging:  # the first for type checkers: `is_hanging` includes it
        state = f"hangs: it was last written to {_duration(seconds)} ago, and no coordinator has it"
        advice = (
            "see that the producer has ended, and abort the transaction:"
            f" Admin.abort_transaction({tuple(tp)!r}, {one.start_offset})"
        )
        if known is None:
            advice += ". Without the right to describe its transactional id it only seems to hang"
    else:
        node = known.coordinator
        state = (
            f"is open for {_duration(seconds)}, beyond its timeout of {_duration(known.timeout)},"
            f" in state {known.state.value}"
        )
        advice = (
            f"look into the log of its coordinator, broker {node.node_id} at"
            f" {name_of((node.host, node.port))}, which should have ended it; a producer that"
            f" starts with transactional id {known.transactional_id!r} aborts it"
        )
    return Finding(
        check=_CHECK,
        subject=f"{tp}",
        status=Status.FAILED,
        text=(
            f"consumers with read_committed get nothing from offset {found.stable} on, of"
            f" {found.end}: the transaction of {named} {state}"
        ),
        advice=advice,
    )


def _duration(seconds: float) -> str:
    """Return a time in the largest unit of which it has two or more: "90 s", "12 min", "3 h"."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"

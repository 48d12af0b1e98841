"""The exported metrics, the same for every system: names, units, and how to read `GroupMetrics`.

A metric that Kafka's own clients have has their name, but is in seconds instead of milliseconds.
Unknown values are left out, such as an average without samples, or the age of the last heartbeat
before the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Protocol

from kafkagroup import ClosedError, GroupMetrics, ProducerMetrics
from kafkagroup._values import evolve, frozen

__all__ = ["INSTRUMENTS", "Instrument", "Labels", "Observed", "measured", "samples"]

Labels = Mapping[str, str]
"""Label -> value."""


class Observed(Protocol):
    """A client with metrics: a `Consumer`, a `GroupMember`, an `Election`, `Shards` or a
    `Producer`."""

    def metrics(self) -> GroupMetrics | ProducerMetrics: ...


@frozen
class Instrument:
    """One exported metric."""

    name: str
    unit: str
    """The unit in the Unified Code for Units of Measure; "" for a number."""
    description: str
    read: Callable[[Any], Iterable[tuple[Labels, float]]]
    """Returns the values of the metrics that it is given, each with its labels."""
    labels: tuple[str, ...] = ()
    """The names of the labels that `read` returns."""
    is_counter: bool = False
    """Whether the value only grows; if not, the instrument is a gauge."""
    metrics_class: type[object] = GroupMetrics
    """The class of the metrics that `read` takes."""


def _gauge(name: str, unit: str, description: str, read: Callable[[Any], float]) -> Instrument:
    return Instrument(name, unit, description, lambda m: (({}, read(m)),))


def _requests(kind: str, time: str, what: str) -> Iterator[Instrument]:
    """Yield the instruments of `RequestMetrics`. `kind`: the attribute that has them; `time`: what
    Kafka calls the time until the response; `what`: the requests, in descriptions."""
    read = attrgetter(kind)
    yield _gauge(f"{kind}_rate", "1/s", f"{what} per second", lambda m: read(m).rate)
    yield _gauge(f"{kind}_{time}_avg", "s", f"{what}: average time", lambda m: read(m).average)
    yield _gauge(f"{kind}_{time}_max", "s", f"{what}: longest time", lambda m: read(m).maximum)


def _counter(name: str, unit: str, description: str) -> Instrument:
    read = attrgetter(name)
    return Instrument(name, unit, description, lambda m: (({}, read(m)),), is_counter=True)


_OF_MEMBERS = (
    *_requests("heartbeat", "response_time", "Heartbeats"),
    *_requests("join", "time", "Joins"),
    *_requests("sync", "time", "Syncs"),
    *_requests("commit", "latency", "Commits"),
    *_requests("rebalance", "latency", "Rebalances"),
    _counter("rebalances", "", "Completed rebalances of the group"),
    Instrument(
        "rebalance_causes",
        "",
        "Rebalances by cause; a rebalance may have several causes",
        lambda m: tuple(({"cause": c.value}, n) for c, n in m.rebalance_causes.items()),
        ("cause",),
        is_counter=True,
    ),
    Instrument(
        "membership_losses",
        "",
        "Memberships that ended: expired, fenced or left",
        lambda m: (({}, m.losses),),
        is_counter=True,
    ),
    _gauge(
        "last_heartbeat_seconds_ago",
        "s",
        "Since the last heartbeat was sent",
        lambda m: m.last_heartbeat_seconds_ago,
    ),
    _gauge(
        "session_seconds_left",
        "s",
        "Until the ownership lease expires without another response",
        lambda m: m.session_seconds_left,
    ),
    _gauge(
        "loop_delay_seconds", "s", "The longest delay of the event loop", lambda m: m.loop_delay
    ),
    _gauge("assigned_partitions", "", "Partitions that are owned", lambda m: m.assigned_partitions),
    Instrument(
        "records_lag",
        "",
        "Offsets between the position and the end, as of the last fetch",
        lambda m: tuple(
            ({"topic": tp.topic, "partition": str(tp.partition)}, lag) for tp, lag in m.lag.items()
        ),
        ("topic", "partition"),
    ),
    _counter(
        "skipped_records", "", "Records that were skipped because they could not be deserialized"
    ),
    _gauge(
        "buffered_bytes",
        "By",
        "Bytes that were fetched and not delivered yet",
        lambda m: m.buffered_bytes,
    ),
    _gauge(
        "fetching_bytes",
        "By",
        "The limit of the bytes of fetch responses in flight",
        lambda m: m.fetching_bytes,
    ),
)

_OF_PRODUCERS = (
    *_requests("produce", "latency", "Produce requests"),
    _counter("written_records", "", "Records that were acknowledged"),
    _counter("written_bytes", "By", "Bytes of their batches, as compressed"),
    _counter("failed_records", "", "Records that were refused, or not acknowledged in time"),
    _counter("retried_batches", "", "Batches that were sent again"),
    _gauge("unwritten_bytes", "By", "Bytes of buffer_memory in use", lambda m: m.buffered_bytes),
)

INSTRUMENTS = (
    *_OF_MEMBERS,
    *(evolve(instrument, metrics_class=ProducerMetrics) for instrument in _OF_PRODUCERS),
)
"""Every exported metric."""


def measured(members: Mapping[str, Observed]) -> dict[str, GroupMetrics | ProducerMetrics]:
    """Return the metrics of the running members and producers, by name."""
    found = {}
    for name, member in tuple(members.items()):
        try:
            found[name] = member.metrics()
        except ClosedError:
            continue
    return found


def samples(
    instrument: Instrument, metrics: Mapping[str, GroupMetrics | ProducerMetrics]
) -> Iterator[tuple[Labels, float]]:
    """Return the values of one instrument, labelled with the client's name as `client`."""
    for name, of_client in metrics.items():
        if not isinstance(of_client, instrument.metrics_class):
            continue
        for labels, value in instrument.read(of_client):
            if math.isfinite(value):
                yield {"client": name, **labels}, value

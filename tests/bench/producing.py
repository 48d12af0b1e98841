"""Writing: records per second and CPU per record, milliseconds of one record, and exactly once.

python -m tests.bench.producing [--bootstrap HOST:PORT] [--records N] [--rounds N] [--json FILE]

Each client writes the same records in a separate process, one after another, round by round;
`writers` is the code in that process, and defines the measured time. Ours is compared with the
peers' round by round:

- in the background: values of 100 bytes and 1 KB, without compression and with lz4;
- 100 concurrent senders, each of which awaits one record after the other;
- one sender that awaits each record;
- records of one topic that are written to another, in transactions of 1,000 records with the
  offsets of a group; and ours without transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from kafkagroup.wire.compression import Codec

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import Figure, Least, Target, percentile
from .filling import BATCH, fill
from .writers import PER_TRANSACTION, SENDERS

__all__ = ["measure"]

PARTITIONS = 8
SIZES = (100, 1_000)
"""Bytes of a value."""
CODECS = ("none", "lz4")

UNITS = ("records/s", "CPU us/record")

BACKGROUND: Mapping[str, str] = {
    "kafkagroup send_nowait": "kafkagroup_nowait",
    "aiokafka send": "aiokafka_nowait",
    "confluent produce": "confluent",
}
CONCURRENT: Mapping[str, str] = {
    "kafkagroup send": "kafkagroup_concurrent",
    "aiokafka send_and_wait": "aiokafka_concurrent",
}
AWAITED: Mapping[str, str] = {
    "kafkagroup send": "kafkagroup_awaited",
    "aiokafka send_and_wait": "aiokafka_awaited",
}
EXACTLY_ONCE: Mapping[str, str] = {
    "kafkagroup transactions()": "kafkagroup_transactions",
    "kafkagroup without transactions": "kafkagroup_plain",
    "aiokafka transaction()": "aiokafka_transactions",
}
"""Client -> its writer."""

TIMES_FASTER = Least(5.0)
AT_MOST_CPU = Target(50, 1.5)
TIMES_FASTER_CONCURRENTLY = Least(3.0)
NO_LATER = Target(50, 1.0)
TIMES_FASTER_EXACTLY_ONCE = Least(3.0)
OF_RATE_WITHOUT = Least(0.5)

_CONCURRENT_SHARE = 10
_FORWARDED_SHARE = 5
"""The part of the records that the slower measurements write, by this."""
_AWAITED = 1_000
"""Records of one awaited turn."""

Rounds = dict[str, list[dict[str, float]]]
"""Client -> its results, round by round."""


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all clients."""
    figures: list[Figure] = []
    for size in SIZES:
        for codec in CODECS:
            figures += _background(bootstrap, settings, size, codec)
    figures += _concurrent(bootstrap, settings)
    figures += _awaited(bootstrap, settings)
    return figures + _exactly_once(bootstrap, settings)


def _background(bootstrap: str, settings: Settings, size: int, codec: str) -> list[Figure]:
    found = _write(bootstrap, settings.rounds, BACKGROUND, settings.records, size, codec)
    what = f"{size:,} bytes, {codec}"
    ours, aiokafka, confluent = BACKGROUND
    return [
        *_of_all(what, found),
        *_times(what, found, ours, aiokafka, TIMES_FASTER),
        *_times(what, found, ours, confluent, None, AT_MOST_CPU),
    ]


def _concurrent(bootstrap: str, settings: Settings) -> list[Figure]:
    records = settings.records // _CONCURRENT_SHARE
    found = _write(bootstrap, settings.rounds, CONCURRENT, records)
    what = f"{SENDERS} concurrent senders"
    ours, aiokafka = CONCURRENT
    return [
        *_of_all(what, found),
        *_times(what, found, ours, aiokafka, TIMES_FASTER_CONCURRENTLY),
    ]


def _awaited(bootstrap: str, settings: Settings) -> list[Figure]:
    """Measure 3 pairs a round: the latency of a turn depends on the broker in these seconds."""
    turns: dict[str, list[Sequence[float]]] = {client: [] for client in AWAITED}
    for round_ in range(3 * settings.rounds):
        with broker.topic(bootstrap, 1) as topic:
            for client in _in_turn(AWAITED, round_):
                found = _trial(bootstrap, topic, AWAITED[client], _AWAITED)
                turns[client].append(found["ms"])
    figures = []
    ours, aiokafka = AWAITED
    for percent in (50, 99):
        of = {
            client: tuple(percentile(turn, percent) for turn in turns[client]) for client in AWAITED
        }
        what = f"one awaited record: ms, p{percent}"
        figures += [Figure(what=what, client=client, values=of[client]) for client in AWAITED]
        figures.append(
            Figure(
                what=f"{what}: times aiokafka's",
                client=ours,
                values=tuple(a / b for a, b in zip(of[ours], of[aiokafka], strict=True)),
                target=NO_LATER,
            )
        )
    return figures


def _exactly_once(bootstrap: str, settings: Settings) -> list[Figure]:
    found: Rounds = {}
    batches = settings.records // _FORWARDED_SHARE // BATCH
    with broker.topic(bootstrap, PARTITIONS) as topic:
        records = anyio.run(fill, bootstrap, topic, PARTITIONS, Codec.NONE, batches)
        with broker.topic(bootstrap, PARTITIONS, f"{topic}-out"):
            # The first round is not counted. In it the broker compiles what it does for
            # transactions: until then each takes twice as long, and the rest of the run is shorter.
            for round_ in range(1 + settings.rounds):
                for client in _in_turn(EXACTLY_ONCE, round_):
                    one = _trial(bootstrap, topic, EXACTLY_ONCE[client], records)
                    if round_:
                        found.setdefault(client, []).append(one)
    what = f"forwarded, {PER_TRANSACTION:,} records a transaction"
    ours, without, aiokafka = EXACTLY_ONCE
    return [
        *_of_all(what, found),
        *_times(what, found, ours, aiokafka, TIMES_FASTER_EXACTLY_ONCE),
        *_times(what, found, ours, without, OF_RATE_WITHOUT),
    ]


def _write(
    bootstrap: str,
    rounds: int,
    clients: Mapping[str, str],
    records: int,
    size: int = SIZES[0],
    codec: str = "none",
) -> Rounds:
    """Write with each client in each round, to a new topic each time."""
    found: Rounds = {client: [] for client in clients}
    for round_ in range(rounds):
        for client in _in_turn(clients, round_):
            with broker.topic(bootstrap, PARTITIONS) as topic:
                one = _trial(bootstrap, topic, clients[client], records, size, codec)
                found[client].append(one)
    return found


def _in_turn(clients: Mapping[str, str], round_: int) -> list[str]:
    """Return the clients, each of them first in one round after the other."""
    names = list(clients)
    first = round_ % len(names)
    return names[first:] + names[:first]


def _trial(
    bootstrap: str, topic: str, writer: str, records: int, size: int = SIZES[0], codec: str = "none"
) -> dict[str, float]:
    return trials.run(
        "writers",
        writer=writer,
        bootstrap=bootstrap,
        topic=topic,
        records=records,
        size=size,
        codec=codec,
    )


def _of_all(what: str, found: Rounds) -> list[Figure]:
    return [
        Figure(
            what=f"{what}: {unit}", client=client, values=tuple(one[unit] for one in found[client])
        )
        for unit in UNITS
        for client in found
    ]


def _times(
    what: str,
    found: Rounds,
    ours: str,
    peer: str,
    speed: Least | None,
    cost: Target | None = None,
) -> list[Figure]:
    """Return our speed and cost relative to a peer's, round by round."""
    return [
        Figure(
            what=f"{what}: times the {unit} of {peer}",
            client=ours,
            values=tuple(a[unit] / b[unit] for a, b in zip(found[ours], found[peer], strict=True)),
            target=target,
        )
        for unit, target in zip(UNITS, (speed, cost), strict=True)
    ]


if __name__ == "__main__":
    main(__doc__, {"producing": measure})

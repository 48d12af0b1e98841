"""Reading a backlog: records per second and CPU per record, one member with default settings.

python -m tests.bench.consuming [--bootstrap HOST:PORT] [--records N] [--rounds N] [--json FILE]

Each client reads the same records of 100 bytes in a separate process, one after another, round by
round; `readers` is the code in that process, and defines the measured time. Ours is compared with
the peers' round by round, and has targets: a missed speed is the broker's if a bare socket is no
faster. Then follow: ours uncompiled beside Python clients, a ticker beside ours, and Arrow without
a broker (`decoding`). The last part varies record size, codec and number of partitions, and draws
speed and CPU of ours and aiokafka's into build/bench/consuming-*.png.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import anyio
import matplotlib

from kafkagroup.wire.compression import Codec

from . import broker, decoding, trial
from .command import Settings, main
from .figures import Figure, Least, Target
from .filling import BATCH, fill
from .readers import CHUNK, VALUE_BYTES

__all__ = ["measure"]

PARTITIONS = 8
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)

CLIENTS: Mapping[str, Mapping[str, str]] = {
    "one by one": {
        "kafkagroup async for": "kafkagroup_one",
        "aiokafka async for": "aiokafka_one",
        "confluent poll": "confluent_one",
    },
    "many at once": {
        "kafkagroup batches()": "kafkagroup_many",
        "kafkagroup batches(arrow=True)": "kafkagroup_arrow",
        f"aiokafka getmany({CHUNK})": "aiokafka_many",
        f"confluent consume({CHUNK})": "confluent_many",
    },
}
"""How records are asked for -> client -> its reader. Ours is set against its own kind."""

BARE = "a bare socket"
"""Reads the same responses and makes nothing of them: what the broker can give."""

TARGETS = (
    ("one by one", "kafkagroup async for", "aiokafka async for", 8.0),
    ("many at once", "kafkagroup batches()", f"aiokafka getmany({CHUNK})", 3.0),
    ("many at once", "kafkagroup batches()", f"confluent consume({CHUNK})", 3.0),
)
"""How records are asked for, ours, a peer, and how many times its speed ours has at least."""

_AS_FAST = 0.9
"""Of a bare socket's speed: who reads so fast waits for the broker."""

UNCOMPILED: Mapping[str, tuple[str, bool]] = {
    "kafkagroup async for, uncompiled": ("kafkagroup_one", True),
    "kafkagroup batches(), uncompiled": ("kafkagroup_many", True),
    "kafkagroup async for": ("kafkagroup_one", False),
    "kafkagroup batches()": ("kafkagroup_many", False),
    "aiokafka async for": ("aiokafka_one", False),
    f"aiokafka getmany({CHUNK})": ("aiokafka_many", False),
    f"kafka-python poll({CHUNK})": ("kafka_python", False),
}
"""Client -> its reader, and whether nothing is compiled. aiokafka always has compiled records."""

UNCOMPILED_TARGETS: Sequence[tuple[str, str, float | None]] = (
    ("kafkagroup async for, uncompiled", "aiokafka async for", 1.5),
    ("kafkagroup async for, uncompiled", f"kafka-python poll({CHUNK})", 1.0),
    ("kafkagroup async for, uncompiled", "kafkagroup async for", None),
    ("kafkagroup batches(), uncompiled", f"aiokafka getmany({CHUNK})", None),
    ("kafkagroup batches(), uncompiled", f"kafka-python poll({CHUNK})", 1.0),
    ("kafkagroup batches(), uncompiled", "kafkagroup batches()", None),
)
"""Ours, a peer, and how many times its speed ours has at least; None where there is no target."""

UNCOMPILED_SIZES = (VALUE_BYTES, 1_000)
"""Bytes of a value."""

TICKING: Mapping[str, str] = {
    "kafkagroup async for": "kafkagroup_one_ticking",
    "kafkagroup batches()": "kafkagroup_many_ticking",
    "nobody": "kafkagroup_resting",
}
"""Who reads beside a ticker -> its reader."""

_FEW_MS = 8.0
"""How late a ticker may be at p99: it takes two turns of the loop or three, of 1 ms and a batch."""

PLOTS = Path("build", "bench")
DRAWN: Mapping[str, str] = {
    "kafkagroup async for": "kafkagroup_one",
    "kafkagroup batches()": "kafkagroup_many",
    "kafkagroup batches(arrow=True)": "kafkagroup_arrow",
    "aiokafka async for": "aiokafka_one",
    f"aiokafka getmany({CHUNK})": "aiokafka_many",
}
SIZES = (10, 100, 1_000, 10_000, 100_000)
"""Bytes of a value."""
SPREAD = (1, 8, 64)
"""Partitions."""
SHARE = 5
"""The part that goes through sizes reads fewer records, by this."""
MOST_BYTES = 64 * 1024 * 1024
"""Of one topic, in the part that goes through sizes."""

UNITS = ("records/s", "CPU us/record")


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all clients."""
    figures: list[Figure] = []
    for codec in CODECS:
        with broker.topic(bootstrap, PARTITIONS) as topic:
            records = anyio.run(
                fill, bootstrap, topic, PARTITIONS, codec, settings.records // BATCH
            )
            found: dict[tuple[str, str], list[dict[str, float]]] = {}
            for _ in range(settings.rounds):
                for how, clients in CLIENTS.items():
                    for client, reader in {**clients, BARE: "bare"}.items():
                        one = _read(reader, bootstrap, topic, records)
                        found.setdefault((how, client), []).append(one)
        figures += [
            Figure(
                what=f"{codec.name.lower()}, {how}: {unit}",
                client=client,
                values=tuple(one[unit] for one in rounds),
                note="no CRC check" if client.startswith("confluent") else "",
            )
            for unit in UNITS
            for (how, client), rounds in found.items()
        ]
        for how, ours, peer, least in TARGETS:
            figures += _times(codec, how, (ours, peer), least, found)
    for size in UNCOMPILED_SIZES:
        figures += _uncompiled(bootstrap, settings, size)
    figures += _late(bootstrap, settings)
    return figures + decoding.measure(bootstrap, settings) + _sweep(bootstrap, settings)


def _times(
    codec: Codec,
    how: str,
    pair: tuple[str, str],
    least: float,
    found: Mapping[tuple[str, str], list[dict[str, float]]],
) -> list[Figure]:
    """Return our speed and cost relative to a peer."""
    ours, peer, bare = (found[how, client] for client in (*pair, BARE))
    speed, cpu = UNITS
    faster = tuple(a[speed] / b[speed] for a, b in zip(ours, peer, strict=True))
    cheaper = tuple(b[cpu] / a[cpu] for a, b in zip(ours, peer, strict=True))
    target, note = Least(least), ""
    share = median(a[speed] / b[speed] for a, b in zip(ours, bare, strict=True))
    if not target.met(faster) and share >= _AS_FAST:
        note = f"{share:.0%} of a bare socket's speed: the broker is the limit"
    name = f"{codec.name.lower()}, {how}: times {pair[1]}'s"
    return [
        Figure(
            what=f"{name} speed",
            client=pair[0],
            values=faster,
            target=None if note else target,
            note=note,
        ),
        Figure(what=f"{name} thrift", client=pair[0], values=cheaper, target=target),
    ]


def _uncompiled(bootstrap: str, settings: Settings, size: int) -> list[Figure]:
    """Measure ours uncompiled, beside ours compiled and the Python clients."""
    found: dict[str, list[dict[str, float]]] = {}
    per_batch = BATCH * VALUE_BYTES // size
    batches = min(settings.records, MOST_BYTES // size) // per_batch
    with broker.topic(bootstrap, PARTITIONS) as topic:
        records = anyio.run(
            fill, bootstrap, topic, PARTITIONS, Codec.NONE, batches, size, per_batch
        )
        for _ in range(settings.rounds):
            for client, (reader, pure) in UNCOMPILED.items():
                one = _read(reader, bootstrap, topic, records, size, pure=pure)
                found.setdefault(client, []).append(one)
    name = f"uncompiled, {size:,} bytes"
    figures = [
        Figure(what=f"{name}: {unit}", client=client, values=tuple(one[unit] for one in rounds))
        for unit in UNITS
        for client, rounds in found.items()
    ]
    speed, cpu = UNITS
    for client, peer, least in UNCOMPILED_TARGETS:
        pairs = list(zip(found[client], found[peer], strict=True))
        for unit, values in (
            ("speed", tuple(a[speed] / b[speed] for a, b in pairs)),
            ("thrift", tuple(b[cpu] / a[cpu] for a, b in pairs)),
        ):
            target = None if least is None else Least(least)
            what = f"{name}: times {peer}'s {unit}"
            figures.append(Figure(what=what, client=client, values=values, target=target))
    return figures


def _late(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the delay of a ticker of 10 ms beside a client that reads at full speed."""
    found: dict[str, list[float]] = {}
    with broker.topic(bootstrap, PARTITIONS) as topic:
        records = anyio.run(
            fill, bootstrap, topic, PARTITIONS, Codec.ZSTD, settings.records // BATCH
        )
        for _ in range(settings.rounds):
            for client, reader in TICKING.items():
                late = _read(reader, bootstrap, topic, records)["ms late"]
                found.setdefault(client, []).append(late)
    return [
        Figure(
            what="a ticker of 10 ms beside a reader, p99: ms late",
            client=client,
            values=tuple(late),
            target=None if client == "nobody" else Target(50, _FEW_MS),
            note="what the machine makes late" if client == "nobody" else "zstd",
        )
        for client, late in found.items()
    ]


def _read(
    reader: str,
    bootstrap: str,
    topic: str,
    records: int,
    size: int = VALUE_BYTES,
    *,
    pure: bool = False,
) -> dict[str, float]:
    return trial.run(
        "readers",
        pure=pure,
        reader=reader,
        bootstrap=bootstrap,
        topic=topic,
        records=records,
        size=size,
    )


def _sweep(bootstrap: str, settings: Settings) -> list[Figure]:
    """Measure ours and aiokafka's by size, codec and partitions, and draw them."""
    axes: Mapping[str, Mapping[str, tuple[int, Codec, int]]] = {
        "bytes of a value": {f"{size:,}": (size, Codec.NONE, PARTITIONS) for size in SIZES},
        "codec": {codec.name.lower(): (VALUE_BYTES, codec, PARTITIONS) for codec in Codec},
        "partitions": {str(n): (VALUE_BYTES, Codec.NONE, n) for n in SPREAD},
    }
    figures = []
    for axis, cases in axes.items():
        curves: dict[str, dict[str, list[float]]] = {unit: {} for unit in UNITS}
        for case, (size, codec, partitions) in cases.items():
            per_batch = max(1, min(BATCH, 100_000 // size))
            batches = min(settings.records // SHARE, MOST_BYTES // size) // per_batch
            with broker.topic(bootstrap, partitions) as topic:
                records = anyio.run(
                    fill, bootstrap, topic, partitions, codec, batches, size, per_batch
                )
                for client, reader in DRAWN.items():
                    rounds = [
                        _read(reader, bootstrap, topic, records, size)
                        for _ in range(settings.rounds)
                    ]
                    for unit in UNITS:
                        values = tuple(one[unit] for one in rounds)
                        curves[unit].setdefault(client, []).append(median(values))
                        what = f"{axis} {case}: {unit}"
                        figures.append(Figure(what=what, client=client, values=values))
        _draw(axis, list(cases), curves)
    return figures


def _draw(axis: str, cases: list[str], curves: Mapping[str, Mapping[str, list[float]]]) -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(1, len(curves), figsize=(12, 5), layout="constrained")
    for plot, (unit, clients) in zip(plots, curves.items(), strict=True):
        for client, values in clients.items():
            plot.plot(
                cases, values, "-o" if client.startswith("kafkagroup") else "--x", label=client
            )
        plot.set(xlabel=axis, ylabel=f"{unit}, median", yscale="log")
        plot.grid(visible=True, which="both", alpha=0.3)
    plots[0].legend()
    PLOTS.mkdir(parents=True, exist_ok=True)
    path = PLOTS / f"consuming-{axis.split()[0]}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"drawn: {path}", file=sys.stderr)


if __name__ == "__main__":
    main(__doc__, {"consuming": measure})

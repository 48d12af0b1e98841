"""Reading a backlog: records per second and CPU per record, one member with default settings.

python -m tests.bench.consuming [--bootstrap HOST:PORT] [--records N] [--rounds N] [--json FILE]

Each client reads the same records of 100 bytes in a process of its own, one after the other, round
by round; `readers` is what runs there, and says what the clock covers. A second part goes through
sizes of records, codecs and numbers of partitions, and draws speed and CPU of ours and aiokafka's
into build/bench/consuming-*.png.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

import anyio
import matplotlib

from kafkagroup import TopicPartition
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import NewRecord, encode_batch

from . import broker, trial
from .command import Settings, main
from .figures import Figure
from .readers import CHUNK, VALUE_BYTES

__all__ = ["measure"]

PARTITIONS = 8
BATCH = 1_000
"""Records of one produced batch: about 100 KB before compression."""

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
"""Reads the same answers and makes nothing of them: what the broker can give."""

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
MOST_BYTES = 64 * 1024 * 1024
"""Of one topic, in the part that goes through sizes."""

UNITS = ("records/s", "CPU us/record")


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """The figures of all clients."""
    figures: list[Figure] = []
    for codec in CODECS:
        with broker.topic(bootstrap, PARTITIONS) as topic:
            records = anyio.run(_fill, bootstrap, topic, codec, settings.records // BATCH)
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
    return figures + _sweep(bootstrap, settings)


def _read(
    reader: str, bootstrap: str, topic: str, records: int, size: int = VALUE_BYTES
) -> dict[str, float]:
    return trial.run(
        "readers", reader=reader, bootstrap=bootstrap, topic=topic, records=records, size=size
    )


def _sweep(bootstrap: str, settings: Settings) -> list[Figure]:
    """Ours and aiokafka's, by size, codec and partitions; drawn."""
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
            batches = min(settings.records, MOST_BYTES // size) // per_batch
            with broker.topic(bootstrap, partitions) as topic:
                records = anyio.run(
                    _fill, bootstrap, topic, codec, batches, partitions, size, per_batch
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


async def _fill(
    bootstrap: str,
    topic: str,
    codec: Codec,
    batches: int,
    partitions: int = PARTITIONS,
    size: int = VALUE_BYTES,
    per_batch: int = BATCH,
) -> int:
    """Append whole batches to all partitions in turn; answer how many records they are."""
    records = [NewRecord(None, value, 1_700_000_000_000) for value in _values(size, per_batch)]
    batch = encode_batch(records, codec=codec)
    async with broker.connected(bootstrap) as node:
        for n in range(batches):
            await broker.produce(node, {TopicPartition(topic, n % partitions): batch})
    return batches * per_batch


def _values(size: int, count: int) -> Iterator[bytes]:
    """Values that compress about as business JSON does, three to one."""
    chance = random.Random(1)
    for n in range(count):
        text = ""
        while len(text) < size:
            text += (
                f'{{"id":{n},"customer":"{chance.getrandbits(64):016x}","status":"shipped","total":'
            )
            text += f"{chance.randrange(10**6)}}}".ljust(26)
        yield text[:size].encode()


if __name__ == "__main__":
    main(__doc__, {"consuming": measure})

"""Records to Arrow, without a broker: records per second of one core, and of inflating alone.

Each codec in a process of its own. No peer decodes to Arrow. The other figure is that of the
decompression library alone, which is the upper limit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from kafkagroup.wire.arrow import arrow_batches
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec, decompress
from kafkagroup.wire.records import read_batches

from . import trial as process
from .command import Settings
from .figures import Figure, Least
from .readers import VALUE_BYTES

__all__ = ["measure", "trial", "values"]

_BATCH = 1_000
_BATCHES = 20
_SECONDS = 1.0
_LEAST = 5_000_000.0
_HEADER_BYTES = 61


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all codecs; no broker is used."""
    figures = []
    for codec in Codec:
        rounds = [process.run("decoding", codec=codec.name) for _ in range(settings.rounds)]
        what = f"Arrow, {codec.name.lower()}: records/s of one core"
        figures.append(
            Figure(
                what=what,
                client="kafkagroup arrow_batches()",
                values=tuple(one["arrow"] for one in rounds),
                # zlib alone takes most of the time that there is.
                target=None if codec is Codec.GZIP else Least(_LEAST),
            )
        )
        if codec is not Codec.NONE:
            alone = tuple(one["inflating"] for one in rounds)
            figures.append(Figure(what=what, client="inflating alone", values=alone))
    return figures


def trial(*, codec: str) -> dict[str, float]:
    """Return the records per second of CPU: to Arrow, including CRCs, and inflated only."""
    kind = Codec[codec]
    records = [NewRecord(None, value, 1_700_000_000_000) for value in values(VALUE_BYTES, _BATCH)]
    batch = encode_batch(records, codec=kind)
    log = memoryview(batch * _BATCHES)
    compressed = [b.raw[_HEADER_BYTES:] for b in read_batches(log, topic="t", partition=0)]

    def to_arrow() -> None:
        found = sum(b.num_rows for b in arrow_batches(log, topic="t", partition=0))
        assert found == _BATCH * _BATCHES

    def inflate() -> None:
        for data in compressed:
            decompress(kind, data)

    return {"arrow": _speed(to_arrow), "inflating": _speed(inflate)}


def _speed(work: Callable[[], None]) -> float:
    work()
    started, times = time.process_time(), 0
    while (taken := time.process_time() - started) < _SECONDS:
        work()
        times += 1
    return times * _BATCH * _BATCHES / taken


def values(size: int, count: int) -> Iterator[bytes]:
    """Return values that compress about like business JSON, three to one."""
    chance = random.Random(1)
    for n in range(count):
        text = ""
        while len(text) < size:
            text += (
                f'{{"id":{n},"customer":"{chance.getrandbits(64):016x}","status":"shipped","total":'
            )
            text += f"{chance.randrange(10**6)}}}".ljust(26)
        yield text[:size].encode()

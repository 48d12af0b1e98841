"""The figures of the last `make bench` that the guides and the README show.

Two cores, Apache Kafka 4.3.1 on the same machine, November 2026; records of 100 bytes. After
another run: change them here, then `python docs/site/pictures.py`. The README has the tables too,
and a test compares them.
"""

from __future__ import annotations

from svg import GREY, INK, PAPER, Svg

__all__ = ["draw", "ratios", "rebalances"]

_RATIOS = (
    ("`async for`", "aiokafka", (10, 11, 9.9), (11, 11, 9.9)),
    ("`batches()`", "aiokafka's `getmany()`", (5.5, 6.4, 5.1), (5.8, 6.5, 5.1)),
    ("`batches()`", "confluent-kafka's `consume()` (librdkafka)", (19, 22, 9.7), (3.2, 4.5, 3.8)),
)
"""API, beside which, records/s and CPU as ratios: uncompressed, lz4, zstd."""

_REBALANCES = (
    ("KIP-848: all members join", 1.28, 10, 10, None),
    ("KIP-848: one joins", 0.21, 5.0, 5.1, None),
    ("KIP-848: one leaves", 0.21, 0.52, 0.47, None),
    ("cooperative: all members join", 0.14, 6.0, 6.2, 0.17),
    ("cooperative: one joins", 0.92, 3.5, 3.5, 0.49),
    ("cooperative: one leaves", 0.88, 0.46, 0.50, 0.48),
)
"""What happens, and the seconds: kafkagroup, librdkafka, Java, aiokafka."""

_OURS, _NEUTRAL = "#3949ab", "#c5cbd3"


def ratios() -> str:
    """How many times as many records, and how many times less CPU."""
    lines = [
        "| uncompressed / lz4 / zstd | records per second | CPU per record |\n|---|---|---|\n",
        *(
            f"| {api}, against {other} | {_each(records)} times as many |"
            f" {_each(cpu) + ' times less' if cpu else ''} |\n"
            for api, other, records, cpu in _RATIOS
        ),
    ]
    return "".join(lines).replace("|  |", "| |")


def rebalances() -> str:
    """Seconds of each client; the shortest of a row is bold."""
    lines = ["| | kafkagroup | librdkafka | Java | aiokafka |\n|---|---|---|---|---|\n"]
    for what, *seconds in _REBALANCES:
        best = min(s for s in seconds if s is not None)
        lines.append(f"| {what} | {' | '.join(_seconds(s, best) for s in seconds)} |\n")
    return "".join(lines)


def _each(values: tuple[float, ...]) -> str:
    return " / ".join(f"{value:g}" for value in values)


def _seconds(seconds: float | None, best: float) -> str:
    if seconds is None:
        return "not supported"
    shown = f"{seconds:.1f}" if seconds in range(10) else f"{seconds:g}"
    return f"**{shown}**" if seconds == best else shown


def draw() -> str:
    """The ratios as bars: how far ahead, or behind, of each client."""
    rows = (
        ("records/s, async for", "aiokafka", _RATIOS[0][2][0]),
        ("CPU per record, async for", "aiokafka", _RATIOS[0][3][0]),
        ("records/s, batches()", "librdkafka", _RATIOS[2][2][0]),
        ("CPU per record, batches()", "librdkafka", _RATIOS[2][3][0]),
        ("one of 20 joins, KIP-848", "librdkafka", _REBALANCES[1][2] / _REBALANCES[1][1]),
        ("one of 20 joins, KIP-848", "Java", _REBALANCES[1][3] / _REBALANCES[1][1]),
        ("one of 20 joins, cooperative", "aiokafka", _REBALANCES[4][4] / _REBALANCES[4][1]),
        ("one of 20 leaves, cooperative", "librdkafka", _REBALANCES[5][2] / _REBALANCES[5][1]),
        ("median latency, 200 records/s", "aiokafka", 1.10 / 0.93),
        ("median latency, 200 records/s", "librdkafka", 0.73),
    )
    left, top, step, scale = 310, 60, 28, 12.2
    height = top + step * len(rows) + 34
    picture = Svg(620, height, "Measured ratios: kafkagroup against other clients")
    picture.text(20, 28, "Times better than the other client", size=16, anchor="start", bold=True)
    picture.text(604, 28, "2 cores, Kafka 4.3.1, November 2026", size=12, anchor="end")
    bottom = top + step * len(rows)
    for number, (what, other, ratio) in enumerate(rows):
        y = top + step * number
        picture.text(20, y + 16, what, size=13, anchor="start")
        picture.text(left - 10, y + 16, other, size=12, anchor="end", colour=GREY)
        fill = _OURS if ratio >= 1 else _NEUTRAL
        picture.box(left, y, ratio * scale, 21, fill=fill, round=2)
        inside = ratio * scale > 60
        picture.text(
            left + ratio * scale + (-8 if inside else 8),
            y + 16,
            f"{ratio:.2g}",
            size=13,
            anchor="end" if inside else "start",
            colour=PAPER if inside else INK,
            bold=True,
        )
    picture.path(f"M{left + scale:g},{top - 8} L{left + scale:g},{bottom + 4}", INK, dots=True)
    picture.text(
        left + scale, bottom + 20, "1: equal; grey: the other is ahead", size=12, anchor="start"
    )
    return picture.render()

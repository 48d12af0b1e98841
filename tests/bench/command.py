"""The command line of all benchmarks: settings, the broker, the tables, the JSON file."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from .broker import kafka
from .figures import Figure, show, write_json, write_table

__all__ = ["LARGE", "SMALL", "Settings", "main"]


@attrs.frozen(kw_only=True)
class Settings:
    """The size of the measurement."""

    records: int
    """consuming, producing: how many are read or written at a time, rounded down to thousands."""
    rounds: int
    """consuming, producing: how often each client reads or writes them; startup: a quarter of how
    often each starts; latency: half of how many turns each has at each rate."""
    repeats: int
    """rebalancing: how often each client's members all join, one joins, one leaves; deploying: how
    often they are all restarted."""
    changes: int
    """gap: how often a member joins or leaves in each round."""
    seconds: int
    """idle, resting, punctual: how long it is looked at; latency: four turns."""
    heartbeat_ms: int | None = None
    """rebalancing, gap: the same heartbeat interval for all; None for each client's default."""


SMALL = Settings(records=1_000_000, rounds=3, repeats=3, changes=8, seconds=8)
LARGE = Settings(records=1_000_000, rounds=5, repeats=10, changes=20, seconds=30)

TABLE = Path("build", "bench", "table.txt")

Measure = Callable[[str, Settings], list[Figure]]


def main(what: str | None, benchmarks: Mapping[str, Measure]) -> None:
    """Run benchmarks on one broker, and print the table of each when it has ended; exit with 1 if
    one of our targets is missed."""
    parser = ArgumentParser(description=(what or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", help="host:port of a broker; else Apache Kafka on loopback")
    parser.add_argument("--preset", choices=("small", "large"), default="large")
    for setting in attrs.fields(Settings):
        parser.add_argument(f"--{setting.name.replace('_', '-')}", type=int)
    parser.add_argument("--json", type=Path, help="file for all values")
    if len(benchmarks) > 1:
        parser.add_argument("--only", nargs="+", choices=benchmarks, default=list(benchmarks))
    given = vars(parser.parse_args())
    preset = SMALL if given["preset"] == "small" else LARGE
    own = {s.name: given[s.name] for s in attrs.fields(Settings) if given[s.name] is not None}
    settings = attrs.evolve(preset, **own)
    figures: list[Figure] = []
    with kafka(given["bootstrap"]) as bootstrap:
        for name in given.get("only", benchmarks):
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            measured = benchmarks[name](bootstrap, settings)
            show(measured)
            figures += measured
            # After each: a run that is interrupted keeps what it has measured.
            write_table(TABLE, figures)
            if given["json"] is not None:
                write_json(given["json"], figures, attrs.asdict(settings))
    missed = [
        f"{figure.what}, {figure.client}: {figure.target}" for figure in figures if figure.missed
    ]
    sys.exit("\n".join(["targets missed:", *missed]) if missed else 0)

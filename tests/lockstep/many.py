"""Run the scripts of many seeds in several processes, each with a pair of coordinators."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import attrs

from .coordinator import Coordinator
from .requests import make_script
from .run import Divergence, run
from .script import Script
from .shrink import shrink

__all__ = ["Pair", "Result", "run_many", "run_one"]

Pair = tuple[Coordinator, Coordinator]


@attrs.frozen
class Result:
    """The outcome of one seed."""

    seed: int
    steps: int
    divergence: str = ""
    """As text, with the shortest script."""
    kind: tuple[str, str] | None = None
    """The request and the field that differ; None if the coordinators agree."""


def run_one(seed: int, pair: Pair, known: Collection[tuple[str, str]] = ()) -> Result:
    """Run the script of this seed; if the answers differ in a way that is not known yet, shrink it.

    The result for one that is known has only its kind.
    """
    script = make_script(seed)
    found = run(script, *pair)
    if found is None:
        return Result(seed, len(script.steps))
    kind = found.kind
    if kind in known:
        return Result(seed, len(script.steps), kind=kind)

    def diverges(shorter: Script) -> bool:
        again = run(shorter, *pair)
        return again is not None and again.kind == kind

    shortest = shrink(script, diverges)
    return Result(seed, len(script.steps), _text(shortest, run(shortest, *pair) or found), kind)


def _text(script: Script, divergence: Divergence) -> str:
    lines = [f"  {step}" for step in script.steps]
    lines.append(f"  the answers to {type(divergence.asked.request).__name__} differ:")
    lines += [f"    {difference}" for difference in divergence.differences]
    lines += [f"    left:  {divergence.left}", f"    right: {divergence.right}"]
    return "\n".join(lines)


def run_many(seeds: Iterable[int], jobs: int, connect: Callable[[], Pair]) -> Iterator[Result]:
    """Return the result of each seed, in any order. `connect` is called once in each process."""
    if jobs == 1:
        _connect(connect)
        yield from map(_run_here, seeds)
        return
    for coordinator in connect():  # a pool would start failing processes for ever
        coordinator.close()
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_connect, initargs=(connect,)) as pool:
        yield from pool.imap_unordered(_run_here, seeds, chunksize=16)


_SHRUNK = 2
"""Divergences of one kind that a process shrinks: that takes longer than all the rest."""

_pairs: list[Pair] = []
"""The pair of this process."""


def _connect(connect: Callable[[], Pair]) -> None:
    _pairs[:] = [connect()]


_seen: Counter[tuple[str, str]] = Counter()
"""How often this process has met each kind of divergence."""


def _run_here(seed: int) -> Result:
    known = [kind for kind, count in _seen.items() if count >= _SHRUNK]
    result = run_one(seed, _pairs[0], known)
    if result.kind:
        _seen[result.kind] += 1
    return result

"""Run the scripts of many seeds in several processes, each with a pair of coordinators."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

import attrs

from .coordinator import Coordinator
from .requests import make_script
from .run import Divergence, run
from .script import Script
from .shrink import shrink

__all__ = ["HUNG", "Pair", "Result", "run_many", "run_one"]

Pair = tuple[Coordinator, Coordinator]

HUNG = ("no answer", "in time")
"""The kind of a script during which a coordinator did not answer in time."""

_LIMIT = 60.0
"""Seconds that a script may take; nearly all take a few hundredths."""


@attrs.frozen
class Result:
    """The outcome of one seed."""

    seed: int
    steps: int
    divergence: str = ""
    """As text, with the shortest script."""
    kind: tuple[str, str] | None = None
    """The request and the field that differ, or `HUNG`; None if the coordinators agree."""


class _TimeUp(BaseException):
    """Ends a script. A BaseException, because an Exception counts as the coordinator's response."""


def run_one(
    seed: int, pair: Pair, known: Collection[tuple[str, str]] = (), *, limit: float = _LIMIT
) -> Result:
    """Run the script of this seed; if responses differ in a way that is not known yet, shrink it.

    The result for one that is known has only its kind. After `HUNG` the pair is of no more use.
    """
    script = make_script(seed)

    def run_in_time(one: Script) -> Divergence | None:
        with _time_limit(limit):
            return run(one, *pair)

    try:
        found = run_in_time(script)
    except _TimeUp:
        return Result(seed, len(script.steps), f"  not done after {limit:g} s", HUNG)
    if found is None:
        return Result(seed, len(script.steps))
    kind = found.kind
    if kind in known:
        return Result(seed, len(script.steps), kind=kind)

    def diverges(shorter: Script) -> bool:
        again = run_in_time(shorter)
        return again is not None and again.kind == kind

    try:
        shortest = shrink(script, diverges)
        text = _text(shortest, run_in_time(shortest) or found)
    except _TimeUp:
        text = f"{_text(script, found)}\n  a shorter script is not done after {limit:g} s"
        return Result(seed, len(script.steps), text, HUNG)
    return Result(seed, len(script.steps), text, kind)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TimeUp` when the time is up, also out of a wait for the JVM."""

    def stop(*_: object) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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

_pairs: list[tuple[Pair, Callable[[], Pair]]] = []
"""The pair of this process, and what connected it."""


def _connect(connect: Callable[[], Pair]) -> None:
    _pairs[:] = [(connect(), connect)]


_seen: Counter[tuple[str, str]] = Counter()
"""How often this process has met each kind of divergence."""


def _run_here(seed: int) -> Result:
    known = [kind for kind, count in _seen.items() if count >= _SHRUNK]
    pair, connect = _pairs[0]
    result = run_one(seed, pair, known)
    if result.kind:
        _seen[result.kind] += 1
    if result.kind == HUNG:
        for coordinator in pair:
            coordinator.close()
        _connect(connect)
    return result

"""Simulate many seeds in several processes, and store the outcome of each in a file."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

import attrs

from .checker import examine
from .outside import ENABLED
from .plan import fault_count, make_plan
from .replay import command, commit
from .run import BROKERS, run

__all__ = ["Outcome", "run_many", "run_one"]

_SHOWN = 20
"""Maximum number of failures that are printed individually."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of one simulated run."""

    seed: int
    members: int = 0
    faults: int = 0
    events: int = 0
    seconds: float = 0.0
    """CPU time, including the checker."""
    wrong: tuple[str, ...] = ()
    """Violations as text, the invariant first; "crash" if the simulation itself failed."""


def run_one(
    seed: int,
    protocol: str = "classic",
    broker: str = BROKERS[0],
    kinds: Collection[str] = ENABLED,
) -> Outcome:
    """Simulate one seed and check it."""
    began = time.process_time()
    plan = make_plan(seed, protocol=protocol, kinds=kinds)
    try:
        simulated = run(plan, broker)
    except Exception:
        return Outcome(seed=seed, wrong=("crash: " + traceback.format_exc(limit=-8),))
    result = examine(simulated.events)
    wrong = [str(violation) for violation in result.violations]
    if result.figures.lost:
        wrong.append(f"S6: {result.figures.lost} records were never delivered")
    return Outcome(
        seed=seed,
        members=len(plan.members),
        faults=fault_count(plan),
        events=len(simulated.events),
        seconds=time.process_time() - began,
        wrong=tuple(wrong),
    )


def run_many(
    seeds: Iterable[int],
    jobs: int,
    kept: Path | None,
    *,
    protocol: str = "classic",
    broker: str = BROKERS[0],
    kinds: Collection[str] = ENABLED,
) -> int:
    """Run all seeds whose outcome is not in the file, which holds one protocol and one broker.
    Return 1 if any run failed."""
    wanted = list(seeds)
    outcomes = [o for o in _known(kept) if o.seed in set(wanted)]
    known = {o.seed for o in outcomes}
    if known:
        print(f"{len(known)} of {len(wanted)} runs are known from {kept}")
    shown = 0
    began = time.monotonic()
    progress = sys.stderr.isatty()
    one = partial(run_one, protocol=protocol, broker=broker, kinds=kinds)
    for outcome in _outcomes([s for s in wanted if s not in known], jobs, one):
        outcomes.append(outcome)
        if kept is not None:
            with kept.open("a") as file:
                file.write(json.dumps(attrs.asdict(outcome)) + "\n")
        if outcome.wrong and shown < _SHOWN:
            shown += 1
            print(f"seed {outcome.seed}: {outcome.wrong[0]}", flush=True)
            again = command(outcome.seed, protocol=protocol, broker=broker, kinds=kinds)
            print(f"  again, at {commit()}: {again}", flush=True)
        if progress or len(outcomes) % 500 == 0:
            wrong = sum(bool(o.wrong) for o in outcomes)
            print(
                f"{len(outcomes)} of {len(wanted)} runs, {wrong} with violations,"
                f" {time.monotonic() - began:.0f} s",
                end="\r" if progress else "\n",
                file=sys.stderr,
                flush=True,
            )
    _report(outcomes)
    return 1 if any(o.wrong for o in outcomes) else 0


def _known(kept: Path | None) -> list[Outcome]:
    if kept is None or not kept.exists():
        return []
    # The last line may be incomplete.
    lines = [line for line in kept.read_text().splitlines() if line.endswith("}")]
    raws = [json.loads(line) for line in lines]
    return [Outcome(**{**raw, "wrong": tuple(raw["wrong"])}) for raw in raws]


def _outcomes(seeds: list[int], jobs: int, one: Callable[[int], Outcome]) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_quiet) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=1)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def _report(outcomes: list[Outcome]) -> None:
    count = len(outcomes)
    if not count:
        return
    print(f"runs               {count}")
    print(f"members            {sum(o.members for o in outcomes)}")
    print(f"faults             {sum(o.faults for o in outcomes)}")
    print(f"events             {sum(o.events for o in outcomes)}")
    print(f"CPU per run        {sum(o.seconds for o in outcomes) / count:.3f} s")
    wrong = Counter(text.split(" ")[0].rstrip(":") for o in outcomes for text in o.wrong)
    print(f"violations         {sum(wrong.values())}")
    for invariant, times in sorted(wrong.items()):
        print(f"  {invariant:16} {times}")

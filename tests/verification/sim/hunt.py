"""Find runs in which a planted bug violates an invariant, and store their seeds for the tests.

The runs with the groups at Apache's coordinator are only found, not stored.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from . import bugs, consumer_bugs, outside_bugs, surrounding_bugs
from . import run as running
from .checker import find_violations
from .events import Event
from .observe import Log
from .outside import BROKERS_OPINIONS
from .plan import make_plan
from .planting import Bug
from .run import BROKERS
from .schedule import Plan, to_json

__all__ = ["BUGS", "KEPT", "hunt", "shown"]

BUGS = {**bugs.BUGS, **consumer_bugs.BUGS, **outside_bugs.BUGS, **surrounding_bugs.BUGS}

KEPT = Path(__file__).with_name("bugs.json")
"""Name of a bug -> seeds of such runs, each with the violated invariants."""

MOST = 300
"""Maximum number of seeds tried per bug."""

_EVENTS = 20_000
"""A run with more events is in a hot loop, and is stopped."""

_CPU = 15
"""CPU seconds after which a run is stopped."""

_AGAIN = 3
"""CPU seconds after which it is stopped again, unless it has ended."""


class _StopSearch(BaseException):
    """Ends a run. A BaseException, because the client would handle an Exception."""


class _Bounded(Log):
    """A log that ends the run at `_EVENTS` events."""

    last: _Bounded

    def __init__(self) -> None:
        super().__init__()
        _Bounded.last = self

    def record_event(self, kind: Any, **fields: Any) -> None:
        if len(self.events) >= _EVENTS:
            raise _StopSearch
        super().record_event(kind, **fields)


def shown(
    seed: int,
    planted: AbstractContextManager[object] | None = None,
    *,
    protocol: str = "classic",
    broker: str = BROKERS[0],
    kinds: Collection[str] = (),
) -> list[str]:
    """Return the invariants violated in a seed's run, sorted; the run may end early. `kinds`: of
    faults, besides `BROKERS_OPINIONS`."""
    plan = make_plan(seed, protocol=protocol, kinds=BROKERS_OPINIONS.union(kinds))
    events = _events(plan, broker, planted)
    return sorted({violation.invariant for violation in find_violations(events)})


def _events(
    plan: Plan, broker: str, planted: AbstractContextManager[object] | None
) -> Sequence[Event]:
    def enough(*_: object) -> None:
        raise _StopSearch

    before = signal.signal(signal.SIGVTALRM, enough)
    with mock.patch.object(running, "Log", _Bounded), planted or nullcontext():
        # Again, as a bug may swallow the first one.
        signal.setitimer(signal.ITIMER_VIRTUAL, _CPU, _AGAIN)
        try:
            running.run(plan, broker)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            # A bug may break the simulation itself: the events recorded so far are checked.
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
    return _Bounded.last.events


def hunt(
    names: Iterable[str],
    jobs: int,
    *,
    broker: str = BROKERS[0],
    seeds: Sequence[int] = range(MOST),
    enough: int = 2,
) -> int:
    """Find seeds that show each bug, trying the stored ones first; print and store them. Return 1
    if a bug is not found."""
    began = time.monotonic()
    # Compiled classes cannot be patched: the processes run the source.
    os.environ["KAFKAGROUP_PURE"] = "1"
    wanted = sorted(names) or sorted(BUGS)
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    survivors = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_quiet, maxtasksperchild=1) as pool:
        # Seeds that showed a bug before are likely to show it again.
        before = {name: [each["seed"] for each in found.get(name, ())] for name in wanted}
        work = (
            (name, broker, [*dict.fromkeys((*before[name], *seeds))], enough) for name in wanted
        )
        for name, caught_by in pool.imap_unordered(_hunt_one, work):
            if caught_by:
                if broker == BROKERS[0]:
                    found[name] = caught_by
                    _keep(found)
                print(f"{name}: {', '.join(_said(seed) for seed in caught_by)}", flush=True)
            else:
                survivors.append(name)
                print(f"{name}: SURVIVES {len(seeds)} runs", flush=True)
    caught = len(wanted) - len(survivors)
    print(f"{caught} of {len(wanted)} bugs caught in {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


def _keep(found: Mapping[str, Any]) -> None:
    lines = (f'  "{name}": {json.dumps(found[name])}' for name in sorted(found) if name in BUGS)
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _said(seed: Mapping[str, Any]) -> str:
    return f"seed {seed['seed']} by {' '.join(seed['by'])}"


def _hunt_one(work: tuple[str, str, Sequence[int], int]) -> tuple[str, list[dict[str, Any]]]:
    name, broker, seeds, enough = work
    bug = BUGS[name]
    show = partial(shown, protocol=bug.protocol, broker=broker)
    found: list[dict[str, Any]] = []
    for seed in seeds:
        if not _has(bug, seed):
            continue
        broken = bug.breaks & set(show(seed, bug.plant(), kinds=bug.kinds))
        # Violations that the run also has without the bug do not count.
        by = sorted(broken - set(show(seed))) if broken else []
        if by:
            found.append({"seed": seed, "by": by})
            if len(found) == enough:
                break
    return name, found


def _has(bug: Bug, seed: int) -> bool:
    """Whether a seed's plan has the kinds of faults that the bug needs."""
    without, all_kinds = BROKERS_OPINIONS - bug.kinds, BROKERS_OPINIONS | bug.kinds
    plans = (make_plan(seed, protocol=bug.protocol, kinds=k) for k in (without, all_kinds))
    return not bug.kinds or len(set(map(to_json, plans))) > 1


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - tracebacks of what a bug breaks go there

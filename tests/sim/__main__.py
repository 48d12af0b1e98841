"""Lives of groups by the thousand, each judged; or one of them again, to the byte.

    python -m tests.sim [--histories 10000] [--start 0] [--jobs 2] [--resume FILE]
    python -m tests.sim --seed N [--without d3,d7,m2] [--shrink] [--story]
    python -m tests.sim --bugs [NAME ...] [--jobs 2]

Each with `--protocol consumer` for groups whose coordinator assigns (KIP-848); else members do.

The first form prints progress, and figures at the end. The second replays one seed, prints what is
wrong with it and, with --story, all that happened; --shrink looks for the least that goes wrong in
the same way. Both exit with 1 when anything is wrong. The third plants bugs, and looks for
the first histories that show each, and keeps their seeds for the tests; 1 when one survives.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from .hunt import hunt
from .judge import examine
from .many import run_many
from .plan import PROTOCOLS, Plan, make_plan
from .replay import command, commit
from .run import History, run
from .shrink import names, shrink, without
from .transcript import transcript


def main() -> int:
    parser = ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run them in")
    parser.add_argument("--resume", type=Path, help="keep results here, and go on from there")
    parser.add_argument("--seed", type=int, help="one history")
    parser.add_argument("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0], help="of the groups")
    parser.add_argument("--backend", choices=("asyncio", "trio"), help="else as the seed says")
    parser.add_argument("--without", default="", help="names of what is left out of the plan")
    parser.add_argument("--shrink", action="store_true", help="find out what else does not matter")
    parser.add_argument("--story", action="store_true", help="tell what happened")
    parser.add_argument("--digest", action="store_true", help="print only the history's digest")
    parser.add_argument("--bugs", nargs="*", metavar="NAME", help="plant these bugs, or all")
    options = parser.parse_args()
    # What the client logs is part of what is wanted here: faults are all that happens.
    logging.disable(logging.CRITICAL)
    if options.bugs is not None:
        return hunt(options.bugs, options.jobs)
    if options.seed is not None:
        return _one(options)
    return run_many(
        range(options.start, options.start + options.histories),
        options.jobs,
        options.resume,
        protocol=options.protocol,
    )


def _one(options: Namespace) -> int:
    whole = make_plan(options.seed, backend=options.backend, protocol=options.protocol)
    left_out = tuple(filter(None, options.without.split(",")))
    history = run(without(whole, left_out))
    if options.digest:
        print(history.digest())
        return 0
    verdict = examine(history.events)
    wrong = _wrong(history)
    if options.shrink and wrong:
        print(f"{len(names(whole)) - len(left_out)} things in it; leaving out what does not matter")
        left_out = shrink(whole, lambda plan: wrong[0] in _wrong(run(plan)))
        history = run(without(whole, left_out))
        verdict = examine(history.events)
    if options.story or options.shrink:
        _tell_plan(history.plan)
        marks = [history.events[i] for v in verdict.violations for i in v.events if i >= 0]
        for line in transcript(history.events, marks=marks):
            print(line)
    for violation in verdict.violations:
        print(violation)
    if verdict.figures.lost:
        print(f"{verdict.figures.lost} records came to nobody")
    print(
        f"seed {options.seed}: {len(history.plan.members)} members, {history.plan.faults} faults,"
        f" {len(history.events)} events, {history.seconds:.2f} s of CPU,"
        f" {len(verdict.violations)} violations; digest {history.digest()}"
    )
    again = command(options.seed, left_out, options.backend, protocol=options.protocol)
    print(f"again, at {commit()}: {again}")
    return 1 if _wrong(history) else 0


def _wrong(history: History) -> list[str]:
    """The invariants that are broken, the first first."""
    verdict = examine(history.events)
    lost = ["S6"] if verdict.figures.lost else []
    return [violation.invariant for violation in verdict.violations] + lost


def _tell_plan(plan: Plan) -> None:
    for member in plan.members:
        print(member)
    print(f"topics {plan.topics}, {plan.backend}, healed at {plan.heal}")


if __name__ == "__main__":
    sys.exit(main())

"""Simulate groups by the thousand and check each run; or repeat one run, to the byte.

    python -m tests.verification.sim [--runs 10000] [--start 0] [--jobs 2] [--resume FILE]
    python -m tests.verification.sim --seed N [--without d3,d7,m2] [--shrink] [--story]
    python -m tests.verification.sim --bugs [NAME ...] [--jobs 2]

With `--protocol consumer` the coordinator assigns (KIP-848); otherwise the leader of the group.
With `--kinds all` runs have every kind of fault of the world outside the group, with `none` none.
With `--broker apache` the group is at Apache Kafka's own coordinator, which needs Java.

The first form prints progress, and figures at the end. The second repeats one seed and prints the
violations; --story prints every event, --shrink leaves out what the violation does not need. Both
exit with 1 if an invariant is violated. The third plants bugs, searches for runs that show
each, and keeps their seeds for the tests, unless the groups are at Apache's coordinator; it exits
with 1 if a bug survives.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from .checker import examine
from .hunt import hunt
from .many import run_many
from .outside import ENABLED, OUTSIDE
from .plan import PROTOCOLS, fault_count, make_plan
from .replay import command, commit
from .run import BROKERS, SimulatedRun, run
from .schedule import Plan
from .shrink import names, shrink, without
from .transcript import transcript


def main() -> int:
    parser = ArgumentParser(
        prog="python -m tests.verification.sim",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", "--histories", type=int, default=10_000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run them in")
    parser.add_argument(
        "--resume", type=Path, help="keep results in this file, and continue from it"
    )
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0], help="of the groups")
    parser.add_argument("--broker", choices=BROKERS, default=BROKERS[0], help="of the groups")
    parser.add_argument(
        "--backend", choices=("asyncio", "trio"), help="default: as the seed chooses"
    )
    parser.add_argument(
        "--without", default="", help="names of actions and members to leave out of the schedule"
    )
    parser.add_argument(
        "--shrink", action="store_true", help="leave out all that the violation does not need"
    )
    parser.add_argument("--story", action="store_true", help="print every event")
    parser.add_argument("--digest", action="store_true", help="print only the digest of the run")
    parser.add_argument(
        "--kinds",
        type=_kinds,
        default=ENABLED,
        metavar="KIND,...",
        help=f"faults of the outside world: all, none, or some of {', '.join(OUTSIDE)}",
    )
    parser.add_argument("--bugs", nargs="*", metavar="NAME", help="plant these bugs, or all")
    options = parser.parse_args()
    # The simulation injects faults: the client's warnings about them would flood the screen.
    logging.disable(logging.CRITICAL)
    if options.bugs is not None:
        return hunt(options.bugs, options.jobs, broker=options.broker)
    if options.seed is not None:
        return _one(options)
    return run_many(
        range(options.start, options.start + options.runs),
        options.jobs,
        options.resume,
        protocol=options.protocol,
        broker=options.broker,
        kinds=options.kinds,
    )


def _kinds(text: str) -> frozenset[str]:
    if text in ("all", "none"):
        return frozenset(OUTSIDE if text == "all" else ())
    kinds = frozenset(text.split(","))
    if unknown := sorted(kinds - OUTSIDE.keys()):
        raise ArgumentTypeError(f"there is no kind {', '.join(unknown)}")
    return kinds


def _one(options: Namespace) -> int:
    whole = make_plan(
        options.seed,
        backend=options.backend,
        protocol=options.protocol,
        kinds=options.kinds,
    )
    left_out = tuple(filter(None, options.without.split(",")))
    broker = options.broker
    simulated = run(without(whole, left_out), broker)
    if options.digest:
        print(simulated.digest())
        return 0
    result = examine(simulated.events)
    wrong = _wrong(simulated)
    if options.shrink and wrong:
        print(
            f"{len(names(whole)) - len(left_out)} parts in the schedule;"
            " leaving out those that the violation does not need"
        )
        left_out = shrink(whole, lambda plan: wrong[0] in _wrong(run(plan, broker)))
        simulated = run(without(whole, left_out), broker)
        result = examine(simulated.events)
    if options.story or options.shrink:
        _print_plan(simulated.plan)
        marks = [simulated.events[i] for v in result.violations for i in v.events if i >= 0]
        for line in transcript(simulated.events, marks=marks):
            print(line)
    for violation in result.violations:
        print(violation)
    if result.figures.lost:
        print(f"{result.figures.lost} records were never delivered")
    print(
        f"seed {options.seed}: {len(simulated.plan.members)} members,"
        f" {fault_count(simulated.plan)} faults, {len(simulated.events)} events,"
        f" {simulated.seconds:.2f} s of CPU,"
        f" {len(result.violations)} violations; digest {simulated.digest()}"
    )
    again = command(
        options.seed,
        left_out,
        options.backend,
        protocol=options.protocol,
        broker=broker,
        kinds=options.kinds,
    )
    print(f"again, at {commit()}: {again}")
    return 1 if _wrong(simulated) else 0


def _wrong(simulated: SimulatedRun) -> list[str]:
    """Return the names of the violated invariants, in order of time."""
    result = examine(simulated.events)
    lost = ["S6"] if result.figures.lost else []
    return [violation.invariant for violation in result.violations] + lost


def _print_plan(plan: Plan) -> None:
    for member in plan.members:
        print(member)
    print(f"topics {plan.topics}, {plan.backend}, healed at {plan.heal}")


if __name__ == "__main__":
    sys.exit(main())

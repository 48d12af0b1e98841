"""Run every attack: how the client ended, the memory it used, and how long it blocked its loop.

    python -m tests.verification.hostile [--backend asyncio|trio] [--only TEXT] [--untested]

Memory is the growth of the client's process at its peak. "held up" is the longest time that a
consumer of a correct broker, in the same loop, waited for a record; "late" is the largest delay of
a task scheduled for every millisecond. KAFKAGROUP_PURE=1 measures the uncompiled library. Exits
with 1 if an attack ended in an unexpected way.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # as pytest does, for what tests share

from .catalogue import ATTACKS
from .trial import trials


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--only", default="", help="attacks with this text in family or name")
    parser.add_argument(
        "--times", type=int, default=1, help="run each so often; the least lateness is shown"
    )
    parser.add_argument(
        "--untested", action="store_true", help="only the long attacks, which no test runs"
    )
    options = parser.parse_args()
    chosen = [
        attack
        for attack in ATTACKS
        if options.only in f"{attack.family}: {attack.name}"
        and (attack.long or not options.untested)
    ]
    failed, peak, seconds, held_up, late = 0, 0.0, 0.0, 0.0, 0.0
    print(f"{'attack':52} {'MiB':>6} {'s':>6} {'held up s':>9} {'late ms':>7}  ended")
    with trials(options.backend) as run:
        for attack in chosen:
            results = [run(attack) for _ in range(options.times)]
            result = min(results, key=lambda result: result.late)
            faults = [fault for each in results for fault in each.faults(attack)]
            failed += bool(faults)
            peak = max(peak, result.mebibytes)
            seconds += result.seconds
            held_up = max(held_up, result.stall)
            late = max(late, result.late)
            print(
                f"{attack.family + ': ' + attack.name:52.52} {result.mebibytes:6.1f}"
                f" {result.seconds:6.2f} {result.stall:9.3f} {result.late * 1000:7.1f}"
                f"  {ascii(result.end)[1:-1]:.100}"
            )
            for fault in faults:
                print(f"    WRONG: {fault}")
    print(
        f"{len(chosen)} attacks in {seconds:.1f} s, {failed} ended wrongly; at most {peak:.1f} MiB,"
        f" {held_up:.3f} s held up, {late * 1000:.1f} ms late"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

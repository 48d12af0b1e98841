"""Send random requests to Apache's group coordinator and the embedded one; compare responses.

    python -m tests.verification.lockstep [--cases 10000] [--start 0] [--jobs 2]
    python -m tests.verification.lockstep --seed N

Prints each divergence with the shortest script that shows it, and exits with 1 if there is one. The
left answer is Apache's. The second form runs one seed, and prints its whole script first.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter

from .many import run_many
from .pairs import apache_and_embedded
from .requests import make_script


def main() -> int:
    parser = ArgumentParser(
        prog="python -m tests.verification.lockstep",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=10_000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run them in")
    parser.add_argument("--seed", type=int, help="run this seed only")
    options = parser.parse_args()
    seeds, jobs = range(options.start, options.start + options.cases), options.jobs
    if options.seed is not None:
        seeds, jobs = range(options.seed, options.seed + 1), 1
        for step in make_script(options.seed).steps:
            print(step)
    began = time.monotonic()
    kinds: Counter[tuple[str, str]] = Counter()
    steps = 0
    for count, result in enumerate(run_many(seeds, jobs, apache_and_embedded), 1):
        steps += result.steps
        if count % 1000 == 0:
            print(
                f"{count} scripts, {sum(kinds.values())} divergences", file=sys.stderr, flush=True
            )
        if result.kind:
            kinds[result.kind] += 1
            print(f"seed {result.seed}: {' '.join(result.kind)}")
            print(result.divergence, flush=True, end="\n" if result.divergence else "")
    seconds = time.monotonic() - began
    for (request, field), count in kinds.most_common():
        print(f"{count} times: {request} {field}")
    print(
        f"{len(seeds)} scripts, {steps} steps, {sum(kinds.values())} divergences,"
        f" {seconds:.0f} s, {len(seeds) / seconds:.0f} scripts/s"
    )
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())

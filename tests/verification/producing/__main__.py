"""Simulate producers and exactly-once groups, and check each run.

python -m tests.verification.producing [--runs 100] [--start 0]
"""

from __future__ import annotations

import sys
import traceback
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from .world import run


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.verification.producing", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    asked = parser.parse_args()
    figures: Counter[str] = Counter()
    violations = 0
    for seed in range(asked.start, asked.start + asked.runs):
        try:
            figures.update(run(seed))
        except Exception:
            violations += 1
            print(f"seed {seed}:", flush=True)
            traceback.print_exc(limit=-3)
    print(f"{asked.runs} runs, {violations} with a violation; {dict(figures)}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

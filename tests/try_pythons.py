"""Run tests/wire and tests/consume, uncompiled, on each of these Pythons.

    python tests/try_pythons.py VERSION ...

Each has an environment of its own, but for the version of the running Python, which also runs the
tests of the planted bugs. Ends with a line for each version that says whether it was there.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence

import environments
import parts


def main(versions: Sequence[str]) -> int:
    outcomes = []
    for version in versions:
        if platform.python_version().startswith(f"{version}."):
            code = parts.run("wire") or parts.run("bugs")
        elif python := find_python(version):
            code = parts.run("wire", environments.make(environments.wire(version), python))
        else:
            outcomes.append(f"{version}: SKIPPED, no such Python here")
            continue
        if code:
            return code
        outcomes.append(f"{version}: passed")
    print("== tests/wire and tests/consume, uncompiled:")
    for outcome in outcomes:
        print(f"     {outcome}")
    return 0


def find_python(version: str) -> str:
    """Return the path of a Python that can make environments; empty if there is none."""
    command = ["sh", f"{environments.ROOT}/tests/usable_python.sh", version]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One measurement of one client in a separate process, unaffected by the previous one.

`run` starts the process and returns the result of the `trial` function of a benchmark's module; run
as a program, this file is that process. Arguments and results are JSON.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["run"]

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "tests.bench"
_TIMEOUT = 300.0
"""Seconds, beyond those that a trial was asked to last, after which it counts as stuck."""


def run(
    module: str, *, pure: bool = False, lasts: float = 0.0, **arguments: object
) -> dict[str, Any]:
    """Call `trial(**arguments)` of a module here in a new process; with `pure`, uncompiled.
    `lasts`: the planned seconds of the trial. Raises: CalledProcessError, TimeoutExpired. The
    trial's stderr is shown."""
    done = subprocess.run(
        [sys.executable, "-m", f"{_PACKAGE}.trial", module, json.dumps(arguments)],
        cwd=_ROOT,
        env=os.environ | ({"KAFKAGROUP_PURE": "1"} if pure else {}),
        stdout=subprocess.PIPE,
        timeout=lasts + _TIMEOUT,
        check=True,
    )
    response: dict[str, Any] = json.loads(done.stdout)
    return response


if __name__ == "__main__":
    # A client's warnings about intended faults do not belong to the benchmark's output.
    logging.disable(logging.WARNING)
    name, given = sys.argv[1:]
    json.dump(import_module(f"{_PACKAGE}.{name}").trial(**json.loads(given)), sys.stdout)

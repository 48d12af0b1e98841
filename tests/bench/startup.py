"""The cost of an import: CPU time of an interpreter that does nothing else.

python -m tests.bench.startup [--rounds N] [--json FILE]

Each round starts one interpreter for each import, in turn. Bytecode is cached as in an
installation: compiling it does not count. `python` alone takes some of the time, and so do asyncio
and anyio, which a client of either imports anyway. In a source tree, ours also compares compiled
modules with their sources; a wheel has no such check.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory

from .command import Settings, main
from .figures import OURS, Figure, Target

__all__ = ["measure"]

ROUNDS = 4
"""Times the rounds of the settings: an import is short, and the machine is what varies."""

PROGRAMS = {
    "asyncio, anyio": "import asyncio, anyio",
    OURS: "from kafkagroup import Consumer",
    "aiokafka": "from aiokafka import AIOKafkaConsumer",
}

ABOVE = Target(50, 40.0)
"""Milliseconds above asyncio and anyio."""

NO_SLOWER = Target(50, 1.0)


def measure(_: str, settings: Settings) -> list[Figure]:
    """Return milliseconds above asyncio and anyio, and the ratio to aiokafka."""
    with TemporaryDirectory() as bytecode:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        rounds = [
            {name: _cpu(program, environment) for name, program in PROGRAMS.items()}
            for _ in range(settings.rounds * ROUNDS + 1)
        ][1:]  # the first has compiled all
    whole = tuple(one[OURS] / one["aiokafka"] for one in rounds)
    return [
        *(
            Figure(
                what="import: ms of CPU above asyncio and anyio",
                client=name,
                values=tuple(one[name] - one["asyncio, anyio"] for one in rounds),
                target=ABOVE if name == OURS else None,
            )
            for name in (OURS, "aiokafka")
        ),
        Figure(
            what="import: CPU, times aiokafka's",
            client=OURS,
            values=whole,
            target=NO_SLOWER,
            note="with the interpreter, asyncio and anyio",
        ),
    ]


def _cpu(program: str, environment: Mapping[str, str]) -> float:
    """Return the milliseconds of CPU that an interpreter takes for a program, from its start."""
    program += "; import time; print(time.process_time())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout) * 1000


if __name__ == "__main__":
    main(__doc__, {"startup": measure})

"""The command that repeats a simulated run, and the commit to run it on."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from .outside import ENABLED

__all__ = ["command", "commit"]


def command(
    seed: int,
    left_out: Sequence[str] = (),
    backend: str | None = None,
    *,
    protocol: str = "classic",
    broker: str = "embedded",
    kinds: Collection[str] = ENABLED,
) -> str:
    """Return the command."""
    parts = ["python -m tests.verification.sim", f"--seed {seed}"]
    parts += [f"--protocol {protocol}"] if protocol != "classic" else []
    parts += [f"--broker {broker}"] if broker != "embedded" else []
    parts += [f"--kinds {','.join(sorted(kinds))}"] if kinds != ENABLED else []
    parts += [f"--backend {backend}"] if backend else []
    parts += [f"--without {','.join(left_out)}"] if left_out else []
    return " ".join([*parts, "--story"])


def commit() -> str:
    """Return the current commit, marked if files differ from it."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(
            asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "an unknown commit"
    return found.stdout.strip()

"""Checks of the installed package itself; they need no cluster."""

from __future__ import annotations

from collections.abc import Iterator

from kafkagroup.admin.doctor.findings import Finding, warning
from kafkagroup.runtime.client import uncompiled

__all__ = ["examine_installation"]


def examine_installation() -> Iterator[Finding]:
    """Yield a warning if the package is not compiled."""
    if not uncompiled.is_compiled():
        yield warning("installation", "", uncompiled.UNCOMPILED, uncompiled.advice())

"""The notice that kafkagroup is not compiled. Where there is no C compiler, pip installs it
uncompiled without an error, and it is several times slower."""

from __future__ import annotations

import logging
import os

from kafkagroup.wire.records import COMPILED

__all__ = ["UNCOMPILED", "advice", "is_compiled", "log_once", "notes"]

logger = logging.getLogger(__name__)

UNCOMPILED = "kafkagroup is not compiled: records take up to 6 times as much CPU"

_ADVICE = (
    "install a wheel for this platform; or install a C compiler and Python's headers (on Debian,"
    " gcc and python3-dev), then kafkagroup again, with pip's options --force-reinstall and"
    " --no-cache-dir"
)
_ADVICE_IF_REQUESTED = "KAFKAGROUP_PURE is set in the environment; unset it"

_was_logged = False


def is_compiled() -> bool:
    """Return whether the compiled modules are in use."""
    return COMPILED


def advice() -> str:
    """Return what to do if the compiled modules are not in use."""
    return _ADVICE_IF_REQUESTED if _is_requested() else _ADVICE


def notes() -> tuple[str, ...]:
    """Return the notice, with the advice; nothing if the compiled modules are in use."""
    return () if is_compiled() else (f"{UNCOMPILED}; {advice()}",)


def log_once() -> None:
    """Log the notice if no client of this process has logged it: as a warning, or as INFO if
    KAFKAGROUP_PURE requests the uncompiled modules."""
    global _was_logged
    if _was_logged:
        return
    _was_logged = True
    for note in notes():
        logger.log(logging.INFO if _is_requested() else logging.WARNING, note)


def _is_requested() -> bool:
    """Return whether the environment requests the uncompiled modules."""
    return bool(os.environ.get("KAFKAGROUP_PURE"))

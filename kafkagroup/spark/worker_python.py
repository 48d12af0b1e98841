"""Check that the Python of Spark's workers has this package, before a query fails without it."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from kafkagroup.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["check_worker_python"]

logger = logging.getLogger(__name__)

_NEEDED = ("kafkagroup", "anyio", "attrs", "pyarrow")
_LOOK = f"import importlib.util as u; print(*(n for n in {_NEEDED!r} if not u.find_spec(n)))"
_TIMEOUT = 20.0
"""Seconds; a machine may be too busy for an answer, which then counts as none."""


def check_worker_python(context: SparkContext) -> None:
    """Check that the Python of workers finds the package. Nothing is known of executors elsewhere
    but their Python's name, so that the same on this machine is only a warning.

    Raises: ConfigurationError, which names PYSPARK_PYTHON, if they run on this machine.
    """
    if context._python_includes:
        return  # the package may be in a file that is sent to them
    given = str(context.pythonExec)
    python = shutil.which(given)
    is_here = str(context.master).startswith("local")
    if python == sys.executable or (python is None and not is_here):
        return
    if python is None:
        lack = f"the Python of Spark's workers is {given!r}, which does not exist"
    elif missing := _missing(python):
        lack = f"the Python of Spark's workers, {python}, has no {missing}"
    else:
        return
    advice = (
        f"{lack}: set the environment variable PYSPARK_PYTHON to one with kafkagroup[spark], such"
        f" as {sys.executable}, before the session is created"
    )
    if is_here:
        raise ConfigurationError(advice)
    logger.warning("%s; on executors it may be another one", advice)


def _missing(python: str) -> str:
    """Return which packages that Python does not find."""
    try:
        done = subprocess.run(
            [python, "-c", _LOOK], capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ", ".join(done.stdout.split())

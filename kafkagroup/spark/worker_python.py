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
# Prints the packages that are missing, and does not import the others, which takes time.
_CHECK = f"import importlib.util as u; print(*(n for n in {_NEEDED!r} if not u.find_spec(n)))"
_TIMEOUT = 20.0
"""Seconds. On a busy machine Python may take longer; then no package counts as missing."""


def check_worker_python(context: SparkContext) -> None:
    """Check that the Python of the workers finds the package. If the workers run on other machines,
    only the name of their Python is known. If the Python of that name on this machine lacks the
    package, this logs a warning.

    Raises: ConfigurationError, which names PYSPARK_PYTHON, if the workers run on this machine.
    """
    # Private, and without a public twin: the Python files that Spark sends to the workers.
    if context._python_includes:
        return  # the package may be in one of them
    name = str(context.pythonExec)
    python = shutil.which(name)
    is_here = str(context.master).startswith("local")
    if python == sys.executable or (python is None and not is_here):
        return
    if python is None:
        lack = f"the Python of Spark's workers is {name!r}, which does not exist"
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
    """Return the names of the needed packages that a Python does not find; "" if it finds all, or
    cannot be run."""
    try:
        done = subprocess.run(
            [python, "-c", _CHECK], capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ", ".join(done.stdout.split())

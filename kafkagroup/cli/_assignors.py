"""Find assignors by name: the library's own, or `module:function`."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

import kafkagroup.assign
from kafkagroup.assign import Assignor, GroupSpec, protocol_name, weighted_sticky
from kafkagroup.assign.plan import Plan, plan
from kafkagroup.errors import ConfigurationError, KafkaGroupError

__all__ = ["ASSIGNORS", "find_assignor", "try_plan"]

ASSIGNORS: dict[str, Assignor] = {
    protocol_name(public): public
    for public in (getattr(kafkagroup.assign, name) for name in kafkagroup.assign.__all__)
    if hasattr(public, "protocol_name")
} | {"weighted-sticky": weighted_sticky()}
"""Name on the wire -> the assignor, for all that `kafkagroup.assign` makes public.
`weighted_sticky` is a function that returns an assignor: here is the one with its defaults."""


def find_assignor(name: str) -> Assignor:
    """Return the assignor with a name of `ASSIGNORS`, or import `module:function`. Raises:
    ConfigurationError."""
    if (known := ASSIGNORS.get(name)) is not None:
        return known
    module, colon, function = name.partition(":")
    if not (colon and module and function):
        raise ConfigurationError(
            f"there is no assignor {name!r}; expected {', '.join(sorted(ASSIGNORS))},"
            " or your own as module:function"
        )
    if "" not in sys.path:
        # The installed script, unlike `python -m`, does not import from the working directory.
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), function)
    except Exception as error:
        raise ConfigurationError(f"assignor {name!r}: {_located(error)}") from error
    if not callable(found):
        raise ConfigurationError(f"assignor {name!r} is {found!r}; expected a function")
    protocol_name(found)  # raises an error if it has no name
    assignor: Assignor = found
    return assignor


def try_plan(spec: GroupSpec, assignor: Assignor, was: GroupSpec) -> Plan:
    """Compute the plan of a rebalance of `spec`; `was`: the group before the change.
    Raises: ConfigurationError, also for an exception in the assignor."""
    try:
        return plan(spec, assignor, was=was)
    except KafkaGroupError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"assignor {protocol_name(assignor)!r} raised {_located(error)}"
        ) from error


def _located(error: Exception) -> str:
    """Return the error as text; with the line that raised it, unless that is in this file or in the
    import system."""
    text = f"{type(error).__name__}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    # The error for a missing module comes from the import system, that for a missing function from
    # this file.
    is_own = last.filename == __file__ or last.filename.startswith("<frozen ")
    return text if is_own else f"{text} ({last.filename}, line {last.lineno})"

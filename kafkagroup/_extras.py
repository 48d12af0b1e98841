"""Public names that need an extra. If it is not installed, a stand-in takes the name's place.

`help()`, completion in a REPL, `from ... import *` and editors read each name of a package. An
ImportError there would hide all the others. So importing the stand-in raises no error; it has no
attributes for `hasattr`, and no instances for `isinstance`. Calling it, deriving a class from it
and reading an attribute raise an error that says what to install.
"""

from __future__ import annotations

from abc import ABCMeta
from functools import cache
from importlib import import_module
from typing import NoReturn

__all__ = ["load_or_stand_in", "require"]


def require(library: str, *, what: str, extra: str) -> None:
    """Import a library of an extra. Raises: ImportError that names what needs it, and the extra."""
    try:
        import_module(library)
    except ImportError as error:
        raise ImportError(_needs(what, extra, error)) from error


def load_or_stand_in(package: str, module: str, name: str, *, extra: str) -> object:
    """Return what `module` of a package calls `name`; where a library of `extra` is missing, a
    stand-in of that name.

    The import is tried at each call, so a notebook finds what it installs.
    """
    try:
        return getattr(import_module(f"{package}.{module}"), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "kafkagroup":
            raise  # a fault of this library
        return _stand_in(package, name, _needs(f"{package}.{name}", extra, error))


def _needs(what: str, extra: str, error: ImportError) -> str:
    return f"{what} needs the extra {extra}: pip install 'kafkagroup[{extra}]' ({error})"


class _StandIn(ABCMeta):  # a class may derive from a stand-in and an abstract class
    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(cls.__doc__)


@cache  # pickle and `is` expect one class for one name
def _stand_in(package: str, name: str, needed: str) -> type:
    def refuse(*args: object, **keywords: object) -> NoReturn:
        raise ImportError(needed)

    body = {"__doc__": needed, "__module__": package}
    return _StandIn(name, (), {**body, "__new__": refuse, "__init_subclass__": refuse})

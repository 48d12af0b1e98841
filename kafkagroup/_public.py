"""Public names: the package that a class reports, names that are imported on first use, and what to
write instead of a name that is not there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ForwardRef, TypeVar

__all__ = ["late_names", "names_in_all", "public"]

C = TypeVar("C", bound=type)


def public(cls: C) -> C:
    """Set the module of a class in `kafkagroup.__all__` to `kafkagroup`.

    Tracebacks, `repr` and pickles then show the name that users import, so the class may move
    between modules of the package. The module that defines it still has it, for pickles that name
    that module.
    """
    # Without their module, `typing.get_type_hints` would look for the names in annotations in
    # `kafkagroup`, which lacks most of them.
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        # A NamedTuple has wrapped its strings already, without their module.
        text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
        if isinstance(text, str):
            cls.__annotations__[name] = ForwardRef(text, module=cls.__module__, is_class=True)
    cls.__module__ = "kafkagroup"
    setattr(sys.modules["kafkagroup"], cls.__name__, cls)
    return cls


def late_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a public module (PEP 562). It imports `names` on first use. For
    a name that another client or another module has, its error says what to write.

    `names`: name -> where it is, such as "kafkagroup.errors.BrokerError".
    """

    def __getattr__(name: str) -> Any:
        if (path := names.get(name)) is not None:
            home, _, attribute = path.rpartition(".")
            value = getattr(import_module(home), attribute)
            setattr(sys.modules[module], name, value)
            return value
        # Other names may be submodules, which `from kafkagroup import ...` looks up here first.
        if name[:1].isupper() or name.startswith(_FUNCTIONS) or name.endswith("_assignor"):
            raise import_module("kafkagroup._foreign_names").unknown_import(module, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def names_in_all(module: str) -> Callable[[], list[str]]:
    """Return the `__dir__` of a public module (PEP 562): `__all__`, which has names that are
    imported on first use."""
    return lambda: sorted(sys.modules[module].__all__)


_FUNCTIONS = ("decode_", "encode_")
"""Prefixes of public functions that have moved from `kafkagroup` to its modules."""

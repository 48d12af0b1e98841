"""Have public classes report the package that users import them from."""

from __future__ import annotations

import sys
from typing import TypeVar

__all__ = ["public"]

C = TypeVar("C", bound=type)


def public(cls: C) -> C:
    """Set the module of a class in `kafkagroup.__all__` to `kafkagroup`.

    Tracebacks, `repr` and pickles then show the name that users import, so the class may move
    between modules of the package. The module that defines it still has it, for pickles that name
    that module.
    """
    cls.__module__ = "kafkagroup"
    # `typing.get_type_hints` resolves the names in annotations in the reported module.
    setattr(sys.modules["kafkagroup"], cls.__name__, cls)
    return cls

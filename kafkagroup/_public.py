"""Public classes report the package that they are imported from."""

from __future__ import annotations

import sys
from typing import TypeVar

__all__ = ["public"]

C = TypeVar("C", bound=type)


def public(cls: C) -> C:
    """Have a class that `kafkagroup.__all__` names report `kafkagroup` as its module.

    Tracebacks, `repr` and pickles then name what users import, so the class may move between the
    modules of the package. Its old module still has it, for pickles that name that.
    """
    cls.__module__ = "kafkagroup"
    # `typing.get_type_hints` looks there for the other classes that annotations name.
    setattr(sys.modules["kafkagroup"], cls.__name__, cls)
    return cls

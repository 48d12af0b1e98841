"""Have public classes report the package that users import them from."""

from __future__ import annotations

import sys
from typing import ForwardRef, TypeVar

__all__ = ["public"]

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

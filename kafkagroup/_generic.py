"""The types of keys and values: what `Consumer`, `Record` and `Batch` are generic in.

At run time they can be subscripted, and mean nothing: defaults of type variables (PEP 696) are for
type checkers, which know `typing_extensions` without its being installed.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Generic

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar as _TypeVar

    def TypeVar(name, *, default, covariant):
        return _TypeVar(name, covariant=covariant)


__all__ = ["K_co", "Keyed", "V_co"]

K_co = TypeVar("K_co", default="bytes | None", covariant=True)
"""Of the keys; bytes or None without a deserializer."""

V_co = TypeVar("V_co", default="bytes | None", covariant=True)
"""Of the values, likewise."""

if TYPE_CHECKING:

    class Keyed(Generic[K_co, V_co]):
        """Has to do with records of these keys and values."""

else:

    class Keyed:
        __slots__ = ()

        # Not `Generic`: that would ask for both types where type checkers fill in the default.
        __class_getitem__ = classmethod(GenericAlias)

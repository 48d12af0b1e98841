"""The type parameters of `Consumer`, `Record` and `Batch`: the types of keys and values.

At run time the classes can be subscripted, without effect. Only type checkers use the defaults of
the type variables (PEP 696), and know `typing_extensions` even if it is not installed.
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


__all__ = ["K_co", "KeyValueGeneric", "V_co"]

K_co = TypeVar("K_co", default="bytes | None", covariant=True)
"""The type of keys; bytes or None without a deserializer."""

V_co = TypeVar("V_co", default="bytes | None", covariant=True)
"""The type of values; bytes or None without a deserializer."""

if TYPE_CHECKING:

    class KeyValueGeneric(Generic[K_co, V_co]):
        """Base of `Consumer`, `Batch` and `Batches`, which are generic in the types of keys and
        values."""

else:

    class KeyValueGeneric:
        __slots__ = ()

        # Not `Generic`, which requires both types even where type checkers apply the default.
        __class_getitem__ = classmethod(GenericAlias)

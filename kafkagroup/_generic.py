"""The type parameters of the clients, `Record` and `Batch`: the types of keys and values.

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

    def TypeVar(name, *, default, covariant=False, contravariant=False):
        return _TypeVar(name, covariant=covariant, contravariant=contravariant)


__all__ = ["K_co", "K_contra", "KeyValueGeneric", "KeyValueSink", "V_co", "V_contra"]

K_co = TypeVar("K_co", default="bytes | None", covariant=True)
"""The type of keys; bytes or None without a deserializer."""

V_co = TypeVar("V_co", default="bytes | None", covariant=True)
"""The type of values; bytes or None without a deserializer."""

K_contra = TypeVar("K_contra", default="bytes", contravariant=True)
"""The type of the keys that a producer takes; bytes without a serializer."""

V_contra = TypeVar("V_contra", default="bytes | None", contravariant=True)
"""The type of the values that a producer takes; bytes or None without a serializer."""

if TYPE_CHECKING:

    class KeyValueGeneric(Generic[K_co, V_co]):
        """Base of `Consumer`, `Batch` and `Batches`, which are generic in the types of keys and
        values."""

    class KeyValueSink(Generic[K_contra, V_contra]):
        """Base of `Producer`, which is generic in the types that it takes."""

else:

    class KeyValueGeneric:
        __slots__ = ()

        # Not `Generic`, which requires both types even where type checkers apply the default.
        __class_getitem__ = classmethod(GenericAlias)

    KeyValueSink = KeyValueGeneric

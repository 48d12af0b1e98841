"""A sequence of structs, each of which is created on access.

While the garbage collector traverses every struct that exists, it stops all threads. It does not
traverse a tuple that holds only numbers, strings and other such tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

__all__ = ["Rows"]

T_co = TypeVar("T_co", covariant=True)


class Rows(Sequence[T_co], Generic[T_co]):
    """The structs that `make` creates from `rows`, tuples of field values: a new object on each
    access. Equal to a tuple of the same structs."""

    __slots__ = ("_make", "_rows")

    def __init__(self, make: Callable[[tuple[Any, ...]], T_co], rows: tuple[Any, ...]) -> None:
        self._make = make
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[T_co]:
        return map(self._make, self._rows)

    @overload
    def __getitem__(self, index: int) -> T_co: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...

    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        if isinstance(index, slice):
            return tuple(map(self._make, self._rows[index]))
        return self._make(self._rows[index])

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, Rows) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

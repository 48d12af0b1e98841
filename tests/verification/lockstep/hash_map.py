"""A dict that iterates as Java's `HashMap` does, for keys that are strings.

Kafka keeps a group's members in a `HashMap`: its order decides which member becomes the leader when
the leader leaves, and which protocol wins a tie.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

from kafkagroup.testing.embedded.java_hash import bucket

__all__ = ["JavaHashMap"]


class JavaHashMap(dict[str, Any]):
    """Entries in one bucket keep the order of insertion; a table never shrinks."""

    def __init__(self) -> None:
        super().__init__()
        self._buckets = 16

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > self._buckets * 3 // 4:
            self._buckets *= 2

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), key=self._bucket))

    def _bucket(self, key: str) -> int:
        return bucket(key, self._buckets)

    def keys(self) -> Any:
        return KeysView(self)

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

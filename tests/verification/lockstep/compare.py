"""Compare two responses to one request, field by field.

Differences that are not reported:

- Member ids: each coordinator draws its own. They are compared by the order in which they appear.
- The order of lists: Kafka's is that of its hash tables.
- `error_message`: text for people, which the embedded coordinator mostly omits.
- `throttle_time_ms`: quotas are no part of a coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from kafkagroup.wire.schema import Versions, fields_of

__all__ = ["Difference", "Names", "compare"]

_LEFT_OUT = frozenset({"error_message", "throttle_time_ms"})

_MEMBER_IDS = frozenset({"member_id", "leader"})


@attrs.frozen
class Difference:
    """A field that is not equal: where it is, and both values."""

    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.left!r} and {self.right!r}"


class Names:
    """Names for the member ids of one coordinator, in the order in which they appear."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {"": ""}

    def of(self, member_id: str) -> str:
        return self._names.setdefault(member_id, f"member {len(self._names)}")


def compare(
    left: Any, right: Any, version: int, left_names: Names, right_names: Names
) -> list[Difference]:
    """Return how two responses in this version differ."""
    return list(
        _compare(_plain(left, version, left_names), _plain(right, version, right_names), "")
    )


def _plain(value: Any, version: int, names: Names) -> Any:
    """Return the value with messages as dicts, lists in order, and member ids replaced."""
    if isinstance(value, tuple):
        return sorted((_plain(item, version, names) for item in value), key=repr)
    if not hasattr(type(value), "__declared__"):
        return bytes(value) if isinstance(value, memoryview) else value
    found = {}
    for name, spec in fields_of(type(value)).items():
        if name in _LEFT_OUT or not _has(version, spec.versions, spec.tagged):
            continue
        field = getattr(value, name)
        is_id = name in _MEMBER_IDS and field is not None
        found[name] = names.of(field) if is_id else _plain(field, version, names)
    return found


def _has(version: int, versions: Versions, tagged: Versions) -> bool:
    return version in versions or version in tagged


def _compare(left: Any, right: Any, path: str) -> Iterator[Difference]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in left:
            yield from _compare(left[name], right[name], f"{path}.{name}".lstrip("."))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _compare(one, other, f"{path}[{index}]")
    elif left != right:
        yield Difference(path, left, right)

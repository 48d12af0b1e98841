"""Strict reading of untrusted JSON: an error says where a wrong value is, what was found, and what
was expected.

Paths are written as in JSONPath: `$.members.a.topics[0]`. For a wrong value all functions raise
ConfigurationError and no other error: the author of the document has to correct it.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

from kafkagroup.errors import ConfigurationError

__all__ = [
    "base64",
    "child_path",
    "entries",
    "fields",
    "integer",
    "list_of",
    "mapping",
    "non_empty",
    "nullable",
    "number",
    "parse",
    "partition_key",
    "refuse",
    "shown",
    "string",
]

T = TypeVar("T")

_INT32 = 2**31 - 1

_SHOWN = 40
"""Most characters of a wrong value that an error shows."""


def parse(text: str | bytes, what: str, most: int) -> object:
    """Parse a document. Errors call it `what`; `most` is its greatest length, in characters or
    bytes. A name twice in one object, NaN and Infinity are errors.
    """
    if len(text) > most:
        unit = "characters" if isinstance(text, str) else "bytes"
        raise ConfigurationError(f"{what}: found {len(text)} {unit}; expected at most {most}")

    def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"{what}: found an object with {twice!r} twice; expected once")
        return found

    def constant(name: str) -> NoReturn:
        raise ConfigurationError(f"{what}: found {name}; expected finite numbers")

    try:
        return json.loads(text, object_pairs_hook=object_of, parse_constant=constant)
    except ConfigurationError:
        raise
    except (ValueError, RecursionError) as error:
        # ValueError: also for bytes that are not UTF-8, and for an integer of thousands of digits.
        # RecursionError: for thousands of nested brackets.
        raise ConfigurationError(f"{what}: not valid JSON: {error}") from None


def fields(
    value: object, path: str, *, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, object]:
    """Return the fields of an object. A missing required field or an unknown field is an error."""
    found = mapping(value, path)
    names = ", ".join((*required, *optional))
    for name in found:
        if name not in (*required, *optional):
            refuse(child_path(path, name), "a field that is not known", f"one of {names}")
    for name in required:
        if name not in found:
            refuse(f"{path}.{name}", "nothing", "this field")
    return found


def entries(value: object, path: str) -> Iterable[tuple[str, object, str]]:
    """Yield the name, value and path of each entry of an object; names must not be empty."""
    for name, entry in mapping(value, path).items():
        non_empty(name, path)
        yield name, entry, child_path(path, name)


def mapping(value: object, path: str) -> dict[str, object]:
    """Read an object, without a check of its entries."""
    if not isinstance(value, dict):
        refuse(path, shown(value), "an object")
    return value


def list_of(value: object, path: str, of: Callable[[object, str], T]) -> list[T]:
    """Read a list; `of` reads each entry."""
    if not isinstance(value, list):
        refuse(path, shown(value), "a list")
    return [of(entry, f"{path}[{index}]") for index, entry in enumerate(value)]


def nullable(value: object, path: str, of: Callable[[object, str], T]) -> T | None:
    """Read null, or a value by `of`."""
    return None if value is None else of(value, path)


def string(value: object, path: str) -> str:
    """Read a string."""
    if not isinstance(value, str):
        refuse(path, shown(value), "a string")
    return value


def non_empty(value: object, path: str) -> str:
    """Read a string that is not empty."""
    name = string(value, path)
    if not name:
        refuse(path, "an empty name", "a character or more")
    return name


def base64(value: object, path: str) -> bytes:
    """Read bytes, which are written in base64."""
    text = string(value, path)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        refuse(path, shown(value), "bytes in base64")


def integer(value: object, path: str, *, least: int = 0, instead: str = "") -> int:
    """Read an integer from `least` to the greatest of 32 bits. The error appends `instead`, such as
    ", or an object", to what was expected."""
    # bool is a subclass of int.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _INT32:
        refuse(path, shown(value), f"an integer from {least} to {_INT32}{instead}")
    return value


def partition_key(name: str, path: str) -> int:
    """Read a partition number that is an object's key; "00" and "1_0", which `int` takes, are
    errors."""
    if not (name.isascii() and name.isdecimal()) or (len(name) > 1 and name[0] == "0"):
        refuse(path, "that key", "a partition's number")
    # Longer names are out of range; `int` raises ValueError for thousands of digits.
    return integer(int(name) if len(name) <= 10 else _INT32 + 1, path)


def number(value: object, path: str, *, most: float, positive: bool = False) -> float:
    """Read a number from 0 (if `positive`, above 0) to `most`."""
    # bool is a subclass of int.
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value <= most
        or (positive and not value)
    ):
        least = "above 0" if positive else "from 0"
        refuse(path, shown(value), f"a number {least} to {most:g}")
    return float(value)


def child_path(path: str, name: str) -> str:
    """Return the path of an object's entry."""
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]"


def shown(value: object) -> str:
    """Return a wrong value as the error shows it; of an object or a list, which may be large, only
    the type."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def refuse(path: str, found: str, expected: str) -> NoReturn:
    """Raise ConfigurationError for the value at `path`."""
    raise ConfigurationError(f"{path}: found {found}; expected {expected}")

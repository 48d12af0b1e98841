"""The lowest versions that `pyproject.toml` promises: `make test-lowest` installs them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,]+)\])?(>=(?P<floor>[\d.]+))?")


def lowest(project: Mapping[str, Any], extras: Sequence[str]) -> dict[str, str]:
    """Return the lowest promised version of each package: of the dependencies, and of these extras
    with those that they include. The highest of several floors counts.

    Raises: ValueError for a requirement without a floor.
    """
    floors: dict[str, str] = {}
    for requirement in requirements(project, extras):
        match = _REQUIREMENT.match(requirement)
        if match is None or match["floor"] is None:
            raise ValueError(f"{requirement!r} of pyproject.toml has no lowest version")
        name, floor = match["name"].lower(), match["floor"]
        floors[name] = max(floors.get(name, "0"), floor, key=numbers)
    return floors


def requirements(project: Mapping[str, Any], extras: Iterable[str]) -> Iterator[str]:
    """Return the dependencies, and those of the extras."""
    yield from project["dependencies"]
    waiting, seen = list(extras), set[str]()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            match = _REQUIREMENT.match(requirement)
            if match is not None and match["name"] == project["name"]:
                waiting += match["extras"].split(",")
            else:
                yield requirement


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))

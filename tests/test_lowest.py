"""The lowest versions that are promised: each requirement has one, and the extras are followed."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from lowest import PYPROJECT, lowest

PROJECT: dict[str, Any] = {
    "name": "it",
    "dependencies": ["anyio>=4.15", "attrs>=23.2"],
    "optional-dependencies": {
        "all": ["it[more,most]", "uvloop>=0.21; sys_platform != 'win32'"],
        "more": ["Pandas>=2.2,<3", "attrs>=23.10"],
        "most": ["it[more]", "mkdocstrings[python]>=1.0"],
        "none": ["free"],
    },
}


def test_the_highest_floor_of_all_extras_counts() -> None:
    assert lowest(PROJECT, []) == {"anyio": "4.15", "attrs": "23.2"}
    assert lowest(PROJECT, ["all"]) == {
        "anyio": "4.15",
        "attrs": "23.10",
        "uvloop": "0.21",
        "pandas": "2.2",
        "mkdocstrings": "1.0",
    }


def test_a_requirement_without_a_floor_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'free' of pyproject\.toml has no lowest version"):
        lowest(PROJECT, ["none"])


def test_every_requirement_of_this_project_has_a_floor() -> None:
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    assert lowest(project, project["optional-dependencies"])["anyio"] == "4.15"

"""CONTRIBUTING.md and the pre-commit hooks name existing targets, files, markers and tools."""

from __future__ import annotations

import re
import tomllib

import yaml
from doc_blocks import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"][
    "ini_options"
]


def test_every_target_is_in_the_makefile() -> None:
    targets = set(re.findall("`make ([a-z-]+)", TEXT)) | set(
        re.findall("^make ([a-z-]+)", TEXT, re.M)
    )
    assert {"setup", "test-fast", "test", "test-rest", "test-all", "check"} <= targets
    assert targets <= set(re.findall("^([a-z-]+):", MAKEFILE, re.M))


def test_every_path_exists() -> None:
    paths = set(re.findall("`((?:tests|docs|kafkagroup)/[^` ]*)`", TEXT))
    paths |= set(re.findall(r"-m pytest (\S+)`", TEXT))
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_folder_with_long_tests_is_named() -> None:
    """CONTRIBUTING names the tests that `make test` leaves out."""
    long = {
        test.relative_to(ROOT).parts[1]
        for test in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"mark\.long|[_]IS_LONG", test.read_text("utf-8"))
    }
    (listed,) = re.findall("### What only .*?\n(.*?)###", TEXT, re.S)
    assert long
    assert [folder for folder in long if f"`tests/{folder}" not in listed] == []


def test_the_markers_are_registered_with_pytest() -> None:
    there = {marker.partition(":")[0] for marker in PYTEST["markers"]}
    assert {"slow", "long", "serial"} <= there
    assert all(f"`{marker}`" in TEXT for marker in ("slow", "long", "serial"))


def test_make_setup_installs_the_tools_of_the_hooks() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    (local,) = config["repos"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in local["hooks"]}
    assert (local["repo"], tools) == ("local", {"codespell", "ruff", "mypy"})
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = {
        re.split(r"[<>=\[]", need)[0] for need in project["optional-dependencies"]["check"]
    }
    assert tools <= installed

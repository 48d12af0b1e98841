"""docs/architecture.md cites existing packages, files and identifiers."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import packages
import pytest
from doc_blocks import ROOT

import kafkagroup
from kafkagroup._option_kinds import declared
from kafkagroup.options import ConsumerOptions

PACKAGE = ROOT / "kafkagroup"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")

ITEMS = [text for text in re.split(r"\n\n|\n(?=\d\. |\|)", PAGE) if "`" in text]
"""Paragraphs, list items and rows of tables."""

PUBLIC = {*kafkagroup.__all__, *declared(ConsumerOptions)}

KAFKA = {"REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"}
"""Names of Kafka's."""


def located(path: str) -> Path:
    """Return the path, relative to the package or else to the repository."""
    return PACKAGE / path if (PACKAGE / path).exists() else ROOT / path


@cache
def identifiers(file: Path) -> set[str]:
    """Return the names in a file's code, and `Class.method` for each method; not those in its
    prose."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.alias(name=name):
                found.add(name)
            case ast.ClassDef(name=name, body=body):
                found.add(name)
                methods = (n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
                found.update(f"{name}.{method.name}" for method in methods)
    return found


def missing(item: str) -> list[str]:
    """Return what an item cites that does not exist: a path, or a name that is in none of its files
    (or, if it cites no file, nowhere in the package)."""
    quoted = re.findall(r"`([^`\n]+)`", item)
    paths = [name for name in quoted if "/" in name or name.endswith(".py")]
    files = [located(path) for path in paths if path.endswith(".py") and located(path).exists()]
    code = set().union(*(identifiers(file) for file in files or PACKAGE.rglob("*.py")))
    names = [
        name
        for name in quoted
        if re.fullmatch(r"[A-Za-z_][\w.]*", name) and name not in {*paths, *KAFKA, *PUBLIC}
    ]
    modules = packages.parts() | {path.stem for path in PACKAGE.iterdir()}
    return [
        *(path for path in paths if not located(path).exists()),
        *(name for name in names if name not in code | modules),
    ]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item[:40])
def test_paths_and_names_cited_by_an_item_exist(item: str) -> None:
    assert missing(item) == []


def test_the_check_detects_missing_paths_and_names() -> None:
    assert missing("`runtime/driven.py`, `NoSuchName`") == ["runtime/driven.py", "NoSuchName"]
    assert missing("`runtime/member/driver.py`: `Fetcher`") == ["Fetcher"]
    assert missing("`runtime/consume/fetcher.py`: `Fetcher`, `Fetcher.no_such`") == [
        "Fetcher.no_such"
    ]


def test_the_table_has_every_package_of_the_picture() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    assert {row.replace("`", "") for row in rows} == packages.parts()


def test_the_arrows_of_the_picture_are_the_imports() -> None:
    """A new package, or an import that does not point down, fails while the picture is drawn."""
    arrows = packages.arrows()
    assert arrows["runtime"] == {"consume", "member", "options", "produce", "transport"}
    assert arrows["wire"] == {"types, errors"}

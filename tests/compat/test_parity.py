"""The parity page: a row for every name in the five documents, and a test behind every row."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from compat.names import DOCUMENTS

from kafkagroup.compat import kafka_python, kiel, pykafka

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "parity.md"

MODULES: dict[str, Any] = {
    "pykafka.broker": pykafka,
    "pykafka.managedbalancedconsumer": pykafka,
    "pykafka.membershipprotocol": pykafka,
    "kafka.coordinator": kafka_python,
    "kiel.clients.grouped": kiel,
}
NAMES = [(document, name) for document, names in DOCUMENTS.items() for name in names]

ROW = re.compile(r"^\| `(.+?)` \| (.+) \| (.+) \|$")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> dict[str, list[tuple[str, str, str]]]:
    """Return document -> its rows: name, counterpart, tests."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    document = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("### "):
            document = line[4:].strip("`")
        elif document and (match := ROW.match(line)):
            found.setdefault(document, []).append((match[1], match[2], match[3]))
    return found


def test_every_name_has_one_row_in_the_documents_order() -> None:
    on_the_page = {document: [name for name, _, _ in found] for document, found in rows().items()}
    assert on_the_page == {document: list(names) for document, names in DOCUMENTS.items()}


def test_every_row_has_tests_and_they_exist() -> None:
    functions: dict[str, set[str]] = {}
    missing = []
    for found in rows().values():
        for name, _, cell in found:
            tests = TEST.findall(cell)
            if not tests:
                missing.append(f"{name}: no test")
            for file, test in tests:
                if file not in functions:
                    functions[file] = functions_in(TESTS / file)
                if test not in functions[file]:
                    missing.append(f"{name}: {file}::{test}")
    assert missing == []


def functions_in(path: Path) -> set[str]:
    if not path.exists():
        return set()
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_differences_are_listed_with_their_tests() -> None:
    """Each place where an original is wrong and this library is right."""
    text = PAGE.read_text("utf-8")
    section = text[text.index("# What differs") : text.index("## `pykafka.broker`")]
    items = [line for line in section.splitlines() if line.startswith("- ")]
    assert len(items) >= 20
    for item in items:
        for file, test in TEST.findall(item):
            assert test in functions_in(TESTS / file), item


PRIVATE = frozenset(
    (
        "_get_unique_req_handler",
        "_build_default_error_handlers",
        "_handle_error",
        "_join_group",
        "_setup_heartbeat_worker",
        "_sync_group",
        "_update_member_assignment",
    )
)
"""Private methods whose work is done elsewhere; the page says where."""


@pytest.mark.parametrize(
    ("document", "name"),
    [(d, n) for d, n in NAMES if ": " not in n and n != "SimpleConsumer"],
)
def test_each_name_has_the_originals_parameters_and_defaults(document: str, name: str) -> None:
    path, parenthesis, inside = name.rstrip(")").partition("(")
    first, _, attribute = path.partition(".")
    if attribute in PRIVATE:
        return
    found = getattr(MODULES[document], first)
    if attribute:
        made = Path(attribute).name
        found = inspect.getattr_static(found, made, None) or getattr(found, made)
    if not parenthesis or not inside:
        return
    if isinstance(found, classmethod):
        found = found.__func__
    parameters = inspect.signature(found).parameters
    given = [part.partition("=") for part in inside.split(", ")]
    if not attribute and first[0].isupper():
        assert {name for name, _, _ in given} <= parameters.keys()
    else:
        ours = [name for name in parameters if name not in ("self", "cls", "_cls")]
        assert ours[: len(given)] == [name for name, _, _ in given]
    for parameter, sign, default in given:
        wanted = ast.literal_eval(default) if sign else inspect.Parameter.empty
        if parameters[parameter].kind is not inspect.Parameter.VAR_KEYWORD:
            assert parameters[parameter].default == wanted


@pytest.mark.parametrize("name", [n for _, n in NAMES if re.match(r"\w+: \w+=", n)])
def test_a_configuration_has_its_default(name: str) -> None:
    owner, key, default = re.match(r"(\w+): (\w+)=(.+)", name).groups()  # type: ignore[union-attr]
    found = getattr(kafka_python, owner).DEFAULT_CONFIG[key]
    if key not in ("assignors", "default_offset_commit_callback"):
        assert found == ast.literal_eval(default)

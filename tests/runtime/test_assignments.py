"""No private attribute is assigned from outside its class: a rule about a field stands in one file.

The test reads the source of `kafkagroup.consume`, `kafkagroup.runtime`, `Consumer` and
`GroupMember`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkagroup

PACKAGE = Path(kafkagroup.__file__).parent

# For each record: a call more would be slower.
PER_RECORD = {
    ("consume/conversion.py", "now", "record._key"),
    ("consume/conversion.py", "now", "record._value"),
    ("consume/conversion.py", "_set_converted", "record._key"),
    ("consume/conversion.py", "_set_converted", "record._value"),
}


def stores(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """Return the assigned or deleted attributes, except those of `self` and `cls`, and their
    functions."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        function = tree.name
    if isinstance(tree, ast.Attribute) and not isinstance(tree.ctx, ast.Load):
        owner = tree.value
        if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}):
            yield function, ast.unparse(tree)
    for node in ast.iter_child_nodes(tree):
        yield from stores(node, function)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("self.a = 1", []),
        ("cls.a = 1", []),
        ("one.a()", []),
        ("one.a = 1", ["one.a"]),
        ("self.b.a += 1", ["self.b.a"]),
        ("one.a: int = 1", ["one.a"]),
        ("x = one.a = one.b = 1", ["one.a", "one.b"]),
        ("one.a, (x, two.b) = 1, (2, 3)", ["one.a", "two.b"]),
        ("with x as one.a: pass", ["one.a"]),
        ("for one.a in x: pass", ["one.a"]),
        ("del one.a", ["one.a"]),
    ],
)
def test_every_kind_of_attribute_assignment_is_detected(statement: str, found: list[str]) -> None:
    assert list(stores(ast.parse(statement))) == [("", name) for name in found]
    inside = ast.parse(f"class C:\n  async def f():\n    {statement}")
    assert list(stores(inside)) == [("f", name) for name in found]


def is_private(attribute: str) -> bool:
    name = attribute.rpartition(".")[2]
    return name.startswith("_") and not name.startswith("__")


def test_no_private_attribute_is_assigned_from_outside_its_class() -> None:
    files = [
        *sorted((PACKAGE / "consume").glob("*.py")),
        *sorted((PACKAGE / "runtime").rglob("*.py")),
        PACKAGE / "consumer.py",
        PACKAGE / "group.py",
    ]
    found = {
        (file.relative_to(PACKAGE).as_posix(), function, name)
        for file in files
        for function, name in stores(ast.parse(file.read_text("utf-8")))
        if is_private(name)
    }
    assert found == PER_RECORD

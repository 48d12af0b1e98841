"""No attribute is assigned from outside its class: classes offer verbs, so that each rule about a
field stands in one file. Read from the source of `kafkagroup.runtime` and of `Consumer`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkagroup

PACKAGE = Path(kafkagroup.__file__).parent

ALLOWED = {
    ("reader.py", "self._lease.last_poll"),  # for each record: a call more would be slower
    ("service.py", "tasks.cancel_scope.shield"),  # anyio has no verb for it
}


def stores(tree: ast.AST) -> Iterator[str]:
    """The attributes that are assigned or deleted, but not of `self` or `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}):
                yield ast.unparse(node)


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
def test_every_kind_of_assignment_is_seen(statement: str, found: list[str]) -> None:
    assert list(stores(ast.parse(statement))) == found


def test_no_attribute_is_assigned_from_outside_its_class() -> None:
    files = [*sorted((PACKAGE / "runtime").glob("*.py")), PACKAGE / "consumer.py"]
    found = {(file.name, name) for file in files for name in stores(ast.parse(file.read_text()))}
    assert found == ALLOWED

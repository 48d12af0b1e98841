"""Mutation testing: make small changes in functions, and print those that no test notices.

    python tests/mutate.py MODULE [TESTS...] [--seed N] [--count N] [--lines FIRST-LAST]
                           [--limit SECONDS]

MODULE is a file of the package. Without TESTS they are all tests of its room. Everything is
imported once, uncompiled; a process is forked for each mutant, puts the changed code into the
function, and runs the tests that run its line (`line_hits.py`), the fastest first, up to the first
that fails.
"""

from __future__ import annotations

import argparse
import ast
import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from itertools import accumulate
from math import inf
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import attrs
import line_hits
import pytest

NOT_APPLIED = 77
"""The exit code of a process that could not make its change."""

_SWAPPED = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div"
SWAPS: dict[type, type] = {
    getattr(ast, one): getattr(ast, other)
    for pair in _SWAPPED.split(", ")
    for one, other in (pair.split(), pair.split()[::-1])
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@attrs.frozen
class Mutant:
    """A change of a function that is not inside another."""

    function: tuple[str, int]
    """Its qualified name, and the first line of it and its decorators."""
    place: tuple[Any, Any]
    """A list and an index, or a node and the name of a field."""
    before: Any
    after: ast.AST
    lines: range
    """From the start of the statement that it changes to the end of the change."""

    def __str__(self) -> str:
        texts = [ast.unparse(node).partition("\n")[0] for node in (self.before, self.after)]
        return f"{self.before.lineno} {self.function[0]}: {'  ->  '.join(texts)}"

    def apply(self, tree: ast.Module) -> bool:
        """Change the function wherever it is loaded, and the tree of its module; return whether it
        is loaded anywhere."""
        old = _code(tree, self.function)
        found = [f for f in gc.get_objects() if isinstance(f, FunctionType) and f.__code__ == old]
        holder, key = self.place
        after = ast.fix_missing_locations(ast.copy_location(self.after, self.before))
        holder.__setitem__(key, after) if isinstance(holder, list) else setattr(holder, key, after)
        for function in found:
            function.__code__ = _code(tree, self.function)
        return bool(found)


def _code(tree: ast.Module, function: tuple[str, int]) -> CodeType:
    def inside(code: CodeType) -> Iterator[CodeType]:
        for value in code.co_consts:
            if isinstance(value, CodeType):
                yield value
                yield from inside(value)

    codes = inside(compile(tree, "", "exec"))
    return next(code for code in codes if (code.co_qualname, code.co_firstlineno) == function)


def mutants(tree: ast.AST, prefix: str = "") -> Iterator[Mutant]:
    """Return all changes of a module that this program knows."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from mutants(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            for place, child, start in _nodes(node, node.lineno):
                for after in _changes(child):
                    lines = range(start, child.end_lineno + 1)
                    yield Mutant((prefix + node.name, first), place, child, after, lines)


def _nodes(node: ast.AST, start: int) -> Iterator[tuple[tuple[Any, Any], Any, int]]:
    """Return the statements and expressions of a function that run when it does, the place of each,
    and the line where its statement starts. Texts are left out, and numbers below a sign: -1 is
    changed as a whole."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "decorator_list", "returns") or isinstance(value, ast.arguments):
            continue
        children: Any = enumerate(value) if isinstance(value, list) else [(name, value)]
        for key, child in children:
            is_signed = isinstance(node, ast.UnaryOp) and isinstance(child, ast.Constant)
            if isinstance(child, ast.JoinedStr) or is_signed or not isinstance(child, ast.AST):
                continue
            begun = child.lineno if isinstance(child, ast.stmt) else start
            yield (value if isinstance(value, list) else node, key), child, begun
            yield from _nodes(child, begun)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in SWAPS:
            yield ast.Compare(left, [SWAPS[type(op)]()], right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(SWAPS[type(op)](), values)
            for omitted in values:
                rest = [value for value in values if value is not omitted]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            yield ast.Constant(1 - value)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name], ast.Load()), args, keywords)
            yield from args if len(args) == 2 else ()
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.If(test=test, body=body, orelse=orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Return(value=value) if value and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Raise():
            yield ast.Pass()
        case ast.Break() | ast.Continue():
            yield ast.Pass()


class Mutating:
    """A plugin of pytest that runs tests for each mutant."""

    def __init__(self, path: Path, seed: int, count: int, lines: range, limit: float) -> None:
        self._path, self._tree = path, ast.parse(path.read_bytes())
        self._known = [one for one in mutants(self._tree) if one.before.lineno in lines]
        chosen = random.Random(seed).sample(self._known, min(count, len(self._known)))
        self._chosen = sorted(chosen, key=lambda mutant: mutant.before.lineno)
        self._limit = limit

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("errors during collection")
        runs = line_hits.runs(self._path, session.items)
        for item in [item for item, run in runs.items() if run.has_failed]:
            print(f"left out, as it fails without a change: {item.nodeid}")
            del runs[item]
        fastest = sorted(runs, key=lambda item: runs[item].seconds)
        tried = survived = 0
        for mutant in self._chosen:
            lines = set(mutant.lines)
            tests = [item for item in fastest if not lines.isdisjoint(runs[item].lines)]
            ends = accumulate(runs[item].seconds for item in tests)
            count = sum(end <= self._limit for end in ends)
            found = self._result(tests[:count], runs, mutant)
            tried += found != NOT_APPLIED
            survived += found == 0
            if found in (0, NOT_APPLIED):
                note = "not tried" if found else f"survives {count} of {len(tests)} tests"
                print(f"{self._path}:{mutant}  ({note})", flush=True)
        print(f"{self._path}: {len(self._known)} mutants, {tried} tried, {survived} survived")
        return True

    def _result(
        self, tests: list[pytest.Item], runs: dict[pytest.Item, line_hits.Run], mutant: Mutant
    ) -> int:
        """Run the tests in another process; return its exit code."""
        sys.stdout.flush()
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code = NOT_APPLIED
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            if mutant.apply(self._tree):
                code = 1
                for item, fails in line_hits.silently(tests):
                    signal.alarm(round(10 + 5 * runs[item].seconds))
                    if fails():
                        break
                else:
                    code = 0
        finally:
            os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("-k", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--limit", type=float, default=inf, metavar="SECONDS")
    parser.add_argument("--lines", default="1-100000", metavar="FIRST-LAST")
    asked = parser.parse_args()
    os.environ["KAFKAGROUP_PURE"] = "1"
    first, last = map(int, asked.lines.split("-"))
    options = ["-s", "-p", "no:cacheprovider", "-p", "no:terminal", "-k", asked.k]
    options += ["-o", "addopts=--import-mode=importlib", "-m", "not (brokers or long or serial)"]
    lines = range(first, last + 1)
    plugin = Mutating(asked.module, asked.seed, asked.count, lines, asked.limit)
    tests = asked.tests or [f"tests/{asked.module.parts[1]}"]
    sys.exit(pytest.main([*options, *tests], plugins=[plugin]))


if __name__ == "__main__":
    main()

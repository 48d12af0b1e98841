"""Mutation testing: make small changes in functions, and print those that no test notices.

    python tests/mutate.py MODULE [TESTS...] [--seed N] [--count N]

MODULE is a file of the package. Without TESTS they are `tests/ROOM/test_MODULE.py`, where there is
one, and then the whole room. Everything is imported once, uncompiled; a process is forked for each
mutant, puts the changed code into the function, and runs the tests up to the first that fails.
"""

from __future__ import annotations

import argparse
import ast
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import attrs
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
            for place, child in _nodes(node):
                for after in _changes(child):
                    yield Mutant((prefix + node.name, first), place, child, after)


def _nodes(node: ast.AST) -> Iterator[tuple[tuple[Any, Any], ast.AST]]:
    """Return the statements and expressions of a function that run when it does, and the place of
    each. Texts are left out, and numbers below a sign: -1 is changed as a whole."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "decorator_list", "returns") or isinstance(value, ast.arguments):
            continue
        children: Any = enumerate(value) if isinstance(value, list) else [(name, value)]
        for key, child in children:
            is_signed = isinstance(node, ast.UnaryOp) and isinstance(child, ast.Constant)
            if isinstance(child, ast.JoinedStr) or is_signed or not isinstance(child, ast.AST):
                continue
            yield (value if isinstance(value, list) else node, key), child
            yield from _nodes(child)


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
    """A plugin of pytest that runs the tests once for each mutant."""

    def __init__(self, path: Path, seed: int, count: int) -> None:
        self._path, self._tree = path, ast.parse(path.read_bytes())
        self._known = [*mutants(self._tree)]
        chosen = random.Random(seed).sample(self._known, min(count, len(self._known)))
        self._chosen = sorted(chosen, key=lambda mutant: mutant.before.lineno)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        begun = time.monotonic()
        if self._result(session, None, 3600):
            print("the tests fail without a change")
            return True
        timeout = round(30 + 5 * (time.monotonic() - begun))
        results = {NOT_APPLIED: ("not tried: ", 0), 0: ("", 0)}
        for mutant in self._chosen:
            if (found := self._result(session, mutant, timeout)) in results:
                note, count = results[found]
                results[found] = note, count + 1
                print(f"{note}{self._path}:{mutant}", flush=True)
        tried = len(self._chosen) - results[NOT_APPLIED][1]
        print(f"{self._path}: {len(self._known)} mutants, {tried} tried, {results[0][1]} survived")
        return True

    def _result(self, session: pytest.Session, mutant: Mutant | None, timeout: int) -> int:
        """Run the tests in another process; return its exit code."""
        sys.stdout.flush()
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code = NOT_APPLIED
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(timeout)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            if mutant is None or mutant.apply(self._tree):
                code = 1
                for item, following in zip(session.items, [*session.items[1:], None], strict=True):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    if session.testsfailed:
                        break
                code = min(session.testsfailed, 1)
        finally:
            os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("-k", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=30)
    asked = parser.parse_args()
    os.environ["KAFKAGROUP_PURE"] = "1"
    room = Path("tests", asked.module.parts[1])
    nearest = [str(at) for at in (room / f"test_{asked.module.name}", room) if at.exists()]
    options = ["-s", "-p", "no:cacheprovider", "-p", "no:terminal", "-k", asked.k]
    options += ["-o", "addopts=--import-mode=importlib", "-m", "not (brokers or long or serial)"]
    plugin = Mutating(asked.module, asked.seed, asked.count)
    sys.exit(pytest.main([*options, *(asked.tests or nearest)], plugins=[plugin]))


if __name__ == "__main__":
    main()

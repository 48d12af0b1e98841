"""The public API: every public name, method and parameter.

`tests/public_api.txt` lists them, so that none changes unnoticed when the internals are renamed.
After an intended change, which belongs in the changelog too:

    python tests/test_public_api.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import kafkagroup

MODULES = (
    "kafkagroup",
    "kafkagroup.admin",
    "kafkagroup.assign",
    "kafkagroup.broker",
    "kafkagroup.coordination",
    "kafkagroup.errors",
    "kafkagroup.events",
    "kafkagroup.testing",
    "kafkagroup.types",
    "kafkagroup.wire",
)
LISTED = Path(__file__).with_name("public_api.txt")


def test_the_public_api_equals_the_list() -> None:
    assert list(public_api()) == LISTED.read_text().splitlines()


def public_api() -> Iterator[str]:
    """Return the lines of the list."""
    seen: set[object] = set()
    for module in MODULES:
        package = import_module(module)
        for name in sorted(package.__all__):
            value = getattr(package, name)
            if isinstance(value, type):
                yield f"{module}.{name}"
                if value not in seen:
                    seen.add(value)
                    yield from _members(value)
            else:
                yield f"{module}.{name}{_parameters(value)}"


def _members(cls: type) -> Iterator[str]:
    """Return the constructor and the public attributes of a class, including those of its bases in
    this package."""
    # Compiled, some constructors have no signature; applications call neither of them.
    is_compiled = cls in (kafkagroup.Record, kafkagroup.RecordFuture)
    if "__init__" in vars(cls) and not is_compiled:
        yield f"    {_parameters(cls)}"
    inherited = {name for base in cls.__mro__ if _ours(base) for name in vars(base)}
    for name in sorted(inherited | _annotated(cls)):
        if not name.startswith("_"):
            yield f"    .{name}{_parameters(inspect.getattr_static(cls, name, None))}"


def _annotated(cls: type) -> set[str]:
    return {
        name
        for base in cls.__mro__
        if _ours(base)
        for name in vars(base).get("__annotations__", {})
    }


def _ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "kafkagroup"


def _parameters(value: object) -> str:
    """Return the names of a callable's parameters, and which have a default; otherwise nothing."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if not (inspect.isroutine(value) or isinstance(value, type)):
        return ""
    signature = inspect.signature(value)
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty, default=empty if each.default is empty else ...)
        for each in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters)).replace("Ellipsis", "...")


if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for line in public_api()))

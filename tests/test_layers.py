"""Imports between packages go one way and never in a circle, and the packages below `transport`
never do I/O.

Imports are read from the source, including those inside functions and those for type checkers only.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import kafkagroup

PACKAGE = Path(kafkagroup.__file__).parent

_CORE = {
    "_backoff",
    "_generic",
    "_public",
    "_record",
    "_text",
    "_topics",
    "_user_code",
    "_values",
    "callbacks",
    "types",
    "errors",
    "wire",
    "assign",
}
_OPTIONS = {"options", "_option_kinds", "_foreign_options", "_hidden_values"}
_LOOP = {"_backend", "_user_code", "concurrency"}
_EXPLAINED = {"_explained", "_foreign_names"}
_TRANSPORT = {
    "_backoff",
    "_client_name",
    "_foreign_options",
    "_public",
    "_text",
    "_topics",
    "_values",
    "_version",
    "types",
    "errors",
    "events",
    "wire",
    "transport",
}
_TRANSPORT |= _LOOP
_RUNTIME = {
    "runtime.client",
    "runtime.member",
    "runtime.offsets",
    "runtime.consume",
    "runtime.produce",
}
_BASE = (
    _CORE
    | _OPTIONS
    | _LOOP
    | _EXPLAINED
    | {"_client_name", "_timestamps", "_uncompiled", "events", "transport"}
)
_ENGINE = _BASE | _RUNTIME | {"member", "consume"}
_PUBLIC = {
    "",
    "_text",
    "_timestamps",
    "types",
    "errors",
    "events",
    "options",
    "broker",
    "consumer",
    "group",
    "coordination",
    "admin",
    "producer",
    "wire",
}

MAY_IMPORT: dict[str, set[str]] = {
    "_uncompiled": set(),
    "_values": set(),
    "_backend": set(),
    "concurrency": {"_backend", "errors"},
    "_backoff": set(),
    "_client_name": {"_text"},
    "_public": set(),
    "_signals": set(),
    "_text": set(),
    "_topics": set(),
    "_user_code": set(),
    "_version": set(),
    "_timestamps": {"errors", "types"},
    "_explained": {"_foreign_names"},
    "_extras": set(),
    "_foreign_names": {""},
    "_generic": set(),
    "_record": {"_foreign_names", "_public", "_uncompiled"},
    "callbacks": {"errors", "types"},
    "types": {"_generic", "_public", "_record", "_values"},
    "errors": {"_foreign_names", "_public", "_text", "types"},
    "wire": {"_public", "_record", "_uncompiled", "_values", "types", "errors"},
    "assign": {"_foreign_names", "_public", "_values", "types", "errors"},
    "_hidden_values": set(),
    "_foreign_options": {"_hidden_values"},
    "_option_kinds": {"_foreign_options", "_hidden_values", "_values", "errors"},
    "options": _CORE | _OPTIONS,
    "member": _CORE,
    "consume": _CORE,
    "produce": {"_timestamps", "_topics", "_values", "callbacks", "errors", "types", "wire"},
    "events": {"_public", "_values"},
    "transport": _TRANSPORT,
    "runtime": set(),
    "runtime.client": _BASE,
    "runtime.member": _BASE | {"member"},
    "runtime.offsets": _BASE | {"consume", "runtime.member"},
    "runtime.produce": _BASE | {"produce", "runtime.member"},
    "runtime.consume": _ENGINE - {"runtime.produce"},
    "consumer": _ENGINE,
    "group": _ENGINE,
    "coordination": _ENGINE | {"group"},
    "admin": _ENGINE | {"_version", "broker", "group"},
    "transaction": _ENGINE | {"consumer", "produce"},
    "consuming_transactions": _ENGINE | {"consumer", "transaction"},
    "producer": _ENGINE | {"consumer", "consuming_transactions", "produce", "transaction"},
    "broker": _ENGINE,
    "": {"_public"},  # its names are imported on first use; type checkers import them all
    "_in_place": set(),
    "_pure": set(),
    "_extended_consumer": _ENGINE | {"consumer"},
    "compat": _PUBLIC
    | _LOOP
    | {"_extended_consumer", "_hidden_values", "_public", "assign", "wire"},
    "cli": _PUBLIC | {"_option_kinds", "_signals", "assign", "spark", "testing"},
    "exporters": _PUBLIC | {"_extras", "_values"},
    "__main__": {"cli"},
    "zookeeper": _CORE
    | {"_foreign_options", "concurrency", "member", "transport", "runtime.member"},
    "spark": _ENGINE | {"_extras", "coordination", "producer"},
    "testing": _ENGINE,
}
"""Part of the package -> the other parts that it may import; "" is `kafkagroup` itself, and each
package in `runtime` is a part."""

IO = {"anyio", "asyncio", "trio", "socket", "ssl", "selectors", "threading", "subprocess"}
"""Nothing below `transport` may start, wait or send."""

CLOCKS = {"time", "random", "secrets"}
"""Time and chance come in as arguments there."""

PURE = {"_backoff", "_public", "_text", "_values", "callbacks", "types", "errors", "events"}
PURE |= {"wire", "assign", "member", "consume", "produce"}
PURE |= _OPTIONS


def violations(package: Path) -> list[str]:
    """Return the import violations below `package`, one line each."""
    found = []
    for path in sorted(package.rglob("*.py")):
        part = part_of(path.relative_to(package).with_suffix("").parts)
        if part not in MAY_IMPORT:
            found.append(f"{part}: not in the table of this test")
            continue
        for module in imports(path, package):
            top, *rest = module.split(".")
            if top == package.name:
                target = part_of(tuple(rest))
                if target not in MAY_IMPORT[part] | {part}:
                    found.append(f"{path.relative_to(package)}: {part} imports {target or top}")
            elif part in PURE and top in IO | CLOCKS:
                found.append(f"{path.relative_to(package)}: {part} imports {top}")
    return found


def part_of(parts: tuple[str, ...]) -> str:
    if parts in ((), ("__init__",)):
        return ""
    is_in_runtime = parts[0] == "runtime" and parts[1:] not in ((), ("__init__",))
    return ".".join(parts[:2]) if is_in_runtime else parts[0]


def imports(path: Path, package: Path) -> Iterator[str]:
    """Return the absolute dotted names of the modules that a file imports."""
    here = [package.name, *path.relative_to(package).with_suffix("").parts]
    tree = ast.parse(path.read_text("utf-8"))
    for node in runtime(tree) if path == package / "__init__.py" else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [] if not node.level else here[: -node.level]
            base += node.module.split(".") if node.module else []
            if base == [package.name]:
                # A part, or a public name, which counts as the package itself.
                for name in node.names:
                    yield f"{package.name}.{name.name}" if name.name in MAY_IMPORT else base[0]
            else:
                yield ".".join(base)


def circles(package: Path) -> list[list[str]]:
    """Return groups of modules that import each other, directly or through others of the group,
    counting imports inside functions and for type checkers."""
    modules = {}
    for path in package.rglob("*.py"):
        *parents, name = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parents if name == "__init__" else [*parents, name])] = path
    modules.pop(package.name, None)  # it names everything that is public
    reached = {
        name: {module for module in imported_modules(path, package, modules) if module != name}
        for name, path in modules.items()
    }
    for through in modules:  # Warshall's closure
        for name in modules:
            if through in reached[name]:
                reached[name] |= reached[through]
    found = {
        tuple(sorted(other for other in modules if other in beyond and name in reached[other]))
        for name, beyond in reached.items()
        if name in beyond
    }
    return sorted(map(list, found))


def imported_modules(path: Path, package: Path, modules: Collection[str]) -> Iterator[str]:
    """Return the modules of `package` that a file imports; `from package import module` is one of
    them."""
    here = [package.name, *path.relative_to(package).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*here[: -node.level or 0], *filter(None, [node.module])])
            for name in node.names:
                module = f"{base}.{name.name}" if f"{base}.{name.name}" in modules else base
                if module in modules:
                    yield module


def runtime(node: ast.AST) -> Iterator[ast.AST]:
    """Return every node, except below `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from runtime(other)
        else:
            yield from runtime(child)


def test_imports_go_one_way() -> None:
    assert violations(PACKAGE) == []


def test_there_are_no_circular_imports() -> None:
    """A circle works or fails depending on the first import, and its modules cannot be read, tested
    or moved alone. An interface is separate from its implementations."""
    assert circles(PACKAGE) == []


def test_the_check_finds_circles(tmp_path: Path) -> None:
    package = tmp_path / "kafkagroup"
    planted = {
        "__init__.py": "",
        "wire/__init__.py": "",
        "wire/codec.py": "from .schema import X\n",
        "wire/schema.py": "def f():\n    from kafkagroup.wire import codec\n",
        "errors.py": "if TYPE_CHECKING:\n    from kafkagroup import types\n",
        "types.py": "import kafkagroup.errors\n",
        "admin/__init__.py": "from kafkagroup.admin.offsets import X\n",
        "admin/offsets.py": "from kafkagroup.admin import lag\n",
        "admin/lag.py": "from ..wire.schema import X\n",
        "a.py": "from kafkagroup.b import X\n",
        "b.py": "from kafkagroup.c import X\nfrom kafkagroup import types\n",
        "c.py": "from . import a\n",
    }
    for name, source in planted.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert circles(package) == [
        ["kafkagroup.a", "kafkagroup.b", "kafkagroup.c"],
        ["kafkagroup.errors", "kafkagroup.types"],
        ["kafkagroup.wire.codec", "kafkagroup.wire.schema"],
    ]


def test_every_package_below_transport_exists() -> None:
    """A moved package would no longer be checked."""
    assert {p.stem for p in PACKAGE.iterdir()} >= PURE | {
        "transport",
        "runtime",
        "consumer",
        "group",
        "testing",
    }


def test_the_check_finds_forbidden_imports(tmp_path: Path) -> None:
    package = tmp_path / "kafkagroup"
    planted = {
        "__init__.py": "if TYPE_CHECKING:\n    import kafkagroup.runtime\n",
        "types.py": "import enum\nif TYPE_CHECKING:\n    from kafkagroup.errors import X\n",
        "errors.py": "from kafkagroup import types\n",
        "group.py": "from kafkagroup.runtime.member.driver import Driver\n",
        "wire/schema.py": "from ..errors import X\nfrom ..member import state\nimport random\n",
        "wire/messages/group.py": "from ..schema import X\nfrom ...transport.broker import Y\n",
        "member/classic.py": "def step():\n    import time\n    import kafkagroup.consume.plan\n",
        "consume/plan.py": "import anyio.abc\nfrom kafkagroup.assign import range\n",
        "runtime/member/driver.py": "import anyio, time\nfrom kafkagroup.member import classic\n",
        "transport/broker.py": "from kafkagroup.runtime import driver\n",
        "testing/embedded/kafka.py": "from kafkagroup.transport import broker\nimport socket\n",
        "cli.py": "from kafkagroup import Consumer\nfrom kafkagroup.runtime import driver\n",
        "spark/source.py": (
            "if typing.TYPE_CHECKING:\n    import kafkagroup.cli\n"
            "else:\n    import kafkagroup.group\n"
        ),
        "stranger.py": "",
    }
    for name, source in planted.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert violations(package) == [
        "cli.py: cli imports runtime",
        "consume/plan.py: consume imports anyio",
        "member/classic.py: member imports time",
        "member/classic.py: member imports consume",
        "spark/source.py: spark imports cli",
        "spark/source.py: spark imports group",
        "stranger: not in the table of this test",
        "transport/broker.py: transport imports runtime",
        "types.py: types imports errors",
        "wire/messages/group.py: wire imports transport",
        "wire/schema.py: wire imports member",
        "wire/schema.py: wire imports random",
    ]

"""The options in the signatures and docstrings of constructors, which `help()`, editors and type
checkers read in the source.

Each option is declared once, in `kafkagroup/options.py`, and the fields of a value have a docstring
each. This writes the keywords of the constructors from the declarations, and the section `Args:`
from both; an entry of another parameter stays as it is written.

    python docs/site/docstrings.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from textwrap import wrap

from option_list import sentence

from kafkagroup._option_kinds import Option, declared
from kafkagroup._values import REQUIRED
from kafkagroup.options import AdminOptions, ConsumerOptions, GroupMemberOptions, ProducerOptions

__all__ = ["SOURCES", "updated"]

PACKAGE = Path(__file__).parents[2] / "kafkagroup"

SOURCES: Mapping[str, Mapping[str, type | None]] = {
    "admin/client.py": {"Admin": AdminOptions},
    "consumer.py": {"Consumer": ConsumerOptions},
    "coordination.py": {"Election": GroupMemberOptions, "Shards": GroupMemberOptions},
    "group.py": {"GroupMember": GroupMemberOptions},
    "producer.py": {"Producer": ProducerOptions},
    "transport/options.py": {"ClientOptions": None},
    "transport/security.py": {"Security": None},
    "zookeeper/membership.py": {"ZooKeeperMembership": None},
}
"""File -> class -> the declarations of its options; None: its fields."""

_KAFKAS = {
    name.replace(".", "_"): name
    for name in re.findall(
        r"\S+",
        """
        acks auto.commit.interval.ms auto.offset.reset batch.size bootstrap.servers buffer.memory
        check.crcs client.id client.rack compression.type connections.max.idle.ms
        default.api.timeout.ms delivery.timeout.ms enable.auto.commit enable.idempotence
        exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
        group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms isolation.level
        key.deserializer key.serializer linger.ms max.partition.fetch.bytes max.poll.interval.ms
        max.request.size metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
        request.timeout.ms retry.backoff.max.ms retry.backoff.ms sasl.mechanism security.protocol
        session.timeout.ms ssl.endpoint.identification.algorithm value.deserializer value.serializer
        """,
    )
} | {"assignors": "partition.assignment.strategy", "partitioner": "partitioner.class"}
"""Option -> its name in Kafka's own clients, if they have it."""

_ENTRY = re.compile(r"^ {4}\*{0,2}(\w+): (.*\n(?:^ {8}.*\n)*)", re.MULTILINE)
_WIDTH = 100


def updated(source: str, classes: Mapping[str, type | None]) -> str:
    """Return the source of a module with the parameters of these classes."""
    source = _with_keywords(source, {**classes, "MemberOptions": GroupMemberOptions})
    lines = source.splitlines(keepends=True)
    # The last first: the lines before it keep their numbers.
    for cls in reversed([n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]):
        if cls.name in classes:
            options = classes[cls.name]
            function = _constructor(cls)
            defaults = _defaults(function) if function else _defaults_of_fields(cls)
            if options is None:
                texts = _of_fields(cls)
            else:
                texts = {name: option.text for name, option in declared(options).items()}
                if "options" in defaults:  # the signature names none of them
                    defaults |= {n: _declared_default(o) for n, o in declared(options).items()}
            names = {} if cls.name == "ZooKeeperMembership" else _KAFKAS
            documented = (function or cls).body[0]
            assert documented.end_lineno is not None
            where = slice(documented.lineno - 1, documented.end_lineno)
            pad = " " * documented.col_offset
            entries = {
                name: _entry(name, text, defaults[name], names.get(name))
                for name, text in texts.items()
                if name in defaults
            }
            lines[where] = _with_args("".join(lines[where]), pad, list(defaults), entries)
    return "".join(lines)


def _with_keywords(source: str, classes: Mapping[str, type | None]) -> str:
    """Return the source of a module with the declared options as keywords, in their present order,
    and new ones at the end."""
    lines = source.splitlines(keepends=True)
    for cls in reversed([n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]):
        if (options := classes.get(cls.name)) is None:
            continue
        written: list[tuple[ast.AnnAssign | ast.arg, str]]
        if (function := _constructor(cls)) is None:  # a TypedDict
            written = [(n, ast.unparse(n.target)) for n in cls.body if isinstance(n, ast.AnnAssign)]
            others = {"group_id"}
        else:
            written = [(each, each.arg) for each in function.args.kwonlyargs]
            others = {each.arg for each in function.args.args}
        if written:
            found = {n: o for n, o in declared(options).items() if n not in others}
            names = [name for _, name in written if name in found]
            names += [name for name in found if name not in names]
            where = slice(written[0][0].lineno - 1, written[-1][0].end_lineno)
            pad = " " * written[0][0].col_offset
            lines[where] = [
                f"{pad}{name}: {_type(found[name])}"
                + (f" = {_default(found[name].default)},\n" if function else "\n")
                for name in names
            ]
    return "".join(lines)


def _type(option: Option) -> str:
    return option.annotation.replace("'", '"')


def _default(value: object) -> str:
    match value:
        case str():
            return f'"{value}"'
        case Enum():
            return f"{type(value).__name__}.{value.name}"
        case int() if not isinstance(value, bool):
            return f"{value:_}"
    return repr(value)


def _with_args(docstring: str, pad: str, names: list[str], made: Mapping[str, str]) -> list[str]:
    text, _, section = docstring.rstrip().removesuffix('"""').partition(f"\n\n{pad}Args:\n")
    unindented = re.sub(f"^{pad}", "", section, flags=re.MULTILINE)
    written = {name: " ".join(entry.split()) for name, entry in _ENTRY.findall(unindented)}
    entries = {**written, **made}
    lines = [f"{text.rstrip()}\n", "\n", f"{pad}Args:\n"]
    for name in names:
        if name in entries:
            wrapped = wrap(
                f"{name}: {entries[name]}",
                _WIDTH,
                initial_indent=f"{pad}    ",
                subsequent_indent=f"{pad}        ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines += [f"{line}\n" for line in wrapped]
    return [*lines, f'{pad}"""\n']


def _entry(name: str, text: str, default: str | None, kafkas: str | None) -> str:
    """Return the text of a parameter, as sentences."""
    text = re.sub(r" \(\[[^]]+\]\([^)]+\)\)", "", text)  # the pages are not installed
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
    facts = []
    if name.endswith("_ms"):
        facts.append("in milliseconds")
    elif name.endswith("_bytes") and "bytes" not in text.lower():
        facts.append("in bytes")
    if default is not None and not (default == "`None`" and "None" in text):
        facts.append(f"default {default}")
    if kafkas is not None:
        facts.append(f"Kafka's `{kafkas}`")
    sentences = [text, "; ".join(facts)] if facts else [text]
    return " ".join(map(sentence, sentences))


def _declared_default(option: Option) -> str | None:
    default = option.default
    if default is REQUIRED:
        return None
    return f"{default:,}" if type(default) is int else f"`{default!r}`"


def _of_fields(cls: ast.ClassDef) -> dict[str, str]:
    """Return field -> the docstring below it, on one line."""
    found = {}
    for field, below in zip(cls.body, cls.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    found[field.target.id] = " ".join(text.split())
    return found


def _constructor(cls: ast.ClassDef) -> ast.FunctionDef | None:
    methods = (node for node in cls.body if isinstance(node, ast.FunctionDef))
    return next((method for method in methods if method.name == "__init__"), None)


def _defaults(function: ast.FunctionDef) -> dict[str, str | None]:
    """Return parameter -> its default as text, None if there is none, in order."""
    given = function.args
    positional = [*given.posonlyargs, *given.args][1:]
    values = [None] * (len(positional) - len(given.defaults)) + given.defaults
    found = {a.arg: _shown(v) for a, v in zip(positional, values, strict=True)}
    for star in (given.vararg, given.kwarg):
        found |= {star.arg: None} if star else {}
    return found | {
        a.arg: _shown(v) for a, v in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    }


def _defaults_of_fields(cls: ast.ClassDef) -> dict[str, str | None]:
    fields = (node for node in cls.body if isinstance(node, ast.AnnAssign))
    return {ast.unparse(f.target): _shown(f.value) for f in fields}


def _shown(value: ast.expr | None) -> str | None:
    match value:
        case None | ast.Call():
            return None
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return f"{number:,}"
    return f"`{ast.unparse(value)}`"


def write() -> None:
    """Update the docstrings of all `SOURCES`."""
    for name, classes in SOURCES.items():
        path = PACKAGE / name
        path.write_text(updated(path.read_text("utf-8"), classes), "utf-8")


if __name__ == "__main__":
    write()

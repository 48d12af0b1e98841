"""Write `schemas.json`: what Apache Kafka's own schemas say about the messages that we declare.

    python tests/data/make_schemas.py FOLDER_OF_THE_JARS_OF_4.3.1

Only facts are kept (names, types, versions, tags, defaults), in a form of our own: per message a
table of structs, per struct its fields in the order of the wire. Run it again after declaring a
message, or for a newer Kafka; tests compare our classes with the file, and the file with the jar.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from kafkagroup.wire import coordinator, messages
from kafkagroup.wire.schema import Versions

TARGET = Path(__file__).with_name("schemas.json")
JARS = ("kafka-clients-4.3.1.jar", "kafka-group-coordinator-4.3.1.jar")


def declared() -> dict[str, type]:
    """Every message class of the library, by name."""
    found: dict[str, type] = {}
    for families in (messages, coordinator):
        for info in pkgutil.iter_modules(families.__path__):
            module = importlib.import_module(f"{families.__name__}.{info.name}")
            for name, value in vars(module).items():
                # Only messages have versions; the structs inside them do not.
                here = getattr(value, "__module__", "") == module.__name__
                if here and isinstance(getattr(value, "versions", None), Versions):
                    assert name not in found, f"{name} is declared twice"
                    found[name] = value
    return dict(sorted(found.items()))


def facts_of_jars(folder: Path, names: list[str]) -> dict[str, Any]:
    """The facts about these messages, from the schemas in Kafka's jars."""
    schemas: dict[str, str] = {}
    for jar in JARS:
        with zipfile.ZipFile(folder / jar) as archive:
            for entry in archive.namelist():
                if entry.endswith(".json"):
                    schemas[Path(entry).stem] = archive.read(entry).decode()
    return {name: _facts(_schema(schemas[name])) for name in names}


def _schema(text: str) -> dict[str, Any]:
    # The files are JSON with // comments on lines of their own.
    loaded: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return loaded


def _facts(schema: dict[str, Any]) -> dict[str, Any]:
    structs: dict[str, list[dict[str, Any]]] = {}
    _collect(structs, schema["name"], schema["fields"])
    for shared in schema.get("commonStructs", ()):
        _collect(structs, shared["name"], shared["fields"])
    return {
        "api_key": schema["apiKey"],
        "versions": schema["validVersions"],
        "flexible": schema["flexibleVersions"],
        "structs": structs,
    }


def _collect(structs: dict[str, Any], name: str, fields: list[dict[str, Any]]) -> None:
    assert name not in structs, f"{name} is defined twice"
    structs[name] = [_field(field) for field in fields]
    for field in fields:
        if "fields" in field:
            _collect(structs, field["type"].removeprefix("[]"), field["fields"])


def _field(field: dict[str, Any]) -> dict[str, Any]:
    assert "flexibleVersions" not in field, f"{field['name']} has flexible versions of its own"
    fact = {
        "name": re.sub(r"(?<!^)(?=[A-Z])", "_", field["name"]).lower(),
        "type": field["type"],
        # Where Kafka's schema has no versions of a field, those are meant in which it is tagged.
        "versions": field.get("versions", field.get("taggedVersions")),
    }
    for ours, theirs in (("nullable", "nullableVersions"), ("tagged", "taggedVersions")):
        if theirs in field:
            fact[ours] = field[theirs]
    if "tag" in field:
        fact["tag"] = field["tag"]
    if "default" in field:
        fact["default"] = _default(field["type"], field["default"])
    if field.get("ignorable"):
        fact["ignorable"] = True
    return fact


def _default(kind: str, value: Any) -> Any:
    """The schemas write a default as text, whatever its type."""
    if value == "null":
        return None
    if kind == "bool":
        return str(value).lower() == "true"
    return int(str(value), 0) if kind.startswith(("int", "uint")) else value


def render(facts: dict[str, Any]) -> str:
    """JSON with one field a line, so that a change of Kafka's schemas reads as a diff."""
    messages = []
    for name, fact in facts.items():
        structs = ",\n".join(
            f"    {json.dumps(struct)}: [\n"
            + ",\n".join(f"      {json.dumps(field)}" for field in fields)
            + "]"
            for struct, fields in fact["structs"].items()
        )
        head = json.dumps({key: value for key, value in fact.items() if key != "structs"})
        # The closing brace of the head gives way to the structs.
        messages.append(f'  {json.dumps(name)}: {head[:-1]}, "structs": {{\n{structs}}}}}')
    return "{\n" + ",\n".join(messages) + "\n}\n"


if __name__ == "__main__":
    (folder,) = sys.argv[1:]
    TARGET.write_text(render(facts_of_jars(Path(folder), list(declared()))))

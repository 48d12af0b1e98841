"""The docstrings of constructors have the text of every option, as it is declared."""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path

import docstrings
import pytest

import kafkagroup
import kafkagroup.broker
from kafkagroup._option_kinds import declared
from kafkagroup.coordination import MemberOptions
from kafkagroup.options import ConsumerOptions, ProducerOptions

PACKAGE = Path(kafkagroup.__file__).parent
CLASSES = [name for classes in docstrings.SOURCES.values() for name in classes]


@pytest.mark.parametrize("name", docstrings.SOURCES)
def test_the_docstrings_are_those_of_the_declarations(name: str) -> None:
    """Otherwise run `python docs/site/made.py`."""
    source = (PACKAGE / name).read_text("utf-8")
    assert docstrings.updated(source, docstrings.SOURCES[name]) == source


def public(name: str) -> type:
    low_level = ("Broker", "ClientOptions")
    cls: type = getattr(kafkagroup.broker if name in low_level else kafkagroup, name)
    return cls


def wanted(cls: type) -> set[str]:
    """Return the keywords that a constructor takes."""
    parameters = inspect.signature(cls).parameters.values()
    names = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    return names if len(names) == len(parameters) else names | {*MemberOptions.__annotations__}


@pytest.mark.parametrize("name", [*CLASSES, "Broker"])
def test_tools_find_each_parameter_in_the_docstring(name: str) -> None:
    """As those of editors and of the pages do, in the form of Google's style guide."""
    griffe = pytest.importorskip("griffe", reason="NOT TESTED, docstrings: griffe is not installed")
    cls = public(name)
    text = inspect.getdoc(cls if name == "ClientOptions" else cls.__init__)
    assert text is not None
    sections = griffe.Docstring(text).parse("google", warnings=False)
    found = [s for s in sections if s.kind is griffe.DocstringSectionKind.parameters]
    assert len(found) == 1
    described = {parameter.name: parameter.description for parameter in found[0].value}
    assert described.keys() == wanted(cls)
    assert all(len(text.split()) > 1 for text in described.values())


def test_help_explains_an_option_with_unit_default_and_the_name_that_kafka_has() -> None:
    shown = pydoc.render_doc(kafkagroup.Consumer, renderer=pydoc.plaintext)
    words = " ".join(shown.replace("|", " ").split())
    assert (
        "request_timeout_ms: How long a response may take. In milliseconds; default 30,000;"
        " Kafka's `request.timeout.ms`." in words
    )
    assert "docs/options.md" not in words
    for name in declared(ConsumerOptions):
        assert f" {name}: " in words


def test_the_names_of_kafka_are_of_options() -> None:
    fields = set().union(*(wanted(public(name)) for name in CLASSES))
    assert docstrings._KAFKAS.keys() <= fields


PLANTED = '''
class Value:
    """A value.

    Args:
        size: Outdated.
    """

    size: int = 1_000
    """How large it
    is"""


class Client:
    def __init__(self, *topics: str, size: int = 2) -> None:
        """Open nothing.

        Args:
            gone: Removed since.
            topics: Written by hand, over
                two lines.
        """
'''


def test_only_what_is_declared_is_written() -> None:
    classes = {"Value": None, "Client": None}
    once = docstrings.updated(PLANTED, classes)
    assert once == PLANTED.replace("Outdated.", "How large it is. Default 1,000.").replace(
        "            gone: Removed since.\n", ""
    ).replace("over\n                two lines", "over two lines")
    assert docstrings.updated(once, classes) == once


def test_the_keywords_are_those_of_the_declarations() -> None:
    """A new option is declared, and nothing else is written by hand; one that is gone goes."""
    source = (PACKAGE / "producer.py").read_text("utf-8")
    option = "        linger_ms: int = 0,\n"
    outdated = source.replace(option, "")
    outdated = outdated.replace("_ms: int = 30_000,\n", "_ms: str = 5,\n        gone: int = 1,\n")
    last = "        close_timeout: float = 10.0,\n"
    moved = source.replace(option, "").replace(last, f"{last}{option}")
    written = docstrings.updated(outdated, {"Producer": ProducerOptions})
    assert written.partition('"""Raises')[0] == moved.partition('"""Raises')[0]
    assert "linger_ms: How long a batch waits for further records" in written


def test_the_keywords_of_a_typed_dict_are_those_of_the_declarations() -> None:
    source = (PACKAGE / "coordination.py").read_text("utf-8")
    outdated = source.replace("    client_id: str\n", "    client_id: int\n    gone: int\n")
    assert docstrings.updated(outdated, docstrings.SOURCES["coordination.py"]) == source

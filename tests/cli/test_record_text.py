"""Records as text, by format strings."""

from __future__ import annotations

import pytest

from kafkagroup import Record
from kafkagroup.cli._record_text import formatter
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TimestampType

RECORD = Record(
    "t", 3, 7, 1_500, TimestampType.CREATE_TIME, None, b"a\xff\x1b\n", (("h", b"x"), ("i", None)), 0
)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (r"{value}\n", "a\\xff\x1b\n\n"),
        (r"{topic}/{partition}\t{offset}\\n{{}}\q", "t/3\t7\\n{}\\q"),
        (r"{timestamp} {time}\0", "1500 1970-01-01T00:00:01.500Z\0"),
        ("{key} {headers}", "null h=x,i=null"),
        ("", ""),
    ],
)
def test_formats(form: str, text: str) -> None:
    assert formatter(form, for_terminal=False)(RECORD) == text


def test_bytes_of_a_header_name_are_shown_as_those_of_a_value() -> None:
    record = RECORD._replace(headers=(("\udcc3\xe9(id", b"\xc3"),))
    assert formatter("{headers}", for_terminal=False)(record) == "\\xc3\xe9(id=\\xc3"


def test_control_characters_are_escaped() -> None:
    assert formatter(r"{value}\n", for_terminal=True)(RECORD) == "a\\xff\\x1b\\n\n"


def test_a_record_without_a_timestamp_has_no_time() -> None:
    """-1 was printed as a time in 1969."""
    record = RECORD._replace(timestamp=-1)
    assert formatter("{timestamp} {time}", for_terminal=False)(record) == "-1 null"


@pytest.mark.parametrize("stamp", [2**62, -(2**62), -2, -86_400_000])
def test_a_timestamp_that_is_no_time_is_printed_as_a_number(stamp: int) -> None:
    record = RECORD._replace(timestamp=stamp)
    assert formatter("{time}", for_terminal=False)(record) == str(stamp)


@pytest.mark.parametrize("form", ["{", "}", "{}", "{0}", "{values}", "{value!r}", "{offset:>5}"])
def test_a_wrong_format_is_refused(form: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--format "):
        formatter(form, for_terminal=False)

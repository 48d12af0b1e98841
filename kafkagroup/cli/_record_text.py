"""Records as text, in the format of the option `--format`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from string import Formatter

from kafkagroup import Record
from kafkagroup._text import printable
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import NO_TIMESTAMP

__all__ = ["FIELDS", "formatter"]

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\0": "\0", r"\\": "\\"}


def _text(data: object) -> str:
    """Return the text of a key or value: "null" for None, \\xNN for bytes that are not UTF-8."""
    if data is None:
        return "null"
    assert isinstance(data, bytes)  # `consume` has no deserializers
    return data.decode(errors="backslashreplace")


def _time(record: Record) -> str:
    if record.timestamp == NO_TIMESTAMP:
        return "null"
    if record.timestamp < 0:
        return str(record.timestamp)  # no time, but brokers store any number
    try:
        at = datetime.fromtimestamp(record.timestamp / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(record.timestamp)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


FIELDS: Mapping[str, Callable[[Record], str]] = {
    "topic": lambda record: record.topic,
    "partition": lambda record: str(record.partition),
    "offset": lambda record: str(record.offset),
    "timestamp": lambda record: str(record.timestamp),
    "time": _time,
    "key": lambda record: _text(record.key),
    "value": lambda record: _text(record.value),
    # Bytes of a name that are not UTF-8 were decoded as surrogates, and are shown as in values.
    "headers": lambda record: ",".join(
        f"{_text(name.encode(errors='surrogateescape'))}={_text(value)}"
        for name, value in record.headers
    ),
}
"""Field -> the function that returns its text. `timestamp` is in milliseconds since the epoch, -1
for none. `time` is the timestamp in ISO 8601, "null" for none; a number below -1, or after the year
9999, stays a number."""


def formatter(form: str, *, for_terminal: bool) -> Callable[[Record], str]:
    """Return the function that formats records, for a format such as "{offset} {value}\\n".

    For a terminal, control characters in the fields are escaped. Raises: ConfigurationError.
    """
    try:
        parts = [
            (re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text), name, rest)
            for text, name, *rest in Formatter().parse(form)
        ]
    except ValueError as error:
        raise ConfigurationError(f"--format {form!r}: {error}") from None
    if "%" in form and not any(name for _, name, _ in parts):
        raise ConfigurationError(f"--format {form!r}: it has no field; kcat's %s is {{value}} here")
    # `name` is None for text that no field follows. `rest` is the format and the conversion, which
    # a field must not have.
    for _, name, rest in parts:
        if name is not None and (name not in FIELDS or rest != ["", None]):
            raise ConfigurationError(
                f"--format {form!r}: expected {', '.join(f'{{{field}}}' for field in FIELDS)}"
            )
    shown = printable if for_terminal else str

    def formatted(record: Record) -> str:
        return "".join(
            text + (shown(FIELDS[name](record)) if name is not None else "")
            for text, name, _ in parts
        )

    return formatted

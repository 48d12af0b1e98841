"""The kinds of options: which values each accepts, and how it converts them.

A class of options declares each option once, as a field (see `kafkagroup.options`):

    request_timeout: float = option(Milliseconds(least=1), 30_000, "how long an answer may take")

The annotation is the type of the checked value. The kind gives the name that users write
(`request_timeout_ms`), the type that they pass (`int`), its range, and the conversion. This module
knows no particular option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkagroup._values import field, fields
from kafkagroup.errors import ConfigurationError

__all__ = [
    "MAX_INT32",
    "Boolean",
    "Choice",
    "Function",
    "Given",
    "Integer",
    "Kind",
    "Milliseconds",
    "Option",
    "Seconds",
    "Text",
    "checked_values",
    "declared",
    "option",
]

MAX_INT32 = 2**31 - 1
"""Upper limit of every number: requests carry most of them in 32 bits."""

Given = Mapping[str, Any]
"""Option name -> its value in the units that users write, with defaults filled in."""


class Kind:
    """The values that an option accepts."""

    annotation = "object"
    """The type of the value that users pass, spelled as in the signature."""
    suffix = ""
    """The unit, if the option's name ends with it and the field's name does not."""
    text_type: type | None = None
    """The type that the command line parses text into; None if no text can express the value."""
    noun = ""
    """The type, for the error message, if `expectation` gives the range alone."""

    def expectation(self, given: Given) -> str:
        """Return the accepted values in words, for the error message."""
        raise NotImplementedError

    def has_type(self, value: Any) -> bool:
        """Return whether the value has the right type."""
        raise NotImplementedError

    def is_in_range(self, value: Any, given: Given) -> bool:
        """Return whether a value of the right type is within the range."""
        return True

    def convert(self, value: Any) -> Any:
        """Return the value as the library stores it."""
        return value


class Boolean(Kind):
    """True or False; other true or false values, such as 0, are refused."""

    annotation = "bool"
    text_type = bool

    def expectation(self, given: Given) -> str:
        return "True or False"

    def has_type(self, value: Any) -> bool:
        return isinstance(value, bool)


class Integer(Kind):
    """An integer."""

    annotation = "int"
    text_type: type | None = int
    noun = "a whole number"

    def __init__(self, least: int | str) -> None:
        self._least = least
        """The lower limit: a number, or the name of an option, declared earlier, that gives it."""

    def _bound(self, given: Given) -> int:
        bound: int = given[self._least] if isinstance(self._least, str) else self._least
        return bound

    def expectation(self, given: Given) -> str:
        return f"{self._bound(given)} to {MAX_INT32}"

    def has_type(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def is_in_range(self, value: Any, given: Given) -> bool:
        return bool(self._bound(given) <= value <= MAX_INT32)


class Seconds(Integer):
    """A duration in seconds."""

    annotation = "float"
    text_type: type | None = float
    noun = "a number"

    def has_type(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)


class Milliseconds(Seconds):
    """A duration in milliseconds, stored in seconds. Fractions are accepted, because some callers
    compute the value."""

    annotation = "int"
    suffix = "_ms"
    text_type = int

    def convert(self, value: Any) -> Any:
        return value / 1000


class Text(Kind):
    """A string."""

    annotation = "str"
    text_type = str

    def expectation(self, given: Given) -> str:
        return "a string"

    def has_type(self, value: Any) -> bool:
        return isinstance(value, str)


class Choice(Kind):
    """One of several strings, each converted to a value."""

    text_type = str

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.annotation = f"Literal[{', '.join(map(repr, values))}]"

    def expectation(self, given: Given) -> str:
        return f"one of {list(self._values)}"

    def has_type(self, value: Any) -> bool:
        return isinstance(value, str)

    def is_in_range(self, value: Any, given: Given) -> bool:
        return value in self._values

    def convert(self, value: Any) -> Any:
        return self._values[value]


class Function(Kind):
    """A callable."""

    def __init__(self, annotation: str) -> None:
        self.annotation = annotation

    def expectation(self, given: Given) -> str:
        return "a function"

    def has_type(self, value: Any) -> bool:
        return callable(value)


class Option:
    """The declaration of one option."""

    __slots__ = ("default", "is_private", "kind", "otherwise", "text")

    def __init__(
        self, kind: Kind, default: object, text: str, otherwise: object, is_private: bool
    ) -> None:
        self.kind = kind
        self.default = default
        """`REQUIRED` if there is none. If it is None, users may pass None."""
        self.text = text
        """Its row in the documentation, in Markdown."""
        self.otherwise = otherwise
        """The meaning of None: a value, or the name of an option whose value is used instead."""
        self.is_private = is_private
        """Whether no constructor takes it: `compat` sets it, for a client that has it."""

    @property
    def annotation(self) -> str:
        """The option's type in the signature."""
        return self.kind.annotation + (" | None" if self.default is None else "")

    def checked(self, name: str, value: Any, given: Given) -> Any:
        """Check a value; return it as the library stores it. Raises: ConfigurationError."""
        if value is None and self.default is None:
            return None
        kind = self.kind
        fits = kind.has_type(value)
        if fits and kind.is_in_range(value, given):
            return kind.convert(value)
        expected = kind.expectation(given)
        if fits:
            raise ConfigurationError(f"{name}={value!r}; expected {expected}")
        noun = f"{kind.noun}, " if kind.noun else ""
        nothing = " or None" if self.default is None else ""
        raise ConfigurationError(f"{name}{_described(value)}; expected {noun}{expected}{nothing}")


def _described(value: object) -> str:
    """Describe a value of the wrong type. Other objects may hold a secret, and are not shown."""
    match value:
        case None:
            return "=None"
        case str():
            return f"={value!r} is a string"
        case bool():
            return f"={value!r} is a boolean"
        case bytes():
            return f"={value!r} is bytes"
        case int() | float():
            return f"={value!r} is a number"
        case _:
            return f" is of type {type(value).__name__}"


def option(
    kind: Kind, default: object, text: str, *, otherwise: object = None, is_private: bool = False
) -> Any:
    """Declare a field of an options class."""
    return field(metadata={Option: Option(kind, default, text, otherwise, is_private)})


def declared(cls: type) -> dict[str, Option]:
    """Return the name that users write -> option, in the order of declaration, without the private
    ones."""
    return {name: option for name, option in _all(cls).items() if not option.is_private}


def _all(cls: type) -> dict[str, Option]:
    options: dict[str, Option] = {
        name: attribute.metadata[Option] for name, attribute in fields(cls).items()
    }
    return {name + option.kind.suffix: option for name, option in options.items()}


def checked_values(cls: type, given: Given) -> dict[str, Any]:
    """Check the values in `given`, by option name; return field name -> converted value. Other
    names are ignored, and private options may be left out.

    Raises: ConfigurationError that names the first option with a wrong value.
    """
    filled: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, option in _all(cls).items():
        value = given.get(name, option.default) if option.is_private else given[name]
        if value is None and option.otherwise is not None:
            other = option.otherwise
            value = filled[other] if isinstance(other, str) else other
        filled[name] = value
        values[name.removesuffix(option.kind.suffix)] = option.checked(name, value, filled)
    return values

"""Kinds of options: what each accepts, and what it converts the value to.

A class of options declares each option once, as a field (see `kafkagroup.options`):

    request_timeout: float = option(Milliseconds(least=1), 30_000, "how long an answer may take")

The annotation is the type of the checked value. The kind gives the name that users write
(`request_timeout_ms`), the type that they pass (`int`), its range, and the conversion. Nothing here
knows a particular option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkagroup._values import field, fields
from kafkagroup.errors import ConfigurationError

__all__ = [
    "MOST",
    "Boolean",
    "Choice",
    "Function",
    "Given",
    "Kind",
    "Milliseconds",
    "Option",
    "Seconds",
    "Text",
    "Whole",
    "checked_values",
    "declared",
    "option",
]

MOST = 2**31 - 1
"""Upper limit of every number: requests carry most of them in 32 bits."""

Given = Mapping[str, Any]
"""Option -> its value in the units of users, defaults filled in."""


class Kind:
    """What an option accepts."""

    annotation = "object"
    """The type of a value as users give it, spelled as in the signature."""
    suffix = ""
    """The unit, where the option's name ends with it and the field's does not."""
    text_type: type | None = None
    """What a command line parses a text into; None where no text can stand for the value."""
    noun = ""
    """What `expected` leaves out: the type, where that tells the range alone."""

    def expected(self, given: Given) -> str:
        """What is accepted, for the error message."""
        raise NotImplementedError

    def fits(self, value: Any) -> bool:
        """Whether the value has the right type."""
        raise NotImplementedError

    def allows(self, value: Any, given: Given) -> bool:
        """Whether a value of the right type is within the range."""
        return True

    def converted(self, value: Any) -> Any:
        """The value as the library keeps it."""
        return value


class Boolean(Kind):
    """True or False, and nothing that merely counts as one of them."""

    annotation = "bool"
    text_type = bool

    def expected(self, given: Given) -> str:
        return "True or False"

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)


class Whole(Kind):
    """A whole number."""

    annotation = "int"
    text_type: type | None = int
    noun = "a whole number"

    def __init__(self, least: int | str) -> None:
        self._least = least
        """A number, or the name of the option (declared earlier) whose value is the least one."""

    def _bound(self, given: Given) -> int:
        bound: int = given[self._least] if isinstance(self._least, str) else self._least
        return bound

    def expected(self, given: Given) -> str:
        return f"{self._bound(given)} to {MOST}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def allows(self, value: Any, given: Given) -> bool:
        return bool(self._bound(given) <= value <= MOST)


class Seconds(Whole):
    """A duration in seconds."""

    annotation = "float"
    text_type: type | None = float
    noun = "a number"

    def fits(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)


class Milliseconds(Seconds):
    """A duration in milliseconds, kept in seconds. Fractions are accepted: some are computed."""

    annotation = "int"
    suffix = "_ms"
    text_type = int

    def converted(self, value: Any) -> Any:
        return value / 1000


class Text(Kind):
    """A string."""

    annotation = "str"
    text_type = str

    def expected(self, given: Given) -> str:
        return "a string"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)


class Choice(Kind):
    """One of several strings, each of which stands for a value."""

    text_type = str

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.annotation = f"Literal[{', '.join(map(repr, values))}]"

    def expected(self, given: Given) -> str:
        return f"one of {list(self._values)}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def allows(self, value: Any, given: Given) -> bool:
        return value in self._values

    def converted(self, value: Any) -> Any:
        return self._values[value]


class Function(Kind):
    """Something to call."""

    def __init__(self, annotation: str) -> None:
        self.annotation = annotation

    def expected(self, given: Given) -> str:
        return "a function"

    def fits(self, value: Any) -> bool:
        return callable(value)


class Option:
    """One option as it was declared."""

    __slots__ = ("default", "kind", "otherwise", "text")

    def __init__(self, kind: Kind, default: object, text: str, otherwise: object) -> None:
        self.kind = kind
        self.default = default
        """`REQUIRED` where there is none. Where it is None, None may be given."""
        self.text = text
        """Its row in the documentation, in Markdown."""
        self.otherwise = otherwise
        """What None stands for: a value, or the name of the option whose value it takes."""

    @property
    def annotation(self) -> str:
        """The type in the signature."""
        return self.kind.annotation + (" | None" if self.default is None else "")

    def checked(self, name: str, value: Any, given: Given) -> Any:
        """The value as the library keeps it. Raises: ConfigurationError."""
        if value is None and self.default is None:
            return None
        kind = self.kind
        fits = kind.fits(value)
        if fits and kind.allows(value, given):
            return kind.converted(value)
        expected = kind.expected(given)
        if fits:
            raise ConfigurationError(f"{name}={value!r}; expected {expected}")
        noun = f"{kind.noun}, " if kind.noun else ""
        nothing = " or None" if self.default is None else ""
        raise ConfigurationError(f"{name}{_described(value)}; expected {noun}{expected}{nothing}")


def _described(value: object) -> str:
    """A value of the wrong type. What may hold a secret is not shown."""
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


def option(kind: Kind, default: object, text: str, *, otherwise: object = None) -> Any:
    """Declare an option as a field of a class of options."""
    return field(metadata={Option: Option(kind, default, text, otherwise)})


def declared(cls: type) -> dict[str, Option]:
    """Name as users write it -> option, in the order of declaration."""
    options: dict[str, Option] = {
        name: attribute.metadata[Option] for name, attribute in fields(cls).items()
    }
    return {name + option.kind.suffix: option for name, option in options.items()}


def checked_values(cls: type, given: Given) -> dict[str, Any]:
    """Field -> value, of what users gave by the options' names; other names are passed over.

    Raises: ConfigurationError that names the first option with a wrong value.
    """
    filled: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, option in declared(cls).items():
        value = given[name]
        if value is None and option.otherwise is not None:
            other = option.otherwise
            value = filled[other] if isinstance(other, str) else other
        filled[name] = value
        values[name.removesuffix(option.kind.suffix)] = option.checked(name, value, filled)
    return values

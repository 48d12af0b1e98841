"""`Option`: the declaration of an option, as a value, and functions that declare common kinds.

A class of options declares each option once, as a field (see `kafkagroup.options`):

    request_timeout: float = milliseconds(1, 30_000, "how long a response may take")

The annotation is the type of the checked value. The option has the name that users write
(`request_timeout_ms`), the type that they pass (`int`), its range, and the conversion. This module
knows no particular option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import CO_VARARGS, iscoroutinefunction, signature
from typing import Any, TypeVar, cast

from kafkagroup._foreign_options import check_keywords
from kafkagroup._hidden_values import hides_values
from kafkagroup._values import field, fields
from kafkagroup.errors import ConfigurationError

__all__ = [
    "MAX_INT32",
    "Given",
    "Option",
    "boolean",
    "checked_values",
    "choice",
    "declared",
    "function",
    "integer",
    "milliseconds",
    "option",
    "plain_function",
    "seconds",
    "string",
    "takes_options",
    "text_types",
]

Init = TypeVar("Init", bound=Callable[..., None])

MAX_INT32 = 2**31 - 1
"""The upper limit of each option that is a number, in the unit that users write: requests carry
most of them in 32 bits."""

_MAX_STRING = 32_767
"""Most bytes of a string in a request."""

_MAX_SHOWN = 100
"""Most characters of a value in an error message."""

Given = Mapping[str, Any]
"""Option name -> the value that the user passes, in the unit of the signature; without the options
that are not passed."""


class Option:
    """The declaration of one option."""

    __slots__ = (
        "annotation",
        "convert",
        "default",
        "expected",
        "has_type",
        "is_private",
        "is_valid",
        "least",
        "otherwise",
        "suffix",
        "text",
        "text_type",
    )

    def __init__(
        self,
        *,
        default: object,
        text: str,
        annotation: str,
        has_type: Callable[[Any], bool],
        expected: str = "",
        is_valid: Callable[[Any], bool] | None = None,
        least: int | str | None = None,
        convert: Callable[[Any], Any] | None = None,
        suffix: str = "",
        text_type: type | None = None,
        otherwise: object = None,
        is_private: bool = False,
    ) -> None:
        self.default = default
        """`_values.REQUIRED` if there is none. If it is None, users may pass None."""
        self.text = text
        """What it means, in Markdown, for the documentation."""
        self.annotation = annotation
        """The type of the value that users pass, spelled as in the signature."""
        self.has_type = has_type
        """Whether a value has the right type."""
        self.expected = expected
        """The accepted values in words, for the error message; of a number only "a number" or the
        like, as the message adds its limits."""
        self.is_valid = is_valid
        """Whether a value of the right type is accepted; None if each is."""
        self.least = least
        """The lower limit of a number; or the name of the option, declared before this one, whose
        value is the limit."""
        self.convert = convert
        """Returns the value as the library stores it; None if that is the same."""
        self.suffix = suffix
        """The unit, if the option's name ends with it and the field's name does not."""
        self.text_type = text_type
        """The type that the command line parses text into; None if the value cannot
        be written as text."""
        self.otherwise = otherwise
        """The meaning of None: a value, in the unit of the signature; or the name of the option,
        declared before this one, whose value is used instead."""
        self.is_private = is_private
        """Whether no constructor takes it. `compat` sets it, for a library that has it."""

    def checked(self, name: str, value: Any, before: Mapping[str, Any]) -> Any:
        """Check a value; return it as the library stores it. Raises: ConfigurationError.

        `before`: the values of the options that are declared before, in the units of the signature,
        with defaults filled in.
        """
        if value is None and self.default is None:
            return None
        least = before[self.least] if isinstance(self.least, str) else self.least
        fits = self.has_type(value)
        is_in_range = fits and (least is None or least <= value <= MAX_INT32)
        if is_in_range and (self.is_valid is None or self.is_valid(value)):
            return value if self.convert is None else self.convert(value)
        limits = "" if least is None else f"{least} to {MAX_INT32}"
        if fits:
            raise ConfigurationError(f"{name}={_shown(value)}; expected {limits or self.expected}")
        expected = f"{self.expected}, {limits}" if limits else self.expected
        nothing = " or None" if self.default is None else ""
        raise ConfigurationError(f"{name}{_described(value)}; expected {expected}{nothing}")


def _shown(value: object) -> str:
    """Return a value as text, at most the first characters: a string may be too long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _described(value: object) -> str:
    """Describe a value of the wrong type. Objects of other types than those below may hold
    a secret, and are not shown."""
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


def option(annotation: str, default: object, text: str, **more: Any) -> Any:
    """Declare a field of an options class. `more`: the other fields of `Option`."""
    annotation += " | None" if default is None else ""
    return field(
        metadata={Option: Option(annotation=annotation, default=default, text=text, **more)}
    )


def boolean(default: object, text: str) -> Any:
    """Declare True or False; other true or false values, such as 0, are refused."""
    return option(
        "bool", default, text, text_type=bool, has_type=_is_boolean, expected="True or False"
    )


def integer(least: int | str, default: object, text: str, **more: Any) -> Any:
    """Declare a whole number."""
    more |= {"text_type": int, "has_type": _is_whole, "expected": "a whole number"}
    return option("int", default, text, least=least, **more)


def seconds(least: int, default: object, text: str) -> Any:
    """Declare a duration in seconds."""
    more = {"text_type": float, "has_type": _is_number, "expected": "a number"}
    return option("float", default, text, least=least, **more)


def milliseconds(least: int | str, default: object, text: str, **more: Any) -> Any:
    """Declare a duration in milliseconds, stored in seconds. Fractions are accepted, because some
    callers compute the value."""
    more |= {"text_type": int, "has_type": _is_number, "expected": "a number"}
    more |= {"suffix": "_ms", "convert": _to_seconds}
    return option("int", default, text, least=least, **more)


def string(default: object, text: str) -> Any:
    """Declare a string that requests carry, with a length of 16 bits."""
    return option(
        "str",
        default,
        text,
        text_type=str,
        has_type=_is_string,
        is_valid=_fits_request,
        expected=f"a string of at most {_MAX_STRING} bytes of UTF-8",
    )


def choice(values: Mapping[str, object], default: object, text: str) -> Any:
    """Declare one of several strings, each converted to a value."""
    return option(
        f"Literal[{', '.join(map(repr, values))}]",
        default,
        text,
        text_type=str,
        has_type=_is_string,
        is_valid=values.__contains__,
        convert=values.__getitem__,
        expected=f"one of {list(values)}",
    )


def function(annotation: str, default: object, text: str) -> Any:
    """Declare a callable."""
    return option(annotation, default, text, has_type=callable, expected="a function")


def plain_function(annotation: str, default: object, text: str) -> Any:
    """Declare a callable that returns its result at once."""
    return option(
        annotation,
        default,
        text,
        has_type=callable,
        is_valid=_is_plain,
        expected="a function that is not a coroutine function",
    )


def _is_plain(value: Any) -> bool:
    return not iscoroutinefunction(value)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _fits_request(value: str) -> bool:
    try:
        return len(value.encode()) <= _MAX_STRING
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _to_seconds(value: float) -> float:
    return value / 1000


def declared(cls: type) -> dict[str, Option]:
    """Return the name that users write -> option, in the order of declaration, without the private
    ones."""
    return {name: option for name, option in _all_declared(cls).items() if not option.is_private}


def _all_declared(cls: type) -> dict[str, Option]:
    """Return what `declared` returns, with the private options."""
    options: dict[str, Option] = {
        name: attribute.metadata[Option] for name, attribute in fields(cls).items()
    }
    return {name + option.suffix: option for name, option in options.items()}


def checked_values(cls: type, given: Given) -> dict[str, Any]:
    """Check the values in `given`, by option name; return field name -> converted value. Options
    that are not given have their default; other names are ignored.

    Raises: ConfigurationError that names the first option with a wrong value.
    """
    filled: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, option in _all_declared(cls).items():
        value = given.get(name, option.default)
        if value is None and option.otherwise is not None:
            other = option.otherwise
            value = filled[other] if isinstance(other, str) else other
        filled[name] = value
        values[name.removesuffix(option.suffix)] = option.checked(name, value, filled)
    return values


def text_types(constructor: Callable[..., object]) -> dict[str, type]:
    """Return parameter -> the type that a text is parsed into, of a constructor without
    declarations, such as `Security`; without the parameters that no text can express."""
    # By the first word of the annotation; the last two are Literals of strings.
    types = {"bool": bool, "str": str, "Identification": str, "Protocol": str}
    found = {
        name: types.get(parameter.annotation.partition(" ")[0])
        for name, parameter in signature(constructor).parameters.items()
    }
    return {name: kind for name, kind in found.items() if kind is not None}


def takes_options(cls: Any) -> Callable[[Init], Init]:
    """Decorate a constructor that has the options of `cls` among its parameters.

    The constructor itself is empty: its signature and docstring are for callers, type checkers and
    `help()`. Each call calls `self._set_up(options, *others, *positional)`: the checked options,
    `cls.checked(given)`; the other parameters, in the order of the signature; and what `*args` of
    the constructor would get. The error for an unknown option names what to write instead.
    """

    def decorate(init: Init) -> Init:
        code, own_defaults = init.__code__, init.__defaults__ or ()
        names = code.co_varnames[1 : code.co_argcount]
        keywords = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        defaults = dict(zip(reversed(names), reversed(own_defaults), strict=False))
        defaults |= init.__kwdefaults__ or {}
        parameters = (*names, *keywords)
        others = [name for name in parameters if name not in declared(cls)]
        is_by_name = not names and not code.co_flags & CO_VARARGS

        @hides_values  # from the variables in a traceback
        @wraps(init)
        def construct(self: Any, *args: Any, **given: Any) -> None:
            client = type(self).__name__
            check_keywords(client, parameters, args, given)
            if args and is_by_name:
                raise TypeError(
                    f"{client}() takes arguments by name only:"
                    f" {client}(bootstrap_servers='localhost:9092')"
                )
            init(self, *args, **given)  # raises TypeError where an argument is missing
            named = dict(zip(names, args, strict=False)) | given
            more = [named[name] if name in named else defaults[name] for name in others]
            self._set_up(cls.checked(named), *more, *args[len(names) :])

        return cast(Init, construct)

    return decorate

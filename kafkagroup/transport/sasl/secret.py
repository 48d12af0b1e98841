"""A string that is not shown by accident: in a repr, a log, a pickle or a traceback."""

from __future__ import annotations

from typing import NoReturn

from kafkagroup.errors import ConfigurationError

__all__ = ["Secret", "check_type"]


class Secret:
    """A password, a token or a private key. Only `reveal` returns it. Do not assign its result to a
    variable: tracebacks may show variables."""

    __slots__ = ("_text",)

    def __init__(self, text: str | Secret) -> None:
        self._text: str = text._text if isinstance(text, Secret) else text

    def reveal(self) -> str:
        """Return the secret text."""
        return self._text

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled or copied; create a new one where it is needed")


def check_type(name: str, value: object, types: type | tuple[type, ...], expected: str) -> None:
    """Raise ConfigurationError for an option whose value, or the text of whose secret, is of
    another type.

    The error does not show the value: it may be a secret.
    """
    found: type
    if isinstance(value, Secret):
        is_right, found = isinstance(value.reveal(), types), type(value.reveal())
    else:
        is_right, found = isinstance(value, types), type(value)
    if not is_right:
        raise ConfigurationError(f"{name} is of type {found.__name__}; expected {expected}")

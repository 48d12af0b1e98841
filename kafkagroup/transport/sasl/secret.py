"""A string that is not shown by accident: in a repr, a log, a pickle or a traceback."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["Secret"]


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

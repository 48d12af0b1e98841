"""Errors of constructors without the values of their arguments, of which some are secret.

Reports of errors show the variables of every frame of a traceback, and a password that is passed to
the wrong option, or to the right one beside a wrong one, is plain text there. This module does no
work unless a constructor raises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["hides_values"]

Init = TypeVar("Init", bound=Callable[..., None])


def hides_values(init: Init) -> Init:
    """Decorate a constructor: if it raises, the frames of the traceback have no variables."""

    @wraps(init)
    def hiding(self: object, *args: Any, **options: Any) -> None:
        try:
            init(self, *args, **options)
        except Exception as error:
            args, options = (), {}
            _clear_frames(error)
            raise

    return cast(Init, hiding)


def _clear_frames(error: BaseException | None) -> None:
    from traceback import clear_frames

    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__

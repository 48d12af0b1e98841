"""Removes the values of arguments, of which some are secret, from the errors of constructors.

Reports of errors show the variables of every frame of a traceback, and a password that is passed to
the wrong option, or to the right one beside a wrong one, is plain text there. This module does no
work unless a constructor raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["hides_values"]

Init = TypeVar("Init", bound=Callable[..., None])


def hides_values(init: Init) -> Init:
    """Decorate a constructor: if it raises, the frames of the traceback have no variables."""

    @wraps(init)
    def hiding(self: object, *args: Any, **options: Any) -> None:
        handled = sys.exception()
        try:
            init(self, *args, **options)
        except Exception as error:
            args, options = (), {}  # this frame still runs, so `clear_frames` skips it
            _clear_frames(error, handled)
            raise

    return cast(Init, hiding)


def _clear_frames(error: BaseException | None, handled: BaseException | None) -> None:
    """Clear the frames of an error and of those that led to it, but not of the one that the caller
    was handling before: its variables are the application's."""
    from traceback import clear_frames

    if error is None or error is handled:
        return
    clear_frames(error.__traceback__)
    _clear_frames(error.__cause__, handled)
    _clear_frames(error.__context__, handled)

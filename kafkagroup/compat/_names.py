"""Name the options in the main API's errors as the application named them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kafkagroup import ConfigurationError

__all__ = ["renamed"]


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the options in the message of a ConfigurationError: main API's name -> compat name."""
    try:
        yield
    except ConfigurationError as error:
        message = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise ConfigurationError(message) from None

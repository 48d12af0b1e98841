"""The main API's errors about options, in the names that the application used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kafkagroup import ConfigurationError

__all__ = ["renamed"]


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Raise a ConfigurationError with each of these names replaced: name -> what it is called."""
    try:
        yield
    except ConfigurationError as error:
        message = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise ConfigurationError(message) from None

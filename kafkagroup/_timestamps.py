"""The timestamps of records to be written: milliseconds since the epoch, or -1 for none.

Brokers store lower ones, too. Then their log cleaner fails at the batch, and the partition is not
compacted any more.
"""

from __future__ import annotations

from operator import index
from typing import cast

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import MAX_INT64, NO_TIMESTAMP

__all__ = ["check_timestamp"]


def check_timestamp(value: object) -> None:
    """Check a timestamp that is to be written. Raises: ConfigurationError, with the reason."""
    # No check of the class: numpy's integers are accepted, too.
    try:
        number = NO_TIMESTAMP - 1 if isinstance(value, bool) else index(cast(int, value))
    except TypeError:
        number = NO_TIMESTAMP - 1
    if not NO_TIMESTAMP <= number <= MAX_INT64:
        raise ConfigurationError(
            f"the timestamp {value!r} is not valid; expected milliseconds since 1970, a whole"
            f" number from 0 to {MAX_INT64}, or -1 for none: brokers store a lower one, but can"
            " then not compact the partition"
        )

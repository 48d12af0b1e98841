"""The timestamps of records to be written: milliseconds since the epoch, or -1 for none.

Brokers store lower ones, too. Then their log cleaner fails at the batch, and the partition is not
compacted any more.
"""

from __future__ import annotations

from typing import cast

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import MAX_INT64, NO_TIMESTAMP

__all__ = ["check_timestamp"]


def check_timestamp(value: object) -> None:
    """Check a timestamp that is to be written. Raises: ConfigurationError, with the reason."""
    # No check of the class: numpy's integers are accepted, too.
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_whole or not NO_TIMESTAMP <= cast(int, value) <= MAX_INT64:
        raise ConfigurationError(
            f"the timestamp {value!r} is not valid; expected milliseconds since 1970, a whole"
            f" number from 0 to {MAX_INT64}, or -1 for none: brokers store a lower one, but can"
            " then not compact the partition"
        )

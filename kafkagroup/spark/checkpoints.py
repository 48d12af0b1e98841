"""The offset log in a checkpoint of Spark. Pure."""

from __future__ import annotations

import json

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.ranges import Positions

__all__ = ["positions_of_sources"]


def positions_of_sources(text: str) -> list[Positions | None]:
    """Return the positions of each source of a query, from the text of a file of its offset log:
    those of this library's source and of Spark's own connector; None for other sources.

    The file has a line with its version, a line with metadata, and a line for each source: the
    offsets of the source, or "-" for none. In version 2 the name of the source and a colon precede
    them (Spark's `OffsetSeqLog`).
    Raises: ConfigurationError for other files.
    """
    version, *lines = text.splitlines() or [""]
    if version not in ("v1", "v2"):
        raise ConfigurationError(
            f"the offset log begins with {version[:20]!r}: expected v1 or v2, as Spark writes it"
        )
    has_names = version == "v2"
    return [_positions(line.partition(":")[2] if has_names else line) for line in lines[1:]]


def _positions(line: str) -> Positions | None:
    # The offsets of another source may be any text or JSON.
    try:
        return Positions.from_json(json.loads(line))
    except (ValueError, TypeError, AttributeError, KeyError, ConfigurationError):
        return None

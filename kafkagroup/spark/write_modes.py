"""The mode of a write: rows are appended to a topic, also without `.mode("append")`.

Spark refuses its default mode, errorifexists, for every data source in Python, before it calls any
of the source's code; its own connector appends in this mode. So `register` lets PySpark's writers
choose append for the format of this package. All other formats and modes stay as they are.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

__all__ = ["append_by_default"]

_DEFAULTS = ("error", "errorifexists", "default")
"""The names of Spark's default mode."""

_CHOSEN = "_kafkagroup_chosen"
"""The attribute of a writer with the format and the mode that the application has chosen so far. A
class with this attribute was changed by `append_by_default`."""


def append_by_default(writer: type[Any], name: str) -> None:
    """Let writers of this class append to `format(name)` in Spark's default mode. A second call
    changes nothing."""
    if hasattr(writer, _CHOSEN):
        return
    set_format, set_mode = writer.format, writer.mode

    def choose(self: Any, **chosen: str) -> Any:
        """Keep a choice of the application, and set the mode that follows from all of them."""
        chosen = {**getattr(self, _CHOSEN), **chosen}
        setattr(self, _CHOSEN, chosen)
        mode = chosen.get("mode", _DEFAULTS[0])
        is_default = mode.lower() in _DEFAULTS
        if is_default and chosen.get("format", "").lower() == name:
            mode = "append"
        return set_mode(self, mode)

    @wraps(set_format)
    def format(self: Any, source: str) -> Any:
        set_format(self, source)
        return choose(self, format=source)

    @wraps(set_mode)
    def mode(self: Any, saveMode: str | None) -> Any:
        return self if saveMode is None else choose(self, mode=saveMode)

    setattr(writer, _CHOSEN, {})
    writer.format, writer.mode = format, mode

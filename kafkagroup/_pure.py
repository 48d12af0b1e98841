"""KAFKAGROUP_PURE=1: import the Python sources even where compiled modules exist beside them.

For stepping through the code in a debugger, and for finding out whether a fault is in the compiled
form only. "Pure" means without compiled modules here; elsewhere in this package, a pure module does
no I/O, reads no clock and draws no random number.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType

__all__ = ["install"]


class _SourceFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not fullname.startswith("kafkagroup."):
            return None
        loader = (SourceFileLoader, SOURCE_SUFFIXES)
        found = (FileFinder(place, loader).find_spec(fullname) for place in path)
        return next((spec for spec in found if spec is not None), None)


def install() -> None:
    """Import modules of this package from their sources from now on."""
    sys.meta_path.insert(0, _SourceFinder())

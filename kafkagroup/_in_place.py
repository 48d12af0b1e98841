"""The check of a source tree whose modules are compiled in place: only such a tree has the list
`_in_place.txt`, which setup.py writes."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from zlib import crc32

__all__ = ["check"]


def check() -> None:
    """Refuse to import compiled modules that do not match the sources beside them.

    Python prefers a compiled module to its source, even an outdated one, so edits would silently
    have no effect. The same holds for modules whose source is no longer compiled. Raises:
    ImportError.
    """
    here = os.path.dirname(__file__)
    with open(os.path.join(here, "_in_place.txt"), encoding="utf-8") as lines:
        # Each line: the suffix of the compiled module, the path of its source, the source's CRC-32.
        compiled = [line.split() for line in lines]
    # This Python does not load modules of other versions; their sources may no longer exist.
    compiled = [line for line in compiled if line[0] == EXTENSION_SUFFIXES[0]]
    top = os.path.dirname(here)
    for _, name, crc in compiled:
        try:
            with open(os.path.join(top, name), "rb") as source:
                is_unchanged = crc32(source.read()) == int(crc)
        except FileNotFoundError:
            is_unchanged = False
        if not is_unchanged:
            raise ImportError(f"{name} has changed since it was compiled; run `make compile`")
    # On Windows the list has other separators than the folders below.
    listed = {os.path.normpath(f"{top}/{name}").removesuffix(".py") for _, name, _ in compiled}
    for directory, subdirectories, files in os.walk(here):
        subdirectories[:] = [name for name in subdirectories if name != "__pycache__"]
        for file in files:
            if file.endswith(EXTENSION_SUFFIXES[0]):
                path = os.path.join(directory, file)
                if path.removesuffix(EXTENSION_SUFFIXES[0]) not in listed:
                    raise ImportError(f"{path} is of an older build; run `make compile`")

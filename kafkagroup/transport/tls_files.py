"""The files of a TLS context: certificates, keys and CAs, which are replaced while a client runs.

The context is made again before a connection if its files have changed. A certificate and its key
are often replaced one after the other: while the files do not load, the earlier context serves.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import stat
import threading
from collections.abc import Callable, Iterable

from kafkagroup.errors import ConfigurationError
from kafkagroup.transport.os_errors import lacks_descriptors

__all__ = ["FileContext"]

logger = logging.getLogger(__name__)


class FileContext:
    """A TLS context that is read from files. Any thread may use it."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        paths: Iterable[str | None],
        *,
        trust_system: bool = False,
    ) -> None:
        """`make` makes the context from the files `paths`, here for the first time. `trust_system`:
        also trust the system's certificates. They are read before the first connection, as that
        takes about 20 ms.

        Raises: what `make` raises.
        """
        self._paths = [path for path in paths if path is not None]
        self._trust_system = trust_system
        self._is_system_unread = trust_system
        """Whether the system's certificates are still to be read."""
        self._make = make
        self._lock = threading.Lock()
        # Read before `make` reads the files: a change in between is found at the next connection.
        self._loaded = _contents(self._paths)
        """What `_contents` returned for the files that `current` was made from."""
        self._unusable: list[object] | None = None
        """What `_contents` returned for files that failed to load; None if the last ones loaded."""
        self.current = make()
        """The context of the last connection."""

    @property
    def has_files(self) -> bool:
        """Whether there is anything to read again."""
        return bool(self._paths) or self._trust_system

    def renew(self) -> ssl.SSLContext:
        """Return the context, made again if a file has changed. Call it in a thread: it reads
        files."""
        with self._lock:
            if self._is_system_unread:
                self._read_system()
            found = _contents(self._paths)
            if found == self._loaded:
                self._unusable = None
            elif found != self._unusable:
                self._load(found)
            return self.current

    def _read_system(self) -> None:
        """Add the system's certificates to the context, and their files to those to read again."""
        default = ssl.get_default_verify_paths()
        paths = [path for path in (default.cafile, default.capath) if path is not None]
        self._paths += paths
        self._loaded += _contents(paths)
        self.current.load_default_certs()
        self._is_system_unread = False

    def _load(self, found: list[object]) -> None:
        try:
            context = self._make()
        except ConfigurationError as error:
            # `from None` hides the OSError in tracebacks, but keeps it as the context.
            if lacks_descriptors(error.__context__):
                return  # the files may be good: the next connection reads them again
            if self._unusable is None:
                logger.warning(
                    "the changed TLS files do not load, and the earlier ones stay in use: %s; the"
                    " files are read again before each connection",
                    error,
                )
            self._unusable = found
            return
        if self._trust_system:
            context.load_default_certs()
        self.current, self._loaded, self._unusable = context, found, None


def _contents(paths: Iterable[str]) -> list[object]:
    """Return a value that changes when the contents of the paths change."""
    return [_contents_of(path) for path in paths]


def _contents_of(path: str) -> object:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return sorted(map(_identity, os.scandir(path)))
        if not stat.S_ISREG(status.st_mode):
            return None  # a pipe can be read only once
        # The contents, not the time of the last change: some tools that replace files keep it.
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).digest()
    except OSError as error:
        return error.errno


def _identity(entry: os.DirEntry[str]) -> tuple[str, int, int, int]:
    """Return what differs when a file of a directory is replaced. The contents are not read, as
    some directories have hundreds of files."""
    try:
        status = entry.stat()
    except OSError:
        return entry.name, 0, 0, 0  # a link that leads nowhere
    return entry.name, status.st_ino, status.st_size, status.st_mtime_ns

"""Profiles: connection options for clusters, from a TOML file.

```toml
[default]                      # used without --profile
bootstrap.servers = "localhost:9092"

[profiles.production]          # complete: nothing of [default] is added
bootstrap.servers = ["kafka-1:9093", "kafka-2:9093"]
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "operator"
```

Keys are Kafka's names, with dots, dashes or underscores. `~/.config/kafkagroup.toml` may be
missing; a file given by name must exist.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from kafkagroup.errors import ConfigurationError

__all__ = ["Setting", "default_file", "load_profile", "others_can_read"]

_TABLES = ("default", "profiles")


class Setting(NamedTuple):
    """One option as it was given."""

    name: str
    value: object
    where: str
    """The argument, the variable, or the file and key, for messages. The value is not in it: it may
    be secret."""


def default_file() -> Path:
    """Return the path of the file that is read by default."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return _expanded(home) / "kafkagroup.toml"


def load_profile(file: str | None, name: str | None) -> tuple[Path, list[Setting]]:
    """Return the file's path and the profile's settings, in the file's order. `None` means the
    default file or profile. There are no settings if neither is named and the default file does
    not exist.

    Raises: ConfigurationError.
    """
    path = default_file() if file is None else _expanded(file)
    if file is None and not path.exists():
        if name is not None:
            raise ConfigurationError(f"there is no profile {name!r}: {path} does not exist")
        return path, []
    document = _read(path)
    if name is None:
        table, title = document.get("default", {}), "default"
    else:
        table, title = _profile(path, document, name), f"profiles.{name}"
    where = f"{path}, [{title}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where}: expected a table")
    return path, [Setting(key, value, f"{where}, {key}") for key, value in _leaves(table)]


def others_can_read(path: Path) -> bool:
    """Whether users other than the owner may read the file, on systems with file modes."""
    return os.name == "posix" and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _expanded(path: str) -> Path:
    """Return the path with `~` replaced, if the home directory is known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no HOME, and a user id without a name, as in some containers
        return Path(path)


def _read(path: Path) -> dict[str, object]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    for key in document:
        if key not in _TABLES:
            raise ConfigurationError(
                f"{path}: {key} is outside of [default] and [profiles.NAME]; move it into one"
            )
    return document


def _profile(path: Path, document: Mapping[str, object], name: str) -> object:
    profiles = document.get("profiles", {})
    if not isinstance(profiles, dict):
        raise ConfigurationError(f"{path}: profiles: expected tables as [profiles.production]")
    if name not in profiles:
        near = get_close_matches(name, profiles, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(profiles) or 'none'}"
        raise ConfigurationError(f"{path} has no profile {name!r}; {hint}")
    return profiles[name]


def _leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested tables with dotted keys: in TOML, `sasl.mechanism = ...` without
    quotes is a table `sasl`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value

"""Profiles: connection options for clusters, from a TOML file.

```toml
[default]                      # used where no profile is named
bootstrap.servers = "localhost:9092"

[profiles.production]          # stands alone: nothing of [default] is sent to another cluster
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

__all__ = ["Said", "default_file", "load_profile", "others_can_read"]

_TABLES = ("default", "profiles")


class Said(NamedTuple):
    """One option as somebody wrote it."""

    name: str
    value: object
    where: str
    """For messages: which argument, variable, or key of which file. Without the value, which may be
    secret."""


def default_file() -> Path:
    """Where the file is that nobody has to name."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "kafkagroup.toml"


def load_profile(file: str | None, name: str | None) -> tuple[Path, list[Said]]:
    """What the profile says, in the file's order; the file is the default one if none is named, and
    the profile likewise.

    Raises: ConfigurationError.
    """
    path = default_file() if file is None else Path(file).expanduser()
    if file is None and not path.exists():
        if name is not None:
            raise ConfigurationError(f"there is no profile {name!r}, as there is no {path}")
        return path, []
    document = _read(path)
    if name is None:
        table, title = document.get("default", {}), "default"
    else:
        table, title = _profile(path, document, name), f"profiles.{name}"
    where = f"{path}, [{title}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where}: expected a table")
    return path, [Said(key, value, f"{where}, {key}") for key, value in _leaves(table)]


def others_can_read(path: Path) -> bool:
    """Whether the file's mode lets anybody but its owner read it; where files have modes."""
    return os.name == "posix" and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


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
                f"{path}: {key} stands outside of [default] and [profiles.NAME], where options are"
            )
    return document


def _profile(path: Path, document: Mapping[str, object], name: str) -> object:
    profiles = document.get("profiles", {})
    if not isinstance(profiles, dict):
        raise ConfigurationError(f"{path}: profiles: expected tables as [profiles.production]")
    if name not in profiles:
        near = get_close_matches(name, profiles, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(profiles) or 'none'}"
        raise ConfigurationError(f"{path} has no profile {name!r}; {hint}")
    return profiles[name]


def _leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """`sasl.mechanism = ...` without quotes is a table within a table in TOML."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value

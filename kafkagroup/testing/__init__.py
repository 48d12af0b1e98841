"""Brokers for tests: an embedded one and real Apache Kafka. Loaded on first use (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkagroup.testing.embedded import EmbeddedKafka
    from kafkagroup.testing.local import Listener, LocalKafka
    from kafkagroup.testing.zookeeper import LocalZooKeeper

__all__ = ["EmbeddedKafka", "Listener", "LocalKafka", "LocalZooKeeper"]

_HOMES = {
    "EmbeddedKafka": "embedded",
    "Listener": "local",
    "LocalKafka": "local",
    "LocalZooKeeper": "zookeeper",
}
"""Name -> the module that defines it."""


if not TYPE_CHECKING:  # because of `__getattr__`, a type checker would accept every name

    def __getattr__(name):
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

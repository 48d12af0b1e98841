"""The error message if kazoo cannot be imported: it is missing, or too old."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["kazoo_needed"]


def kazoo_needed() -> str:
    """Return the message of the ImportError."""
    try:
        found = version("kazoo")
    except PackageNotFoundError:
        return "membership in ZooKeeper needs kazoo: pip install 'kafkagroup[zookeeper]'"
    # pykafka 2.8.0 pins kazoo 2.5.0, so installing the extra beside it is refused or breaks it.
    return (
        f"membership in ZooKeeper needs kazoo 2.10 or newer, and kazoo {found} is installed;"
        " pip install 'kafkagroup[zookeeper]', without pykafka, which pins kazoo 2.5.0"
    )

"""How log lines name a client."""

from __future__ import annotations

from kafkagroup._text import escaped

__all__ = ["client_name"]


def client_name(kind: str, client_id: str | None, group_id: str | None = None) -> str:
    """Return the name of a client in log lines: "consumer host-1 of group billing". `kind`: what
    kind of client it is, such as "consumer"."""
    name = f"{kind} {client_id}" if client_id else kind
    return escaped(f"{name} of group {group_id}" if group_id else name)

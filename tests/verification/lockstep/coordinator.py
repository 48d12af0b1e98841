"""The interface of a group coordinator that runs in virtual time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Protocol

__all__ = ["Coordinator"]


class Coordinator(Protocol):
    """A group coordinator in virtual time; requests and responses are Kafka's own bytes."""

    def submit(self, request: bytes) -> int:
        """Send one request: header and body, without the length. Returns a ticket, under which the
        response may come later."""
        ...

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and run the timers that are due, in order."""
        ...

    def responses(self) -> list[tuple[int, bytes]]:
        """Return the responses since the last call, in order: the ticket, and header and body
        without the length."""
        ...

    def set_topics(self, topics: Mapping[str, tuple[uuid.UUID, int]]) -> None:
        """Replace the metadata image: topic name -> id and partition count."""
        ...

    def reset(self, seed: int) -> None:
        """Start anew, without groups and topics, at a fixed time, with random ids from `seed`."""
        ...

    def close(self) -> None:
        """Release what the coordinator holds."""
        ...

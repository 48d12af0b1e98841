"""Which coordinators are compared."""

from __future__ import annotations

from .apache import ApacheCoordinator
from .embedded import MAX_SIZE, EmbeddedCoordinator
from .many import Pair

__all__ = ["apache_and_embedded"]


def apache_and_embedded() -> Pair:
    """Start Apache's coordinator beside the embedded one. Raises: LocalKafkaUnavailable."""
    size = str(MAX_SIZE)
    settings = {"group.max.size": size, "group.consumer.max.size": size}
    return ApacheCoordinator(settings), EmbeddedCoordinator()

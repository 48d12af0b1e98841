"""The producer id and epochs under which batches are written (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import NamedTuple

from kafkagroup.types import MAX_INT16

__all__ = ["NO_IDENTITY", "Identities", "ProducerIdentity"]


class ProducerIdentity(NamedTuple):
    """A producer id, and the epoch in which its sequence numbers count."""

    producer_id: int
    epoch: int


NO_IDENTITY = ProducerIdentity(-1, -1)


class Identities:
    """The identity that a producer has now. Each partition adopts it when it next begins a sequence
    of numbers."""

    def __init__(self, *, is_coordinated: bool = False) -> None:
        """`is_coordinated`: the epochs are those of a transactional id, whose coordinator gives
        them."""
        self.current = NO_IDENTITY
        self.is_coordinated = is_coordinated

    @property
    def is_known(self) -> bool:
        """Whether the brokers have given an id."""
        return self.current is not NO_IDENTITY

    def bump(self, last: ProducerIdentity) -> None:
        """Begin a new epoch for a partition that cannot continue in `last`, unless another
        partition has begun it already. After the highest epoch the producer has no id until the
        brokers give another one.

        Without a coordinator no transaction marker needs a later epoch, so the highest can be used,
        too.
        """
        if last != self.current:
            return
        if self.current.epoch < MAX_INT16:
            self.current = self.current._replace(epoch=self.current.epoch + 1)
        else:
            self.current = NO_IDENTITY

    def forget(self, producer_id: int) -> None:
        """Let the producer have no id until the brokers give another one, unless they have given
        it already: they do not accept `producer_id`."""
        if producer_id == self.current.producer_id:
            self.current = NO_IDENTITY

"""Consumers with what only other clients have, for `compat`: private options, and a group that a
subclass of `compat.kafka_python.ConsumerCoordinator` defines: its kind, its protocols, and how it
assigns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kafkagroup._values import evolve
from kafkagroup.concurrency.coalescing_task import Spawn
from kafkagroup.consumer import Consumer
from kafkagroup.errors import ConfigurationError
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.options import ConsumerOptions
from kafkagroup.runtime.consume.engine import Engine
from kafkagroup.runtime.consume.subscriber import Subscriber
from kafkagroup.runtime.member.protocol import SupportedProtocols
from kafkagroup.transport.cluster import Cluster

__all__ = ["ExtendedConsumer", "Extension", "TunedConsumer"]


class Extension(Protocol):
    """Defines a group: its kind, its protocols, and how it assigns."""

    @property
    def performs_assignment(self) -> bool:
        """Whether the extension computes assignments, and not one of the consumer's assignors."""

    def protocol_type(self) -> str:
        """Return the protocol type of the group."""

    def supported_protocols(self) -> SupportedProtocols:
        """Return name and metadata of the protocols to join with, the preferred first."""

    def perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> dict[str, bytes]:
        """Return member id -> assignment. `members`: member ids with metadata. Must not block."""

    def note_joined(
        self, generation: int, member_id: str, protocol: str, assignment: bytes
    ) -> None:
        """Take note of a generation before its assignment is applied."""


class ExtendedSubscriber(Subscriber):
    """A consumer's part in the group that an extension defines."""

    def __init__(self, extension: Extension, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._extension = extension
        self._work: Compute | None = None
        """The last work that the extension was called for; None before the first."""

    @property
    def protocol_type(self) -> str:
        return self._extension.protocol_type()

    def protocols(self) -> SupportedProtocols:
        return self._extension.supported_protocols()

    def assignors_protocols(self) -> SupportedProtocols:
        """Return the protocols of the consumer's assignors."""
        return super().protocols()

    async def assign(self, generation: GenerationInfo) -> None:
        self._extension.note_joined(
            generation.generation_id,
            generation.member_id,
            generation.protocol_name,
            generation.assignment,
        )
        await super().assign(generation)

    async def compute(self, work: Compute) -> dict[str, bytes]:
        """Let the extension assign, if it performs assignments; else one of the consumer's
        assignors. The extension may use the assignor named as the protocol, which needs the
        metadata of all members' topics: wait for it first."""
        if not self._extension.performs_assignment:
            return await super().compute(work)
        if work.protocol_name in self._assignors:
            await self._leader.watch_topics_of(work.members)
        self._work = work
        driver = self._session.member.driver
        leader_id = "" if driver is None else driver.member.member_id
        assigned = self._extension.perform_assignment(
            leader_id, work.protocol_name, list(work.members.items())
        )
        self._leader.note_computed()
        return assigned

    def assigned_by_assignor(self, protocol: str, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return what the assignor named `protocol` assigns: member id -> assignment. `members`:
        member id -> metadata.

        Raises: ConfigurationError if there is no such assignor, or if this member has not led a
        group.
        """
        if protocol not in self._assignors or self._work is None:
            raise ConfigurationError(
                f"no assignor {protocol!r} was asked to assign: there is none, or this member has"
                " not led a group"
            )
        work = evolve(self._work, members=members)
        return self._leader.assign_now(self._assignors[protocol], work)


class TunedConsumer(Consumer):
    """A consumer with private options."""

    def __init__(self, private_options: Mapping[str, Any], *topics: str, **options: Any) -> None:
        # Not the constructor of `Consumer`, which accepts no private options.
        self._set_up(ConsumerOptions.checked({**options, **private_options}), *topics)


TunedConsumer.__name__ = Consumer.__name__  # for messages: applications know this name only


class ExtendedConsumer(Consumer):
    """A consumer whose group an extension defines."""

    def __init__(self, extension: Extension, **options: Any) -> None:
        super().__init__(**options)
        self._extension = extension

    @property
    def subscriber(self) -> ExtendedSubscriber | None:
        """None until the consumer is started."""
        found = None if self._engine is None else self._engine.subscriber
        return found if isinstance(found, ExtendedSubscriber) else None

    def _create_engine(self, cluster: Cluster, spawn: Spawn) -> Engine:
        return Engine(
            self._session,
            cluster,
            spawn,
            subscriber=partial(ExtendedSubscriber, self._extension),
        )

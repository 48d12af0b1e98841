"""What a consumer or a group member needs to know of its membership, whoever keeps the group.

Kafka's own is `driver.Driver`; others are values that begin one. Only types are here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from kafkagroup.runtime.driver import Application, SupportedProtocols
from kafkagroup.runtime.lag import LoopLag
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.one_shot_event import OneShotEvent
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition

__all__ = ["Membership", "Running"]


class Running(Protocol):
    """One member of one group."""

    @property
    def out(self) -> OneShotEvent:
        """Set once the member has left or failed."""
        ...

    @property
    def lease_expires_at(self) -> float:
        """Until when ownership is sure without another answer, on the loop's clock."""
        ...

    @property
    def member_id(self) -> str:
        """This member, as the group calls it; "" before it has joined."""
        ...

    @property
    def generation_id(self) -> int:
        """The generation it is in."""
        ...

    @property
    def protocols(self) -> SupportedProtocols:
        """What it offers."""
        ...

    @property
    def leads(self) -> bool:
        """Whether it is to ask for a new generation when what it computed from has changed."""
        ...

    @property
    def coordinator(self) -> Node | None:
        """The broker that coordinates the group, while one does and is known."""
        ...

    @property
    def last_heartbeat(self) -> float:
        """When the last sign of life was sent, on the loop's clock; -inf before the first."""
        ...

    def stands(self, generation_id: int) -> bool:
        """Whether the generation is the one that it is in, with all that is assigned to it."""
        ...

    @property
    def may_commit(self) -> bool:
        """Whether commits of what it owns are taken now."""
        ...

    @property
    def expelled(self) -> bool:
        """Whether it left because the application did not come back in time."""
        ...

    def rejoin(self, reason: str, protocols: SupportedProtocols | None = None) -> None:
        """Ask for a new generation, perhaps with other metadata."""

    def invalidate_coordinator(self, reason: str) -> None:
        """Look for the coordinator again, if there is one."""

    def leave(self, reason: str, *, leave_group: bool | None = None, lost: bool = False) -> None:
        """Leave the group, as `Leaving` has it; `out` tells when it is done."""

    async def confirm(self, partitions: Collection[TopicPartition], timeout: float) -> float:
        """Until when commits of these may be sent, on the loop's clock; make sure, within `timeout`
        seconds, that they are still owned, if that is not for the coordinator to say.

        Raises: CommitFailedError.
        """
        ...

    async def run(self) -> None:
        """Join, and stay until the member has left or failed."""


class Membership(Protocol):
    """How to become a member of a group that Kafka does not keep."""

    def begin(
        self,
        application: Application,
        *,
        group_id: str,
        protocol_type: str,
        protocols: SupportedProtocols,
        whole: bool,
        client_id: str | None,
        rebalance_timeout: float,
        retry_backoff: float,
        retry_backoff_max: float,
        max_retries: int | None,
        lag: LoopLag,
        troubles: Troubles,
    ) -> Running:
        """A member that is yet to run. `whole`: its generations exclude each other; otherwise its
        assignments are partitions, of which each has one owner at a time. `troubles` takes what is
        tried and fails."""

"""What the parts of the runtime require of each other: interfaces, and types named in them.

`RunningMember` is a group member, as consumers and `GroupMember` use it; Kafka's is
`driver.Driver`. `Application` is what a running member calls. Nothing here imports a module that
implements one of these, not even for type checkers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kafkagroup._values import frozen
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.vocabulary import Compute, GenerationInfo, MemberMetadata
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import MembershipProtocol, MemberState, SupportedProtocols
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition

__all__ = [
    "Application",
    "MemberFactory",
    "OverduePoll",
    "RunningMember",
]


@frozen(kw_only=True)
class OverduePoll:
    """Why a member leaves its group although the application has not asked for that."""

    reason: str
    """What the application did, for the coordinator and for events."""
    detail: str
    """For how long it did so, and the limit."""
    advice: str
    """What to change."""


class Application(Protocol):
    """What a running member calls.

    The member calls plain functions at once. It awaits coroutines one at a time, in order.
    """

    def on_generation_end(self, *, lost: bool) -> None:
        """Stop delivering what is revoked: the generation ends, or has ended (`lost`)."""

    def on_lease_extended(self) -> None:
        """Note that the ownership lease was extended: the membership was acknowledged."""

    def on_error(self, error: Exception) -> None:
        """Note an error that does not end the membership."""

    def on_fatal_error(self, error: Exception) -> None:
        """Note the error that ends the membership; the member may still have to leave."""

    def poll_due_at(self, loop_ran_at: float) -> float:
        """Return when the next poll is due. `loop_ran_at`: when the application's loop was last
        known to run; earlier than now only if another thread calls this. Both are on the loop's
        clock.

        Changes nothing. It may run in another thread than the other functions.
        """

    def overdue_poll(self, loop_ran_at: float, now: float) -> OverduePoll:
        """Return why the next poll is overdue. As for `poll_due_at`: changes nothing, and times
        are on the loop's clock."""
        ...

    async def revoke(self, deadline: float) -> SupportedProtocols | None:
        """Process what is in flight, commit and release, by `deadline` on the loop's clock.

        Returns the protocols to support at the next join, None for the same as before.
        """

    async def lose(self, reason: str) -> SupportedProtocols | None:
        """Release without committing: others may own the partitions by now. Returns what `revoke`
        returns."""

    async def assign(self, generation: GenerationInfo) -> None:
        """Apply the assignment of a new generation."""

    async def compute(self, work: Compute) -> Mapping[str, bytes]:
        """Compute each member's assignment, as the leader."""


class RunningMember(Protocol):
    """One member of one group."""

    member: MemberState
    """The state, replaced as a whole by each step. Any thread may read it."""
    closed: OneShotEvent
    """Set once the member has left or failed."""
    fell_back: bool
    """Whether the member ended because the coordinator does not support its protocol, and may be
    replaced by a member of the classic protocol."""
    unanswered_id: str
    """The member id that the coordinator may still count, because leaving the group failed; else
    ""."""

    @property
    def lease_left(self) -> float:
        """For how many seconds the lease lasts; 0 or less without one. It runs on while the system
        is suspended."""
        ...

    @property
    def coordinator(self) -> Node | None:
        """The broker that coordinates the group; None while there is none or it is unknown."""
        ...

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a stable member."""
        ...

    @property
    def last_heartbeat(self) -> float:
        """When the last heartbeat was sent, on the loop's clock; -inf before the first."""
        ...

    @property
    def follows_subscription(self) -> bool:
        """Whether the assignment was computed from the subscription that was requested last."""
        ...

    @property
    def is_expelled(self) -> bool:
        """Whether the member lost its partitions as it left: the application did not poll in time,
        or the client has adopted another cluster."""
        ...

    def rejoin(self, reason: str) -> None:
        """Request a new generation; under KIP-848, the full assignment."""

    def change_metadata(self, reason: str, metadata: MemberMetadata) -> None:
        """Request an assignment that is computed from this metadata."""

    def invalidate_coordinator(self, reason: str) -> None:
        """Look up the coordinator again, if there is one."""

    def leave(
        self,
        reason: str,
        *,
        leave_group: bool | None = None,
        lost: bool = False,
        deadline: float = math.inf,
    ) -> None:
        """Leave the group; `closed` is set when that is done. The arguments are the fields of
        `Leaving`, but `deadline` is on the loop's clock."""

    async def confirm(self, partitions: Collection[TopicPartition], deadline: float) -> float:
        """Return until when commits of these partitions may be sent, on the lease clock; infinity
        if the group has a coordinator, which refuses late commits itself.

        Without a coordinator, check first, by `deadline` on the loop's clock, that the member still
        owns the partitions. Raises: CommitFailedError.
        """
        ...

    async def run(self) -> None:
        """Join, and return when the member has left or failed."""


class MemberFactory(Protocol):
    """Creates the members of a group that Kafka does not coordinate. Users pass it as the option
    `membership`."""

    @property
    def protocol(self) -> MembershipProtocol[Any]:
        """The protocol of its members."""
        ...

    def create_member(
        self,
        application: Application,
        config: MemberConfig,
        protocols: SupportedProtocols,
        loop_delay: LoopDelay,
        log: MembershipLog,
        troubles: Troubles,
    ) -> RunningMember:
        """Return a member that is not running yet. `troubles` records what fails and is retried."""
        ...

"""The member that a consumer has now, and the identity that it commits with.

The engine begins and ends members; the subscriber applies their generations. Other classes
only read. Without a group there is no member, and `may_commit` is always true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkagroup._values import evolve
from kafkagroup.runtime.offsets.values import NO_MEMBER, Identity

if TYPE_CHECKING:
    from kafkagroup.runtime.member.interfaces import RunningMember
    from kafkagroup.runtime.member.protocol import MembershipProtocol

__all__ = ["CurrentMember"]


class CurrentMember:
    """What a consumer knows of its member, or of the last one while it has none."""

    def __init__(self) -> None:
        self.driver: RunningMember | None = None
        """Runs the member; None before the first join and after leaving."""
        self.identity: Identity = NO_MEMBER
        """The generation that was applied last, and the member's ids."""
        self.protocol: MembershipProtocol[Any]
        """The protocol of the member, or of the next one while there is none. The engine sets
        it."""
        self.is_stable = False
        """Whether a generation is current and its assignment applied."""
        self._follows_subscription: Callable[[], bool] | None = None
        """Returns whether the assignment is that of the changed subscription; None if no change is
        under way."""
        self.is_expelled = False
        """Whether the member left because the application did not poll for `max_poll_interval_ms`.
        The next poll rejoins."""
        self.is_void = False
        """Whether the group that the member is in is an earlier cluster's."""
        self.was_member = False
        """Whether any member of this consumer has had an assignment, perhaps an empty one."""
        self.had_partitions = False
        """Whether the member's last assignment had partitions, so that the application had to
        poll."""

    def begin(self, driver: RunningMember) -> None:
        """Note that a new member starts to join."""
        self.driver = driver
        self.had_partitions = False
        self._follows_subscription = None
        self.is_expelled = self.is_void = False

    def end(self) -> None:
        """Note that the member has left. Drop its identity: its commits would be refused."""
        self.driver, self.is_void = None, False
        self.identity = NO_MEMBER

    def change_subscription(self, is_followed: Callable[[], bool]) -> None:
        """Note that the subscription has changed. The present assignment is that of the earlier
        one, until `is_followed` returns true."""
        self.is_stable, self._follows_subscription = False, is_followed

    def follow_subscription(self) -> bool:
        """Note whether the coordinator has assigned by the changed subscription (KIP-848), which
        need not change the assignment. Return True at the first call after it has."""
        if self._follows_subscription is None or not self._follows_subscription():
            return False
        self.is_stable, self._follows_subscription = True, None
        return True

    def note_assignment(self, *, has_partitions: bool) -> None:
        """Note that an assignment is applied."""
        self.had_partitions = has_partitions
        self.was_member = True

    def complete_rebalance(self, generation_id: int) -> None:
        """Note that the assignment of a generation is applied. The generation may have ended
        meanwhile."""
        if self._follows_subscription is None or self._follows_subscription():
            self._follows_subscription = None
            self.is_stable = self.is_in_generation(generation_id)

    def is_in_generation(self, generation_id: int) -> bool:
        """Return whether this generation is the member's current one. Under KIP-848: whether the
        member has an assignment, because a new epoch alone does not change the assignment."""
        return self.driver is not None and self.driver.member.is_current(generation_id)

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator accepts commits now: not while the member joins."""
        return not self.is_void and (self.driver is None or self.driver.member.may_commit)

    @property
    def commits_as_member(self) -> bool:
        """Whether commits name a member of a group that Kafka coordinates: the coordinator then
        keeps the offsets, and accepts them from members only. Not with `assign()`, or with claims
        in ZooKeeper: other clients may commit, and the broker deletes an offset
        `offsets.retention.minutes` after its last commit."""
        return self.identity is not NO_MEMBER

    @property
    def generation_id(self) -> int:
        """The generation, or member epoch, that commits name. Under KIP-848 it is the current
        epoch: the epoch moves on while the assignment stays, and an earlier one may be refused."""
        if self.driver is not None and self.protocol.coordinator_assigns:
            return self.driver.member.generation_id
        return self.identity.generation_id

    @property
    def reads_offsets_as(self) -> Identity | None:
        """The identity for fetching committed offsets; None where the coordinator checks none."""
        if self.identity is NO_MEMBER or not self.protocol.coordinator_assigns:
            return None
        return evolve(self.identity, generation_id=self.generation_id)

"""Makes the members of one client, one after another.

What outlives a member is here: the id under which the coordinator may still count it, and which
protocol the coordinator knows.
"""

from __future__ import annotations

from typing import Any

from kafkagroup._values import evolve
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.vocabulary import MemberMetadata
from kafkagroup.runtime.member.classic_protocol import CLASSIC
from kafkagroup.runtime.member.driver import Driver
from kafkagroup.runtime.member.history import History
from kafkagroup.runtime.member.interfaces import Application, MemberFactory, RunningMember
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import CoordinatedProtocol, MembershipProtocol, Predecessor
from kafkagroup.transport.cluster import Cluster

__all__ = ["Members"]


class Members:
    """The members of one client, of which one runs at a time."""

    def __init__(
        self,
        cluster: Cluster,
        application: Application,
        protocol: CoordinatedProtocol[Any],
        factory: MemberFactory | None,
        loop_delay: LoopDelay,
        log: MembershipLog,
        history: History,
        *,
        is_threaded: bool,
        client_member_id: str = "",
    ) -> None:
        """`protocol`: that of the first member, where Kafka coordinates the group. `factory`:
        creates the members where it does not. `is_threaded`: whether each runs in a thread of its
        own. `client_member_id`: the id that the client has generated for its members (KIP-848)."""
        self._cluster = cluster
        self._application = application
        self._protocol = protocol
        self._factory = factory
        self._loop_delay = loop_delay
        self._log = log
        self._history = history
        self._is_threaded = is_threaded
        self._last = Predecessor(client_member_id=client_member_id)

    @property
    def protocol(self) -> MembershipProtocol[Any]:
        """The protocol of the next member."""
        return self._protocol if self._factory is None else self._factory.protocol

    @property
    def unanswered_id(self) -> str:
        """The id under which the coordinator may still count the last member, because leaving the
        group failed; else "". A client that closes makes another member with it, which only leaves.
        Else the group would wait for this id until its session ends, and a new coordinator would
        begin that session anew."""
        return self._last.unanswered_id

    def create(self, config: MemberConfig, metadata: MemberMetadata) -> RunningMember:
        """Return a member that does not run yet."""
        if self._factory is not None:
            watchers = self._loop_delay, self._log, self._cluster.troubles
            return self._factory.create_member(
                self._application, config, metadata.protocols, *watchers
            )
        driver_class = Driver
        if self._is_threaded:
            # Imported here: most members run in the application's loop.
            from kafkagroup.runtime.member.threaded import ThreadedDriver

            driver_class = ThreadedDriver
        return driver_class(
            self._cluster,
            self._protocol,
            self._protocol.first_state(config, metadata, self._last),
            self._application,
            self._loop_delay,
            self._log,
            self._history,
        )

    async def run(self, driver: RunningMember) -> None:
        """Run a member until it has left or failed."""
        await driver.run()
        self._last = evolve(
            self._last, unanswered_id=driver.unanswered_id, may_be_known=driver.may_be_known
        )

    def fall_back_to_classic(self) -> None:
        """Make the next members classic ones: the coordinator does not support KIP-848."""
        self._protocol = CLASSIC

"""Makes the members of one client, one after another.

What outlives a member is here: the last member, whose id the coordinator may still count, and
whether the coordinator supports KIP-848.
"""

from __future__ import annotations

from typing import Any

from kafkagroup.member.config import MemberConfig
from kafkagroup.member.vocabulary import MemberMetadata
from kafkagroup.options import ConsumerOptions, GroupMemberOptions
from kafkagroup.runtime.member.classic_protocol import CLASSIC
from kafkagroup.runtime.member.driver import Driver
from kafkagroup.runtime.member.history import History
from kafkagroup.runtime.member.interfaces import Application, MemberFactory, RunningMember
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import CoordinatedProtocol, MembershipProtocol, Predecessor
from kafkagroup.transport.cluster import Cluster

__all__ = ["Members", "member_config"]


def member_config(
    options: ConsumerOptions | GroupMemberOptions, protocol_type: str
) -> MemberConfig:
    """Return the configuration of a member, by the options that all clients have."""
    return MemberConfig(
        group_id=options.group_id or "",
        protocol_type=protocol_type,
        client_id=options.client_id,
        group_instance_id=options.group_instance_id,
        session_timeout=options.session_timeout,
        rebalance_timeout=options.rebalance_timeout,
        heartbeat_interval=options.heartbeat_interval,
        request_timeout=options.request_timeout,
        retry_backoff=options.rebalance_backoff,
        retry_backoff_max=max(options.retry_backoff_max, options.rebalance_backoff),
        max_retries=options.rebalance_max_retries,
    )


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
        creates the members where Kafka does not; None where it does. `is_threaded`: whether each
        member runs in a thread of its own. `client_member_id`: the id that the client has generated
        for its members (KIP-848); "" for a `GroupMember`, which never uses that protocol."""
        self._cluster = cluster
        self._application = application
        self._protocol = protocol
        self._factory = factory
        self._loop_delay = loop_delay
        self._log = log
        self._history = history
        self._is_threaded = is_threaded
        self._client_member_id = client_member_id
        self._last: RunningMember | None = None
        """The last member that was created."""

    @property
    def protocol(self) -> MembershipProtocol[Any]:
        """The protocol of the next member."""
        return self._protocol if self._factory is None else self._factory.protocol

    @property
    def unanswered_id(self) -> str:
        """The id under which the coordinator may still count the last member, because leaving the
        group failed; "" for none. A client that closes makes another member with this id, which
        only leaves. Otherwise the group would wait for the id until its session ends, and a new
        coordinator would begin that session anew."""
        return "" if self._last is None else self._last.unanswered_id

    def create(self, config: MemberConfig, metadata: MemberMetadata) -> RunningMember:
        """Return a member that does not run yet."""
        if self._factory is not None:
            watchers = self._loop_delay, self._log, self._cluster.troubles
            self._last = self._factory.create_member(
                self._application, config, metadata.protocols, *watchers
            )
            return self._last
        driver_class = Driver
        if self._is_threaded:
            # Imported here: most members run in the application's loop.
            from kafkagroup.runtime.member.threaded import ThreadedDriver

            driver_class = ThreadedDriver
        predecessor = Predecessor(
            client_member_id=self._client_member_id,
            unanswered_id=self.unanswered_id,
            may_be_known=isinstance(self._last, Driver) and self._last.may_be_known,
        )
        self._last = driver = driver_class(
            self._cluster,
            self._protocol,
            self._protocol.first_state(config, metadata, predecessor),
            self._application,
            self._loop_delay,
            self._log,
            self._history,
        )
        # Kept until the new member has left: if that one fails, the last may still be counted.
        driver.unanswered_id = predecessor.unanswered_id
        return driver

    def fall_back_to_classic(self) -> None:
        """Make the next members classic ones: the coordinator does not support KIP-848."""
        self._protocol = CLASSIC

"""The configuration of a consumer's members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkagroup.member.classic_state import Config
from kafkagroup.options import ConsumerOptions, ConsumerProtocol
from kafkagroup.runtime.member.protocol import MembershipProtocol

if TYPE_CHECKING:
    from kafkagroup.member.consumer_state import Config as ConsumerConfig

__all__ = ["member_config"]


def member_config(
    options: ConsumerOptions,
    protocol: MembershipProtocol[Any],
    *,
    protocol_type: str,
    cooperative: bool,
    was_member: bool,
) -> Config | ConsumerConfig:
    """Return the configuration of a member of this protocol. `protocol_type` and `cooperative`:
    where members assign. `was_member`: whether the consumer has been a member before."""
    retry_backoff_max = max(options.retry_backoff_max, options.rebalance_backoff)
    if not protocol.coordinator_assigns:
        return Config(
            group_id=options.group_id or "",
            was_member=was_member,
            protocol_type=protocol_type,
            group_instance_id=options.group_instance_id,
            cooperative=cooperative,
            session_timeout=options.session_timeout,
            rebalance_timeout=options.rebalance_timeout,
            heartbeat_interval=options.heartbeat_interval,
            request_timeout=options.request_timeout,
            retry_backoff=options.rebalance_backoff,
            retry_backoff_max=retry_backoff_max,
            max_retries=options.rebalance_max_retries,
        )
    # Imported here: most members are classic, and importing a consumer must stay cheap.
    from kafkagroup.member.consumer_state import Config as ConsumerConfig

    return ConsumerConfig(
        group_id=options.group_id or "",
        was_member=was_member,
        group_instance_id=options.group_instance_id,
        rack=options.client_rack,
        assignor=options.group_remote_assignor,
        may_fall_back=options.group_protocol is ConsumerProtocol.AUTO,
        session_timeout=options.session_timeout,
        rebalance_timeout=options.rebalance_timeout,
        heartbeat_interval=options.heartbeat_interval,
        request_timeout=options.request_timeout,
        retry_backoff=options.rebalance_backoff,
        retry_backoff_max=retry_backoff_max,
        max_retries=options.rebalance_max_retries,
    )

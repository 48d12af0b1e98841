"""The configuration of a member, from the options of a client."""

from __future__ import annotations

from kafkagroup.member.config import MemberConfig
from kafkagroup.options import ConsumerOptions, GroupMemberOptions

__all__ = ["member_config"]


def member_config(
    options: ConsumerOptions | GroupMemberOptions, protocol_type: str
) -> MemberConfig:
    """Return the configuration of a member of any protocol."""
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

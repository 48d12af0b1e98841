"""The configuration of a consumer's members."""

from __future__ import annotations

from kafkagroup._values import evolve
from kafkagroup.member.config import MemberConfig
from kafkagroup.options import ConsumerOptions, ConsumerProtocol
from kafkagroup.runtime.member.member_config import member_config

__all__ = ["consumer_member_config"]


def consumer_member_config(
    options: ConsumerOptions, *, protocol_type: str, cooperative: bool, was_member: bool
) -> MemberConfig:
    """Return the configuration of a member of any protocol. `was_member`: whether the consumer has
    been a member before."""
    return evolve(
        member_config(options, protocol_type),
        was_member=was_member,
        cooperative=cooperative,
        rack=options.client_rack,
        assignor=options.group_remote_assignor,
        may_fall_back=options.group_protocol is ConsumerProtocol.AUTO,
    )

"""Cooperative sticky: balanced, with few moves, and never assigning what another member owns.

A partition that moves is withheld for one round: its owner revokes it and rejoins, and the next
round assigns it. Compatible on the wire with the assignors of the same name in Java, librdkafka and
kafka-python. Sources: KIP-429, KIP-792.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafkagroup.assign.spec import DecodedUserData, GroupSpec, named
from kafkagroup.assign.sticky_user_data import decode_user_data
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["cooperative_sticky_assignor", "generation_in"]

_GENERATION = struct.Struct(">i")


def _user_data(_owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Return the generation as user data: before v2, subscriptions have no field for it."""
    return _GENERATION.pack(generation)


def generation_in(user_data: bytes | None) -> int:
    """Return the generation in a member's user data; -1 if there is none.

    The user data of Java and of this library is the generation alone, that of librdkafka has the
    format of `sticky`.
    """
    if user_data is None or len(user_data) != _GENERATION.size:
        return decode_user_data(user_data)[1]
    generation: int = _GENERATION.unpack(user_data)[0]
    return max(generation, -1)


def _read_user_data(data: bytes | None) -> DecodedUserData:
    return DecodedUserData(generation=generation_in(data))


@named("cooperative-sticky", cooperative=True, user_data=_user_data, read_user_data=_read_user_data)
def cooperative_sticky_assignor(spec: GroupSpec) -> Assignment:
    """Keep what members own as far as balance allows; withhold partitions that move.

    The target is the assignment of `sticky_assignor`: as even as the subscriptions allow, with the
    fewest moves. A partition of the target is withheld while another member has a newest claim to
    it (`assign.claims`). In the next round that member has revoked it, and everything is assigned:
    the group is stable after two rounds. The cost is that of `sticky_assignor`.
    """
    # Only leaders compute: every consumer imports this module.
    from kafkagroup.assign.target import find_target

    return {member: target.without_revocations() for member, target in find_target(spec).items()}

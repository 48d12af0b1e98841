"""Cooperative sticky: balanced, moving little, and never handing over what is still owned.

A partition that changes hands is left out for one round: its owner lets it go and rejoins, and the
next round gives it away. Compatible on the wire with the assignors of the same name in Java,
librdkafka and kafka-python. Sources: KIP-429, KIP-792.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafkagroup.assign.had import decode_user_data
from kafkagroup.assign.spec import GroupSpec, Told, named
from kafkagroup.assign.target import find_target
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["cooperative_sticky_assignor", "generation_in"]

_GENERATION = struct.Struct(">i")


def _user_data(_had: Sequence[TopicPartition], generation: int) -> bytes:
    """For members that do not know the generation field of subscriptions (before v2)."""
    return _GENERATION.pack(generation)


def generation_in(user_data: bytes | None) -> int:
    """The generation that an old member put into its user data; -1 when there is none.

    Java's and this library's are the generation alone, librdkafka's are those of `sticky`.
    """
    if user_data is None or len(user_data) != _GENERATION.size:
        return decode_user_data(user_data)[1]
    generation: int = _GENERATION.unpack(user_data)[0]
    return max(generation, -1)


def _told(data: bytes | None) -> Told:
    return Told(generation=generation_in(data))


@named("cooperative-sticky", cooperative=True, user_data=_user_data, told=_told)
def cooperative_sticky_assignor(spec: GroupSpec) -> Assignment:
    """Keep what members own as far as balance allows; withhold what changes hands.

    It aims at what `sticky_assignor` gives: as even as the subscriptions allow, with the fewest
    moves for that. What is given to a member while anybody else claims it, and be the claim old,
    is left out. The round after finds it free: then nobody has to let go of anything any more,
    and everything is assigned, so that a change settles in two rounds. Costs what that costs.
    """
    return {member: held.now() for member, held in find_target(spec).items()}

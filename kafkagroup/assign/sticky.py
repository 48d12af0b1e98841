"""Sticky: balanced, with few moves; members revoke all partitions before they join (eager).

Members own nothing when they join, so each sends its last assignment and the generation of that in
its user data. Compatible on the wire with the assignors of the same name in Java, librdkafka and
kafka-python. Sources: KIP-54, KIP-341.
"""

from __future__ import annotations

from kafkagroup.assign.spec import DecodedUserData, GroupSpec, named
from kafkagroup.assign.sticky_user_data import decode_user_data, encode_user_data
from kafkagroup.types import Assignment

__all__ = ["sticky_assignor"]


def _read_user_data(data: bytes | None) -> DecodedUserData:
    owned, generation = decode_user_data(data)
    return DecodedUserData(owned=owned, generation=generation)


@named("sticky", user_data=encode_user_data, read_user_data=_read_user_data)
def sticky_assignor(spec: GroupSpec) -> Assignment:
    """Assign all partitions as evenly as the subscriptions allow, with the fewest moves.

    Balance is exact, even if subscriptions differ: no chain of members, each passing one partition
    to the next, could bring one to a member with two fewer. So counts differ by at most one if all
    members subscribe to the same topics. Of all assignments that are as even, the result is one
    that takes the fewest partitions from members with valid claims: a claim is valid if no other
    member claims the partition with the same or a higher generation. Racks come last: they choose
    which partitions a member loses, if it must lose some, and which member gets which free
    partition (KIP-881). Java also moves partitions because of racks.

    O(partitions + claims + pairs of topic and subscriber) when little changes. Beyond that, the
    cost grows with the number of pools of topics with the same subscribers, not with the
    partitions (`balance`).
    """
    # Only leaders compute: every consumer imports this module.
    from kafkagroup.assign.target import find_target

    return {member: target.all_partitions() for member, target in find_target(spec).items()}

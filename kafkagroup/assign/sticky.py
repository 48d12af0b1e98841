"""Sticky: balanced, moving little; everybody lets go of everything before it joins (eager).

As nothing is owned when members join, each says in its user data what it was assigned last and in
which generation. Compatible on the wire with the assignors of the same name in Java, librdkafka
and kafka-python. Sources: KIP-54, KIP-341.
"""

from __future__ import annotations

from kafkagroup.assign.had import decode_user_data, encode_user_data
from kafkagroup.assign.spec import GroupSpec, Told, named
from kafkagroup.assign.target import find_target
from kafkagroup.types import Assignment

__all__ = ["sticky_assignor"]


def _told(data: bytes | None) -> Told:
    owned, generation = decode_user_data(data)
    return Told(owned=owned, generation=generation)


@named("sticky", user_data=encode_user_data, told=_told)
def sticky_assignor(spec: GroupSpec) -> Assignment:
    """Give out everything as evenly as the subscriptions allow, and keep what members had.

    Balance is exact, with different subscriptions too: no chain of members, each passing one
    partition on, could bring one to a member with two fewer. So counts differ by at most one with
    the same subscription. Of all assignments that even, it is one that takes the fewest partitions
    from the members whose claims stand: the one of the highest generation does, equal ones fell
    each other. Racks count after both, for partitions that have to find a member (KIP-881); Java
    moves partitions for the sake of racks, this does not.

    O(partitions + claims + pairs of topic and subscriber) when little changes. More grows with the
    number of pools of topics with the same subscribers, not with the partitions (`balance`).
    """
    return {member: held.all() for member, held in find_target(spec).items()}

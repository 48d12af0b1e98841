"""Assignors: pure functions `(GroupSpec) -> Assignment`, and checks and plans of their results.

No module of this package reads a clock, random numbers, a socket or a member's state: each member
computes the same assignment for the same group. `__all__` has the public names; the modules are
private, and may change in any release.
"""

from typing import TYPE_CHECKING

from kafkagroup._public import late_names, names_in_all
from kafkagroup.assign.cooperative_sticky import cooperative_sticky_assignor
from kafkagroup.assign.range import range_assignor
from kafkagroup.assign.roundrobin import roundrobin_assignor
from kafkagroup.assign.spec import Assignor, GroupSpec, MemberSpec, protocol_name
from kafkagroup.assign.sticky import sticky_assignor

if TYPE_CHECKING:
    from kafkagroup.assign.functions import allocating, deciding, naive_allocator
    from kafkagroup.assign.naive import naive_assignor
    from kafkagroup.assign.participants import decide_partitions_range, decide_partitions_roundrobin
    from kafkagroup.assign.weighted import weighted_sticky

__all__ = [
    "Assignor",
    "GroupSpec",
    "MemberSpec",
    "allocating",
    "cooperative_sticky_assignor",
    "decide_partitions_range",
    "decide_partitions_roundrobin",
    "deciding",
    "naive_allocator",
    "naive_assignor",
    "protocol_name",
    "range_assignor",
    "roundrobin_assignor",
    "sticky_assignor",
    "weighted_sticky",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    # Imported on first use: every consumer imports this package, and few use these.
    __getattr__ = late_names(
        __name__,
        {
            "allocating": "kafkagroup.assign.functions.allocating",
            "decide_partitions_range": "kafkagroup.assign.participants.decide_partitions_range",
            "decide_partitions_roundrobin": (
                "kafkagroup.assign.participants.decide_partitions_roundrobin"
            ),
            "deciding": "kafkagroup.assign.functions.deciding",
            "naive_allocator": "kafkagroup.assign.functions.naive_allocator",
            "naive_assignor": "kafkagroup.assign.naive.naive_assignor",
            "weighted_sticky": "kafkagroup.assign.weighted.weighted_sticky",
        },
    )
    __dir__ = names_in_all(__name__)

"""Who gets which partition: pure functions `(GroupSpec) -> Assignment`.

No clock, no randomness, no I/O: the same answer for the same input on every member and every run.
"""

from kafkagroup.assign.cooperative_sticky import cooperative_sticky_assignor
from kafkagroup.assign.range import range_assignor
from kafkagroup.assign.roundrobin import roundrobin_assignor
from kafkagroup.assign.spec import Assignor, GroupSpec, MemberSpec, protocol_name

__all__ = [
    "Assignor",
    "GroupSpec",
    "MemberSpec",
    "cooperative_sticky_assignor",
    "protocol_name",
    "range_assignor",
    "roundrobin_assignor",
]

"""Assignors: pure functions `(GroupSpec) -> Assignment`, and checks and plans of their results.

No module of this package reads a clock, random numbers, a socket or a member's state: each member
computes the same assignment for the same group. `__all__` has the public names; the modules are
private, and may change in any release.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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

_LATE = {
    "allocating": "functions",
    "decide_partitions_range": "participants",
    "decide_partitions_roundrobin": "participants",
    "deciding": "functions",
    "naive_allocator": "functions",
    "naive_assignor": "naive",
    "weighted_sticky": "weighted",
}
"""Public name -> its module, which is imported on first use: every consumer imports this package,
and few use these."""


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name):
        if name not in _LATE:
            if name.startswith("__"):  # Python and its tools look for these
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            from kafkagroup._foreign_names import unknown_import

            raise unknown_import(__name__, name)
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

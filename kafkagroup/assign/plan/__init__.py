"""A dry run of an assignor: the assignment that it would return, and the reason of each move.

`__all__` has the public names; the modules are private, and may change in any release.
"""

from kafkagroup.assign.plan.changes import with_newcomers, without
from kafkagroup.assign.plan.dry_run import plan
from kafkagroup.assign.plan.rounds import MAX_ROUNDS
from kafkagroup.assign.plan.values import (
    Change,
    MemberPlan,
    Move,
    Plan,
    Reason,
    Round,
    Spread,
    VoidClaim,
)

__all__ = [
    "MAX_ROUNDS",
    "Change",
    "MemberPlan",
    "Move",
    "Plan",
    "Reason",
    "Round",
    "Spread",
    "VoidClaim",
    "plan",
    "with_newcomers",
    "without",
]

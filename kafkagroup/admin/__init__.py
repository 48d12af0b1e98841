"""Administration of groups and topics: `Admin`, and the values that it returns."""

from typing import TYPE_CHECKING

from kafkagroup.admin.client import Admin
from kafkagroup.admin.lag import PartitionLag
from kafkagroup.admin.reset import (
    OffsetChange,
    OffsetPlan,
    offsets_from_json,
    offsets_to_json,
)
from kafkagroup.admin.values import (
    GroupDescription,
    GroupList,
    GroupListing,
    GroupState,
    GroupType,
    MemberDescription,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)

__all__ = [
    "Admin",
    "GroupDescription",
    "GroupList",
    "GroupListing",
    "GroupState",
    "GroupType",
    "MemberDescription",
    "NewTopic",
    "OffsetChange",
    "OffsetPlan",
    "PartitionDescription",
    "PartitionLag",
    "TopicDescription",
    "offsets_from_json",
    "offsets_to_json",
]


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name):
        if name[0].isupper():  # each import statement asks for `__path__`
            from kafkagroup._foreign_names import unknown_import

            raise unknown_import(__name__, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

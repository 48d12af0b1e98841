"""Administration of groups and topics: `Admin`, and the values that it returns."""

from typing import TYPE_CHECKING

from kafkagroup._public import late_names
from kafkagroup.admin.client import Admin
from kafkagroup.admin.lag import PartitionLag
from kafkagroup.admin.reset import (
    OffsetChange,
    OffsetPlan,
    offsets_from_json,
    offsets_to_json,
)
from kafkagroup.admin.transaction_values import (
    OpenTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionList,
    TransactionListing,
    TransactionState,
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
    "OpenTransaction",
    "PartitionDescription",
    "PartitionLag",
    "ProducerDescription",
    "TopicDescription",
    "TransactionDescription",
    "TransactionList",
    "TransactionListing",
    "TransactionState",
    "offsets_from_json",
    "offsets_to_json",
]


if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = late_names(__name__, {})

"""What an assignor is told: members, what they subscribe to, and how many partitions there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kafkagroup._values import field, frozen
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

__all__ = [
    "Assignor",
    "GroupSpec",
    "MemberSpec",
    "Told",
    "is_cooperative",
    "named",
    "protocol_name",
    "told",
    "user_data",
]


@frozen(kw_only=True)
class MemberSpec:
    """One member of the group."""

    topics: frozenset[str]
    """What it subscribes to; topics that do not exist do no harm."""
    instance_id: str | None = None
    """Its `group_instance_id`, when it is a static member."""
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    """What it owned when it joined."""
    generation: int = -1
    """The generation in which it owned that; -1 when unknown."""
    capacity: float = 1.0
    """How much load it can carry beside the others; above 0. Only weighted assignors look."""
    user_data: bytes | None = None
    """What this assignor added to its subscription, see `named`; unchecked, from another client."""


@frozen(kw_only=True)
class GroupSpec:
    """A group to assign."""

    members: Mapping[str, MemberSpec]
    """Member id -> member."""
    partitions: Mapping[str, int]
    """Topic -> number of partitions, for the topics that exist."""
    racks: Mapping[str, Sequence[frozenset[str]]] = field(factory=dict)
    """Topic -> the racks of each partition's replicas, by partition number; none when unknown."""
    loads: Mapping[TopicPartition, float] = field(factory=dict)
    """Partition -> its load (a rate, a lag), 0 or more; what is missing counts as 1.0. Only
    weighted assignors look."""

    def order(self) -> list[str]:
        """Member ids in the order that every client sorts them in: static members by instance id,
        then the others by member id.

        The order of ids alone would move partitions when a static member comes back with a new
        id, and starve a member when static and dynamic ones interleave (as in kafka-python).
        """
        return sorted(self.members, key=self._sort_key)

    def _sort_key(self, member_id: str) -> tuple[bool, bytes, str]:
        instance_id = self.members[member_id].instance_id
        # Java's order of strings is that of their UTF-16 units.
        units = (instance_id or member_id).encode("utf-16-be", "surrogatepass")
        return (instance_id is None, units, member_id)

    def subscribers(self) -> dict[str, list[str]]:
        """Topic -> the members that subscribe to it, in `order`; for those of `topics`."""
        found: dict[str, list[str]] = {topic: [] for topic in self.topics()}
        for member in self.order():
            for topic in self.members[member].topics & found.keys():
                found[topic].append(member)
        return found

    def topics(self) -> list[str]:
        """Topics that exist and that somebody subscribes to, sorted."""
        return self.existing(member.topics for member in self.members.values())

    def existing(self, subscriptions: Iterable[frozenset[str]]) -> list[str]:
        """The topics of these subscriptions that exist, sorted."""
        subscribed = frozenset[str]().union(*subscriptions)
        return sorted(topic for topic in subscribed if self.partitions.get(topic))


Assignor = Callable[[GroupSpec], Assignment]
"""A pure function. Its name on the wire is its attribute `protocol_name`, or its own name."""


@frozen(kw_only=True)
class Told:
    """What a member's user data says, beside its subscription."""

    owned: tuple[TopicPartition, ...] | None = None
    """What it had last; None where the subscription itself says it."""
    generation: int = -1
    """The generation in which it had that; -1 when unknown."""
    capacity: float = 1.0


def named(
    name: str,
    *,
    cooperative: bool = False,
    user_data: Callable[[Sequence[TopicPartition], int], bytes] | None = None,
    told: Callable[[bytes | None], Told] | None = None,
) -> Callable[[Assignor], Assignor]:
    """Give an assignor the name that members agree on.

    A `cooperative` one never hands over a partition in the round in which it is revoked (KIP-429).
    `user_data` makes what it adds to a subscription, from what its member had last, and in which
    generation; `told` reads that on the leader, and raises nothing.
    """

    def give(assignor: Assignor) -> Assignor:
        vars(assignor).update(
            protocol_name=name, cooperative=cooperative, user_data=user_data, told=told
        )
        return assignor

    return give


def is_cooperative(assignor: Assignor) -> bool:
    """Whether members keep what they own while the group rebalances with it."""
    return bool(getattr(assignor, "cooperative", False))


def user_data(assignor: Assignor, had: Sequence[TopicPartition], generation: int) -> bytes | None:
    """What the assignor adds to the subscription of a member that had this in a generation."""
    make = getattr(assignor, "user_data", None)
    return None if make is None else make(had, generation)


def told(assignor: Assignor, data: bytes | None) -> Told:
    """What a member's user data says to the assignor."""
    read = getattr(assignor, "told", None)
    return Told() if read is None else read(data)


def protocol_name(assignor: Assignor) -> str:
    """The name of an assignor on the wire. Raises: ConfigurationError when it has none."""
    name = getattr(assignor, "protocol_name", getattr(assignor, "__name__", None))
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise ConfigurationError(
            f"assignor {assignor!r} needs an attribute protocol_name: a string"
        )
    return name

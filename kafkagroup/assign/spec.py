"""The input of an assignor: the members, their subscriptions, and the partition counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kafkagroup._values import field, frozen
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

__all__ = [
    "Assignor",
    "DecodedUserData",
    "GroupSpec",
    "MemberSpec",
    "is_cooperative",
    "named",
    "protocol_name",
    "read_user_data",
    "user_data",
]


@frozen(kw_only=True)
class MemberSpec:
    """One member of the group."""

    topics: frozenset[str]
    """The topics that it subscribes to; those that do not exist are ignored."""
    instance_id: str | None = None
    """Its `group_instance_id`, if it is a static member."""
    rack: str | None = None
    """Its `client_rack`; None or "" without one."""
    owned: tuple[TopicPartition, ...] = ()
    """The partitions that it owned when it joined."""
    generation: int = -1
    """The generation in which it owned them; -1 when unknown."""
    capacity: float = 1.0
    """How much load it can carry relative to the others; above 0. For weighted assignors."""
    user_data: bytes | None = None
    """The assignor's bytes in its subscription, see `named`; unchecked, from another client."""


@frozen(kw_only=True)
class GroupSpec:
    """A group that needs an assignment."""

    members: Mapping[str, MemberSpec]
    """Member id -> member."""
    partitions: Mapping[str, int]
    """Topic -> number of partitions, for the topics that exist."""
    racks: Mapping[str, Sequence[frozenset[str]]] = field(factory=dict)
    """Topic -> the racks of each partition's replicas, by partition number; empty if unknown."""
    loads: Mapping[TopicPartition, float] = field(factory=dict)
    """Partition -> its load (a rate, a lag), 0 or more; a missing one counts as 1.0. For weighted
    assignors."""

    def order(self) -> list[str]:
        """Return the member ids in Java's order: static members by instance id, then the others by
        member id.

        By member id alone, partitions would move when a static member comes back with a new id.
        """
        return sorted(self.members, key=self._sort_key)

    def _sort_key(self, member_id: str) -> tuple[bool, bytes, str]:
        instance_id = self.members[member_id].instance_id
        # Java compares strings by their UTF-16 code units.
        units = (instance_id or member_id).encode("utf-16-be", "surrogatepass")
        return (instance_id is None, units, member_id)

    def subscribers(self) -> dict[str, list[str]]:
        """Return topic -> the members that subscribe to it, in `order`; for all `topics`."""
        found: dict[str, list[str]] = {topic: [] for topic in self.topics()}
        for member in self.order():
            for topic in self.members[member].topics & found.keys():
                found[topic].append(member)
        return found

    def topics(self) -> list[str]:
        """Return the topics that exist and have subscribers, sorted."""
        return self.existing(member.topics for member in self.members.values())

    def existing(self, subscriptions: Iterable[frozenset[str]]) -> list[str]:
        """Return the topics of these subscriptions that exist, with a partition or more, sorted."""
        subscribed = frozenset[str]().union(*subscriptions)
        return sorted(topic for topic in subscribed if self.partitions.get(topic))


Assignor = Callable[[GroupSpec], Assignment]
"""A pure function from a group to its assignment. Its name on the wire is its attribute
`protocol_name`, or else its own name."""


@frozen(kw_only=True)
class DecodedUserData:
    """The decoded user data of a member's subscription."""

    owned: tuple[TopicPartition, ...] | None = None
    """The member's last assignment; None if the subscription itself has it."""
    generation: int = -1
    """The generation of that assignment; -1 when unknown."""
    capacity: float = 1.0
    """How much load the member can carry, as in `MemberSpec`."""


def named(
    name: str,
    *,
    cooperative: bool = False,
    user_data: Callable[[Sequence[TopicPartition], int], bytes] | None = None,
    read_user_data: Callable[[bytes | None], DecodedUserData] | None = None,
) -> Callable[[Assignor], Assignor]:
    """Decorate an assignor with its name on the wire, by which members agree on it.

    A `cooperative` assignor never assigns a partition in the round in which it is revoked
    (KIP-429). `user_data` returns the bytes to add to a subscription, by the member's last
    assignment and its generation; `read_user_data` decodes them on the leader, and raises nothing.
    """

    def decorate(assignor: Assignor) -> Assignor:
        vars(assignor).update(
            protocol_name=name,
            cooperative=cooperative,
            user_data=user_data,
            read_user_data=read_user_data,
        )
        return assignor

    return decorate


def is_cooperative(assignor: Assignor) -> bool:
    """Return whether members keep their partitions while the group rebalances with it."""
    return bool(getattr(assignor, "cooperative", False))


def user_data(
    assignor: Assignor, last_owned: Sequence[TopicPartition], generation: int
) -> bytes | None:
    """Return the user data that the assignor adds to a subscription; None if it adds none.
    `last_owned` is the member's last assignment, of `generation`."""
    make = getattr(assignor, "user_data", None)
    return None if make is None else make(last_owned, generation)


def read_user_data(assignor: Assignor, data: bytes | None) -> DecodedUserData:
    """Decode a member's user data by the assignor."""
    read = getattr(assignor, "read_user_data", None)
    return DecodedUserData() if read is None else read(data)


def protocol_name(assignor: Assignor) -> str:
    """Return the name of an assignor on the wire. Raises: ConfigurationError if it has none."""
    if isinstance(assignor, str):
        raise ConfigurationError(
            f"assignor {assignor!r} is a string; expected a function of kafkagroup.assign, such as"
            " range_assignor"
        )
    name = getattr(assignor, "protocol_name", getattr(assignor, "__name__", None))
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise ConfigurationError(
            f"assignor {assignor!r} needs an attribute protocol_name: a string"
        )
    return name

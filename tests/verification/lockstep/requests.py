"""Scripts from seeds: groups of clients that mostly follow the protocol, and sometimes do not.

Not generated, because the two coordinators are known to differ, or because no coordinator is asked:

- A JoinGroup for a group with members of the consumer protocol, and the reverse: the embedded
  broker has no groups of both, and no migration between them.
- A commit without membership whose metadata is too large: it creates a group in Kafka's memory, but
  no record, so that the group cannot be described until another group's record is written.
- A static member of a consumer group that returns under the id of another member: for the time of
  that request, Kafka counts the partitions of the member that it displaces as taken.
- A static member of a classic group with a rebalance timeout of 0 or less: while the group waits
  for such members only, Kafka tries again and again to complete the rebalance, without a pause. In
  virtual time that never ends.
- A member of a consumer group with a rebalance timeout of 0: Kafka removes it within the request
  that makes it revoke, and with it the target that the embedded coordinator would take over.
- Share groups, streams groups and transactional offsets: the embedded broker has none.
- Requests that cannot be decoded: the network layer closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import attrs

from kafkagroup.wire.embedded_protocol import Subscription, encode_subscription
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kafkagroup.wire.messages.group import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kafkagroup.wire.schema import NO_ID, Request, fields_of

from .script import Ask, Known, Script, Step, Topics, Wait

__all__ = ["make_script", "topic_id"]

_TOPICS = ("t0", "t1", "u0")
_PATTERNS = ("t.*", "u0|t1", ".*0", "x.*", "", "[")
_WAITS = (1, 10, 100, 500, 998, 999, 1000, 2999, 3001, 5000, 9999, 10_000, 30_000, 44_998, 44_999)
"""Milliseconds. A request arrives a millisecond later: at 999, 1000, ... and just in time."""

_TOO_LARGE = "é" * 4097
_NO_TOPIC = UUID(int=7)


def topic_id(name: str, count: int) -> UUID:
    """Return the id of the topic when it is created for the `count`th time."""
    return UUID(int=(_TOPICS.index(name) + 1 << 64) + (4 << 76) + count, version=4)


def make_script(seed: int) -> Script:
    """Return the script of this seed: 10 to 60 steps."""
    return Script(seed, _Writer(Random(seed)).write())


@attrs.define(eq=False)
class _Group:
    name: str
    is_classic: bool
    protocol_type: str
    clients: list[_Client] = attrs.field(factory=list)


@attrs.define(eq=False)
class _Client:
    """A client keeps its options; after a restart it has another name."""

    name: str
    group: _Group
    version: int
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    pattern: str | None
    assignor: str | None

    def known(self, what: str, plus: int = 0) -> Any:
        return Known(self.name, what, plus)


class _Writer:
    """Writes one script."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._steps: list[Step] = []
        self._topics = {
            name: [1, random.randint(1, 4)] for name in _TOPICS if random.random() < 0.8
        }
        self._created = dict.fromkeys(_TOPICS, 1)
        self._clients = 0
        self._groups = [self._group(f"g{i}") for i in range(random.choice((1, 1, 2)))]

    # ------------------------------------------------------------ the world

    def _group(self, name: str) -> _Group:
        is_classic = self.random.random() < 0.5
        protocol_type = "connect" if is_classic and self.random.random() < 0.1 else "consumer"
        group = _Group(name, is_classic, protocol_type)
        for number in range(self.random.choice((1, 2, 2, 3, 3, 4))):
            instance = f"i{number}" if self.random.random() < 0.3 else None
            group.clients.append(self._client(group, instance))
        return group

    def _client(self, group: _Group, instance_id: str | None) -> _Client:
        random = self.random
        self._clients += 1
        # No two deadlines at the same time: their order would be a matter of taste.
        apart = 17 * self._clients
        if group.is_classic:
            version = random.choice((5, 6, 7, 8, 9, 9)) if instance_id else random.randint(0, 9)
        else:
            version = random.choice((0, 1, 1, 1))
        return _Client(
            name=f"c{self._clients}",
            group=group,
            version=version,
            instance_id=instance_id,
            session_timeout_ms=random.choice((6000, 10_000, 30_000)) + apart,
            rebalance_timeout_ms=random.choice((1000, 5000, 20_000, 60_000)) + apart,
            topics=tuple(random.sample(_TOPICS, random.choice((0, 1, 1, 2, 3)))),
            pattern=random.choice(_PATTERNS) if version == 1 and random.random() < 0.2 else None,
            assignor=random.choice(("uniform", "range")) if random.random() < 0.3 else None,
        )

    # ------------------------------------------------------------ writing

    def write(self) -> tuple[Step, ...]:
        self._set_topics()
        length = self.random.randint(8, 50)
        while len(self._steps) < length:
            self._go_on()
        for group in self._groups:
            self._describe(group)
        return tuple(self._steps)

    def _go_on(self) -> None:
        random = self.random
        group = random.choice(self._groups)
        client = random.choice(group.clients)
        chance = random.random()
        if chance < 0.14:
            self._wait()
        elif chance < 0.19:
            self._change_topics()
        elif chance < 0.24:
            self._describe(group)
        elif chance < 0.27:
            self._restart(group, client)
        elif chance < 0.37:
            self._offsets(group, client)
        elif chance < 0.39:
            self._administrate(group)
        elif group.is_classic:
            self._classic(group, client)
        else:
            self._consumer(client)

    def _wait(self) -> None:
        self._steps.append(Wait(self.random.choice(_WAITS)))

    def _set_topics(self) -> None:
        topics = ((name, count, n) for name, (count, n) in sorted(self._topics.items()))
        self._steps.append(Topics(tuple(topics)))

    def _change_topics(self) -> None:
        name = self.random.choice(_TOPICS)
        if name not in self._topics:
            self._created[name] += 1
            self._topics[name] = [self._created[name], self.random.randint(1, 4)]
        elif self.random.random() < 0.5:
            self._topics[name][1] += self.random.randint(1, 3)
        else:
            del self._topics[name]
        self._set_topics()

    def _restart(self, group: _Group, client: _Client) -> None:
        """Let a new process take the client's place; a static member keeps its instance id."""
        group.clients.remove(client)
        group.clients.append(self._client(group, client.instance_id))

    def _ask(self, client: _Client, version: int, request: Request[Any]) -> None:
        """Send the request, or one that differs in a field."""
        if self.random.random() > 0.12:
            self._steps.append(Ask(client.name, version, request))
            return
        changed = self._spoil(client, request, version)
        if changed is not None:
            self._steps.append(Ask(client.name, version, changed, is_honest=False))

    def _spoil(self, client: _Client, request: Request[Any], version: int) -> Request[Any] | None:
        fields = fields_of(type(request))
        names = [name for name in fields if name in _WRONG and version in fields[name].versions]
        if not names:
            return None
        name = self.random.choice(names)
        other = self.random.choice(client.group.clients)
        value = self.random.choice(_WRONG[name](client, other))
        if value is None and version not in fields[name].nullable:
            return None
        if name == "group_id" and isinstance(
            request, JoinGroupRequest | ConsumerGroupHeartbeatRequest
        ):
            value = ""
        if name == "rebalance_timeout_ms":
            if isinstance(request, ConsumerGroupHeartbeatRequest):
                value = value or 1
            elif client.instance_id is not None and value <= 0:
                return None
        if isinstance(request, OffsetCommitRequest) and name.startswith("generation"):
            places = (place for topic in request.topics for place in topic.partitions)
            if any(place.committed_metadata == _TOO_LARGE for place in places):
                return None
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            if name == "instance_id" and self.random.random() < 0.5:
                request = attrs.evolve(request, member_id=f"{client.name}-other")
            if name == "member_id" and client.instance_id and value not in ("", "nobody"):
                return None
        return attrs.evolve(request, **{name: value})  # type: ignore[misc]

    # ------------------------------------------------------------ classic groups

    def _classic(self, group: _Group, client: _Client) -> None:
        chance = self.random.random()
        if chance < 0.2:
            self._rebalance(group)
        elif chance < 0.5:
            self._join(client)
        elif chance < 0.7:
            self._sync(client)
        elif chance < 0.92:
            self._heartbeat(client)
        else:
            self._leave(client)

    def _rebalance(self, group: _Group) -> None:
        """Let all clients join, and then sync."""
        for client in group.clients:
            self._join(client)
        for client in group.clients:
            if client.instance_id is None and client.version >= 4:
                self._join(client)
        self._steps.append(Wait(self.random.choice((1, 3000, 10_000))))
        for client in self.random.sample(group.clients, len(group.clients)):
            self._sync(client)

    def _join(self, client: _Client) -> None:
        names = ["range", "sticky", "roundrobin"]
        self.random.shuffle(names)
        metadata = encode_subscription(Subscription(topics=client.topics))
        chosen = names[: self.random.choice((1, 2, 3, 3))]
        if self.random.random() < 0.8:
            chosen = ["range", "sticky"]  # a member that changes nothing
        self._ask(
            client,
            client.version,
            JoinGroupRequest(
                group_id=client.group.name,
                session_timeout_ms=client.session_timeout_ms,
                rebalance_timeout_ms=client.rebalance_timeout_ms if client.version else -1,
                member_id=client.known("member_id"),
                group_instance_id=client.instance_id,
                protocol_type=client.group.protocol_type,
                protocols=tuple(
                    JoinGroupRequestProtocol(name=name, metadata=metadata) for name in chosen
                ),
            ),
        )

    def _sync(self, client: _Client) -> None:
        version = self.random.choice((3, 4, 5, 5)) if client.instance_id else self._any(0, 5)
        self._ask(
            client,
            version,
            SyncGroupRequest(
                group_id=client.group.name,
                generation_id=client.known("epoch"),
                member_id=client.known("member_id"),
                group_instance_id=client.instance_id,
                protocol_type=client.group.protocol_type if version >= 5 else None,
                protocol_name=client.known("protocol") if version >= 5 else None,
                assignments=client.known("assignments"),
            ),
        )

    def _heartbeat(self, client: _Client) -> None:
        version = self._any(3, 4) if client.instance_id else self._any(0, 4)
        self._ask(
            client,
            version,
            HeartbeatRequest(
                group_id=client.group.name,
                generation_id=client.known("epoch"),
                member_id=client.known("member_id"),
                group_instance_id=client.instance_id,
            ),
        )

    def _leave(self, client: _Client) -> None:
        version = self._any(0, 5)
        group_id = client.group.name
        if version < 3:
            request = LeaveGroupRequest(group_id=group_id, member_id=client.known("member_id"))
        else:
            leaving = [client, *self.random.sample(client.group.clients, self._any(0, 1))]
            by_instance = self.random.random() < 0.3
            request = LeaveGroupRequest(
                group_id=group_id,
                members=tuple(
                    MemberIdentity(
                        member_id="" if by_instance and one.instance_id else one.known("member_id"),
                        group_instance_id=one.instance_id,
                    )
                    for one in leaving
                ),
            )
        self._ask(client, version, request)

    def _any(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    # ------------------------------------------------------------ consumer groups

    def _consumer(self, client: _Client) -> None:
        chance = self.random.random()
        # Version 1 has the client choose its id; before, the coordinator may.
        member_id = client.name if client.version else client.known("member_id")
        request = ConsumerGroupHeartbeatRequest(
            group_id=client.group.name,
            member_id=member_id,
            instance_id=client.instance_id,
            member_epoch=client.known("epoch"),
        )
        if chance < 0.07:
            request = attrs.evolve(request, member_epoch=-2 if client.instance_id else -1)
        elif chance < 0.10:
            request = attrs.evolve(request, member_epoch=-1)
        elif chance < 0.60:
            request = attrs.evolve(
                request,
                rebalance_timeout_ms=client.rebalance_timeout_ms,
                subscribed_topic_names=client.topics,
                subscribed_topic_regex=client.pattern,
                server_assignor=client.assignor,
                topic_partitions=client.known("owned"),
            )
        elif chance < 0.85:
            request = attrs.evolve(request, topic_partitions=client.known("owned"))
        if chance > 0.97:
            client.topics = tuple(self.random.sample(_TOPICS, self._any(0, 3)))
        self._ask(client, client.version, request)

    # ------------------------------------------------------------ offsets

    def _offsets(self, group: _Group, client: _Client) -> None:
        chance = self.random.random()
        if chance < 0.5:
            self._commit(client)
        elif chance < 0.9:
            self._fetch(group, client)
        else:
            places = self._places()
            self._ask(
                client,
                0,
                OffsetDeleteRequest(
                    group_id=group.name,
                    topics=tuple(
                        OffsetDeleteRequestTopic(
                            name=name,
                            partitions=tuple(
                                OffsetDeleteRequestPartition(partition_index=n) for n in numbers
                            ),
                        )
                        for name, _, numbers in places
                    ),
                ),
            )

    def _places(self) -> list[tuple[str, UUID, Sequence[int]]]:
        """Return partitions, mostly of topics that there are: name, id, numbers."""
        names = self.random.sample(_TOPICS, self._any(1, 2))
        return [
            (
                name,
                topic_id(name, self._topics[name][0]) if name in self._topics else _NO_TOPIC,
                self.random.sample(range(5), self._any(1, 2)),
            )
            for name in names
        ]

    def _commit(self, client: _Client) -> None:
        version = self._any(7, 10) if client.instance_id else self._any(2, 10)
        is_member = self.random.random() < 0.7
        metadata = ("", "m", None, _TOO_LARGE) if is_member else ("", "m", None)
        is_consumer = not client.group.is_classic
        member_id = client.name if is_consumer and client.version else client.known("member_id")
        self._ask(
            client,
            version,
            OffsetCommitRequest(
                group_id=client.group.name,
                generation_id_or_member_epoch=client.known("epoch") if is_member else -1,
                member_id=member_id if is_member else "",
                group_instance_id=client.instance_id if is_member else None,
                topics=tuple(
                    OffsetCommitRequestTopic(
                        **_named(name, id_, version),
                        partitions=tuple(
                            OffsetCommitRequestPartition(
                                partition_index=number,
                                committed_offset=self._any(0, 1000),
                                committed_leader_epoch=self._any(-1, 3),
                                committed_metadata=self.random.choice(metadata),
                            )
                            for number in numbers
                        ),
                    )
                    for name, id_, numbers in self._places()
                ),
            ),
        )

    def _fetch(self, group: _Group, client: _Client) -> None:
        version = self._any(1, 10)
        places = None if version >= 2 and self.random.random() < 0.3 else self._places()
        if version < 8:
            request = OffsetFetchRequest(
                group_id=group.name,
                topics=None
                if places is None
                else tuple(
                    OffsetFetchRequestTopic(name=name, partition_indexes=tuple(numbers))
                    for name, _, numbers in places
                ),
            )
        else:
            is_member = version >= 9 and self.random.random() < 0.5
            by_name = not group.is_classic and client.version
            member_id = client.name if by_name else client.known("member_id")
            request = OffsetFetchRequest(
                groups=tuple(
                    OffsetFetchRequestGroup(
                        group_id=name,
                        member_id=member_id if is_member else None,
                        member_epoch=client.known("epoch") if is_member else -1,
                        topics=None
                        if places is None
                        else tuple(
                            OffsetFetchRequestTopics(
                                **_named(topic, id_, version), partition_indexes=tuple(numbers)
                            )
                            for topic, id_, numbers in places
                        ),
                    )
                    for name in dict.fromkeys([group.name, self.random.choice(("g0", "none"))])
                )
            )
        self._ask(client, version, request)

    # ------------------------------------------------------------ administration

    def _describe(self, group: _Group) -> None:
        client = self.random.choice(group.clients)
        groups = (group.name,) if self.random.random() < 0.8 else ("g0", "none")
        describe_consumer = ConsumerGroupDescribeRequest(
            group_ids=groups, include_authorized_operations=False
        )
        if self.random.random() < 0.2:
            self._ask(client, self._any(0, 5), self._list())
        if group.is_classic == (self.random.random() < 0.95):
            self._ask(client, self._any(0, 6), DescribeGroupsRequest(groups=groups))
        else:
            self._ask(client, self._any(0, 1), describe_consumer)

    def _list(self) -> ListGroupsRequest:
        return ListGroupsRequest()

    def _administrate(self, group: _Group) -> None:
        client = self.random.choice(group.clients)
        groups = (group.name,) if self.random.random() < 0.8 else (group.name, "none", "")
        self._ask(client, self._any(0, 2), DeleteGroupsRequest(groups_names=groups))


def _named(name: str, id_: UUID, version: int) -> dict[str, Any]:
    """Return a topic's fields in OffsetCommit and OffsetFetch, which name it by id from v10 on."""
    return {"name": "", "topic_id": id_} if version >= 10 else {"name": name, "topic_id": NO_ID}


_WRONG: dict[str, Callable[[_Client, _Client], Sequence[Any]]] = {
    "assignments": lambda _, other: ((), other.known("assignments")),
    "generation_id": lambda own, other: (
        -1,
        0,
        77,
        own.known("epoch", -1),
        own.known("epoch", 1),
        other.known("epoch"),
    ),
    "generation_id_or_member_epoch": lambda own, _: (
        -2,
        -1,
        0,
        77,
        own.known("epoch", -1),
        own.known("epoch", 1),
    ),
    "group_id": lambda *_: ("", "none", "g0", "g1"),
    "group_instance_id": lambda _, other: (None, "", "i0", "i1", other.instance_id),
    "instance_id": lambda _, other: (None, "", "i0", "i1", other.instance_id),
    "member_epoch": lambda own, _: (
        -3,
        -2,
        -1,
        0,
        77,
        own.known("epoch", -1),
        own.known("epoch", -2),
        own.known("epoch", 1),
    ),
    "member_id": lambda _, other: ("", "nobody", other.known("member_id"), other.name),
    "protocol_name": lambda *_: (None, "", "unheard"),
    "protocol_type": lambda *_: ("", "consumer", "connect", None),
    "protocols": lambda *_: ((), (JoinGroupRequestProtocol(name="unheard", metadata=b""),)),
    "rack_id": lambda *_: ("", "r1"),
    "rebalance_timeout_ms": lambda *_: (-1, 0, 1500),
    "server_assignor": lambda *_: (None, "", "range", "unheard"),
    "session_timeout_ms": lambda *_: (0, -1, 5999, 1_800_001),
    "states_filter": lambda *_: (("Stable",), ("empty", "Assigning"), ("unheard",)),
    "subscribed_topic_names": lambda *_: (None, (), ("t0",), ("t1", "x"), ("t0", "t0")),
    "subscribed_topic_regex": lambda *_: (None, *_PATTERNS),
    "topic_partitions": lambda _, other: (
        None,
        (),
        other.known("owned"),
        (TopicPartitions(topic_id=topic_id("t0", 1), partitions=(0, 9)),),
    ),
    "types_filter": lambda *_: (("classic",), ("Consumer",), ("unheard",)),
}
"""Field -> values that a client could send and should not, given itself and another client."""

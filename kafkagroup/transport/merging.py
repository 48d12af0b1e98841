"""Merges metadata responses into what is known. Pure functions.

One response is the view of one broker, which may lag behind the others. What it adds counts at
once: a topic, partitions, a broker, a newer leader epoch. What it takes away, or sets back, is only
noted, and counts when the next response repeats it. Two changes never count, because the controller
never makes them: a topic does not lose partitions under the same topic id, and a leader epoch does
not lose its leader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafkagroup._topics import is_legal_name
from kafkagroup._values import evolve, field, frozen
from kafkagroup.errors import ErrorCode
from kafkagroup.transport.metadata import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
    nodes_of,
)
from kafkagroup.wire.error_codes import ABSENT, REFUSED_TOPIC
from kafkagroup.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkagroup.wire.schema import NO_ID

__all__ = ["NOTHING_UNCONFIRMED", "Unconfirmed", "merge"]

_MAX_OFFLINE_RACKS = 1_000
"""How many nodes' racks are kept that the last response does not list: a broker may name new nodes
in each response."""


@frozen
class _Claim:
    """How one response contradicts what is known of a topic."""

    error_code: int = 0
    """One of `REFUSED_TOPIC`, or UNKNOWN_TOPIC_OR_PARTITION for a topic that is absent."""
    successor: TopicMetadata | None = None
    """The topic as the response describes it under another id."""
    partitions: frozenset[int] | None = None
    """The partitions in the response, if known ones are missing and no topic id tells whether the
    topic is the same."""
    epochs: Mapping[int, int] = field(factory=dict)
    """Partition -> its leader epoch in the response, where it is lower than the known one."""


_NO_CLAIM = _Claim()
_NONE_KNOWN: Mapping[int, PartitionMetadata] = {}
_NONE_LOWER: Mapping[int, int] = {}


@frozen
class Unconfirmed:
    """How the last response contradicts what is known. A contradiction counts when the next
    response repeats it. `topics` also has topics that are reported as absent and that no response
    has described."""

    nodes: Mapping[int, Node | None] = field(factory=dict)
    """Node id -> the node at another address; None if the response does not list it."""
    topics: Mapping[str, _Claim] = field(factory=dict)
    """Topic name -> what the response says of it."""

    def __bool__(self) -> bool:
        return bool(self.nodes or self.topics)

    def contradicts(self, known: ClusterMetadata) -> bool:
        """Return whether a node or a topic with known partitions is contradicted. Otherwise the
        response only reports topics as absent that no response has described. `known`: the metadata
        that `merge` returned together with this object."""
        return bool(self.nodes) or any(known.topics[name].partitions for name in self.topics)


NOTHING_UNCONFIRMED = Unconfirmed()

_Shared = dict[PartitionMetadata, PartitionMetadata]
"""Each value -> itself. Many partitions have the same leader, epoch and replicas. They share one
value: the garbage collector then visits a hundred objects instead of 200,000."""


def merge(
    known: ClusterMetadata,
    response: MetadataResponse,
    unconfirmed: Unconfirmed = NOTHING_UNCONFIRMED,
    *,
    requested: Collection[str] | None,
    in_use: Collection[str] = (),
) -> tuple[ClusterMetadata, Unconfirmed]:
    """Merge a response into what is known; return the new metadata, and what the next response must
    confirm. `unconfirmed`: what this response may confirm, as the merge of the response before
    returned it; `requested`: the topics that the request named, None for all topics; `in_use`:
    topics that stay known without being requested.

    Topics that were not requested are dropped: a broker could name new ones in each response."""
    nodes, unconfirmed_nodes = _nodes(known.nodes, nodes_of(response), unconfirmed.nodes)
    shared: _Shared = {}
    reported = {
        t.name: t
        for t in response.topics
        if t.name and _is_wanted(t, known, requested, in_use) and is_legal_name(t.name)
    }
    expected = known.topics if requested is None else requested
    topics = {
        name: topic
        for name, topic in known.topics.items()
        if requested is None or name in requested or name in in_use
    }
    claims = {}
    for name in (*reported, *(n for n in expected if n not in reported and n in known.topics)):
        topic, claim = _topic(
            known.topics.get(name), reported.get(name), unconfirmed.topics.get(name), shared
        )
        if topic is None:
            del topics[name]
        else:
            topics[name] = topic
        if claim is not None:
            claims[name] = claim
    metadata = ClusterMetadata(
        cluster_id=response.cluster_id,
        nodes=nodes,
        topics=topics,
        racks=_racks(known.racks, {b.node_id: b.rack for b in response.brokers if b.rack}),
    )
    return metadata, Unconfirmed(unconfirmed_nodes, claims)


def _nodes(
    known: Mapping[int, Node], reported: Mapping[int, Node], before: Mapping[int, Node | None]
) -> tuple[dict[int, Node], dict[int, Node | None]]:
    """Return the nodes after a response, and the changes that the next response must confirm, in
    the form of `Unconfirmed.nodes`. `before`: the changes that this response may confirm."""
    nodes, unconfirmed = dict(reported), {}
    for node_id, node in known.items():
        found = reported.get(node_id)
        if found is not None and (found.host, found.port) == (node.host, node.port):
            continue
        if node_id in before and before[node_id] == found:
            continue  # confirmed
        nodes[node_id] = node
        unconfirmed[node_id] = found
    return nodes, unconfirmed


def _is_wanted(
    topic: MetadataResponseTopic,
    known: ClusterMetadata,
    requested: Collection[str] | None,
    in_use: Collection[str],
) -> bool:
    """Return whether to keep a topic of a response: it was requested, and, if all topics were, has
    partitions or is used. A list of all topics may have 250,000 without partitions, which the
    garbage collector would scan again and again."""
    name = topic.name
    if requested is not None:
        return name in requested
    return bool(topic.partitions) or name in known.topics or name in in_use


def _racks(known: Mapping[int, str], reported: Mapping[int, str]) -> dict[int, str]:
    """Return node id -> rack: those of the response, and the latest known ones of other nodes."""
    offline = [(node_id, rack) for node_id, rack in known.items() if node_id not in reported]
    return {**dict(offline[-_MAX_OFFLINE_RACKS:]), **reported}


def _topic(
    known: TopicMetadata | None,
    response: MetadataResponseTopic | None,
    before: _Claim | None,
    shared: _Shared,
) -> tuple[TopicMetadata | None, _Claim | None]:
    """Return the topic after a response, and the claim that the next response must confirm; None
    for no topic, and for no claim. `response`: the topic's entry, None if the response has none;
    `before`: the claim that this response may confirm."""
    if response is None or response.error_code in ABSENT:
        return _absent(known, response, before)
    code, topic_id = response.error_code, response.topic_id
    if known is None or not known.partitions:
        return _described(response, shared), None
    if code in REFUSED_TOPIC:
        claim = _Claim(error_code=code)
        if claim == before:
            return _described(response, shared), None
        return evolve(known, error_code=code), claim
    if code and not response.partitions:
        # The broker knows the topic, but not its partitions at the moment, as during an election.
        return evolve(known, error_code=code), None
    if NO_ID not in (known.topic_id, topic_id) and known.topic_id != topic_id:
        # A recreated topic starts at epoch 0 again: epochs compare only for the same topic id.
        successor = None if before is None else before.successor
        if successor is None or successor.topic_id != topic_id:
            return known, _Claim(successor=_described(response, shared))
        return _continued(successor, response, _NO_CLAIM, shared)
    return _continued(known, response, before or _NO_CLAIM, shared)


def _absent(
    known: TopicMetadata | None, response: MetadataResponseTopic | None, before: _Claim | None
) -> tuple[TopicMetadata | None, _Claim | None]:
    """Return what `_topic` returns, for a topic that is not in the response (None), or that the
    response reports as absent."""
    claim = _Claim(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    is_confirmed = claim == before or (known is not None and known.is_absent)
    if known is not None and known.partitions and not is_confirmed:
        return known, claim
    if response is None:
        return None, None  # dropped: there is no error code to keep
    absent = TopicMetadata(NO_ID, {}, response.error_code, is_absent=is_confirmed)
    return absent, None if is_confirmed else claim


def _continued(
    known: TopicMetadata, response: MetadataResponseTopic, before: _Claim, shared: _Shared
) -> tuple[TopicMetadata, _Claim | None]:
    """Return what `_topic` returns, for a topic whose id has not changed, as far as both ids are
    known."""
    partitions, lower_epochs = _partitions(response, shared, known.partitions, before.epochs)
    fewer = None
    if known.partitions.keys() - partitions.keys():
        reported = frozenset(partitions)
        has_same_id = known.topic_id == response.topic_id != NO_ID
        if has_same_id or before.partitions != reported:
            partitions = {**known.partitions, **partitions}
            fewer = None if has_same_id else reported
    claim = _Claim(partitions=fewer, epochs=lower_epochs)
    topic = TopicMetadata(
        # A broker before 2.8 reports no id.
        topic_id=known.topic_id if response.topic_id == NO_ID else response.topic_id,
        partitions=partitions,
        error_code=response.error_code,
        internal=response.is_internal,
    )
    return topic, None if claim == _NO_CLAIM else claim


def _described(response: MetadataResponseTopic, shared: _Shared) -> TopicMetadata:
    """Return a topic as the response describes it."""
    return TopicMetadata(
        topic_id=response.topic_id,
        partitions=_partitions(response, shared)[0],
        error_code=response.error_code,
        internal=response.is_internal,
    )


def _partitions(
    response: MetadataResponseTopic,
    shared: _Shared,
    known: Mapping[int, PartitionMetadata] = _NONE_KNOWN,
    lower_before: Mapping[int, int] = _NONE_LOWER,
) -> tuple[dict[int, PartitionMetadata], dict[int, int]]:
    """Return the partitions after a response, and the lower leader epochs that the next response
    must confirm. `lower_before`: the ones that this response may confirm."""
    partitions: dict[int, PartitionMetadata] = {}
    lower: dict[int, int] = {}
    for p in sorted(response.partitions, key=lambda p: p.partition_index):
        index, epoch = p.partition_index, p.leader_epoch
        one = known.get(index)
        # KIP-320: a broker with old metadata must not replace a newer leader by an older one. The
        # epoch -1, from brokers that report none, cannot be compared.
        if one is None or not 0 <= epoch < one.leader_epoch:
            partitions[index] = _partition(one, p, shared)
        elif lower_before.get(index) == epoch:
            partitions[index] = _partition(None, p, shared)
        else:
            partitions[index] = one
            lower[index] = epoch
    return partitions, lower


def _partition(
    known: PartitionMetadata | None, response: MetadataResponsePartition, shared: _Shared
) -> PartitionMetadata:
    found = response.leader_id, response.leader_epoch, response.replica_nodes  # in field order
    if known is not None:
        if found == (known.leader, known.leader_epoch, known.replicas):
            return known
        if known.leader_epoch == response.leader_epoch >= 0 > response.leader_id:
            return known  # the broker does not see the leader of this epoch
    partition = PartitionMetadata(*found)
    return shared.setdefault(partition, partition)

"""pykafka's `GroupMembershipProtocol`: an ordinary named tuple."""

import copy
import pickle

import pytest

from kafkagroup import TopicPartition
from kafkagroup.compat import pykafka
from kafkagroup.compat.pykafka import (
    GroupMembershipProtocol,
    RangeProtocol,
    RoundRobinProtocol,
    decide_partitions_range,
    decide_partitions_roundrobin,
)
from kafkagroup.compat.pykafka.membership import assignor_of, metadata_of
from kafkagroup.wire import decode_subscription

MINE = GroupMembershipProtocol(b"consumer", b"mine", b"m", decide_partitions_range)


def test_the_fields_of_a_membership_protocol():
    assert (b"consumer", b"mine", b"m", decide_partitions_range) == MINE
    assert GroupMembershipProtocol._fields == (
        "protocol_type",
        "protocol_name",
        "metadata",
        "decide_partitions",
    )
    assert [MINE.protocol_type, MINE.protocol_name, MINE.metadata, MINE.decide_partitions] == [
        MINE[0],
        MINE[1],
        MINE[2],
        MINE[3],
    ]
    assert isinstance(MINE, tuple)


def test_a_membership_protocol_behaves_as_a_named_tuple():
    assert GroupMembershipProtocol._make(iter(MINE)) == MINE
    assert MINE._replace(metadata=b"n") == (b"consumer", b"mine", b"n", decide_partitions_range)
    assert MINE._asdict() == dict(zip(MINE._fields, MINE, strict=True))
    assert repr(MINE).startswith("GroupMembershipProtocol(protocol_type=b'consumer', ")
    assert MINE.__getnewargs__() == tuple(MINE)
    assert GroupMembershipProtocol.__new__(GroupMembershipProtocol, *MINE) == MINE


def test_a_membership_protocol_can_be_copied_and_pickled():
    """Like a plain tuple, without other state."""
    assert copy.copy(MINE) == copy.deepcopy(MINE) == pickle.loads(pickle.dumps(MINE)) == MINE
    assert MINE.__getstate__() is None


def test_the_two_protocols_of_pykafka():
    assert RangeProtocol == (b"consumer", b"range", b"", decide_partitions_range)
    assert RoundRobinProtocol == (b"consumer", b"roundrobin", b"", decide_partitions_roundrobin)


def test_metadata_is_created_for_each_topic_and_not_stored():
    """In pykafka the metadata of `RangeProtocol` has the topic that was consumed last."""
    for topic in ("a", b"b"):
        found = decode_subscription(metadata_of(RangeProtocol, topic))
        assert found.topics == (topic if isinstance(topic, str) else topic.decode(),)
    assert RangeProtocol.metadata == b""
    assert metadata_of(MINE, "a") == b"m"
    assert metadata_of(RangeProtocol, None) == b""


@pytest.mark.parametrize(
    ("decide", "first"),
    [(decide_partitions_range, {0, 1, 2, 3}), (decide_partitions_roundrobin, {0, 3, 6, 9})],
)
def test_decide_partitions(decide, first):
    """Ten partitions: as strings, "10" would come before "2", and a new leader would move them."""
    partitions = {n: TopicPartition("t", n) for n in range(10)}
    ids = [b"c", b"a", b"b"]
    shares = [decide(ids, partitions, one) for one in sorted(ids)]
    assert {tp.partition for tp in shares[0]} == first
    assert sorted(tp for share in shares for tp in share) == sorted(partitions.values())
    # The order in which a participant learns of the others does not matter.
    assert decide(sorted(ids), partitions, b"b") == shares[1]


def test_an_assignor_calls_pykafkas_decide_function():
    asked = []

    def decide(participants, partitions, consumer_id):
        asked.append((participants, partitions, consumer_id))
        return [partitions[n] for n in partitions if (n % 2 == 0) == (consumer_id == b"m1")]

    from kafkagroup.assign import GroupSpec, MemberSpec

    member = MemberSpec(topics=frozenset("t"))
    spec = GroupSpec(members={"m1": member, "m2": member}, partitions={"t": 3})
    by_id = {n: TopicPartition("t", n) for n in range(3)}
    assert assignor_of(MINE._replace(decide_partitions=decide))(spec) == {
        "m1": (by_id[0], by_id[2]),
        "m2": (by_id[1],),
    }
    assert asked == [([b"m1", b"m2"], by_id, b"m1"), ([b"m1", b"m2"], by_id, b"m2")]


def test_every_public_name_is_there():
    assert all(hasattr(pykafka, name) for name in pykafka.__all__)

"""Subscriptions and assignments: bytes of Kafka's own schemas, every version, hostile input."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.errors import DecodeError, LimitExceededError
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import (
    MAX_PARTITIONS,
    Subscription,
    assigned_user_data,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

repeatable = settings(max_examples=300)

# Put together by hand from the layout of Kafka's ConsumerProtocol schemas.


def string(text: str | None) -> bytes:
    if text is None:
        return pack(">h", -1)
    return pack(">h", len(text.encode())) + text.encode()


def data(content: bytes | None) -> bytes:
    return pack(">i", -1) if content is None else pack(">i", len(content)) + content


def array(*items: bytes) -> bytes:
    return pack(">i", len(items)) + b"".join(items)


def owned(topic: str, *partitions: int) -> bytes:
    return string(topic) + array(*(pack(">i", p) for p in partitions))


TOPICS = array(string("a"), string("b"))
OWNED = array(owned("a", 0, 1), owned("b", 2))
HELD = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2))
BY_VERSION = {
    0: pack(">h", 0) + TOPICS + data(b"u"),
    1: pack(">h", 1) + TOPICS + data(b"u") + OWNED,
    2: pack(">h", 2) + TOPICS + data(b"u") + OWNED + pack(">i", 5),
    3: pack(">h", 3) + TOPICS + data(b"u") + OWNED + pack(">i", 5) + string("r"),
}
FULL = Subscription(topics=("a", "b"), user_data=b"u", owned=HELD, generation=5, rack="r")
READ = {
    0: Subscription(topics=("a", "b"), user_data=b"u"),
    1: Subscription(topics=("a", "b"), user_data=b"u", owned=HELD),
    2: Subscription(topics=("a", "b"), user_data=b"u", owned=HELD, generation=5),
    3: FULL,
}


@pytest.mark.parametrize("version", BY_VERSION)
def test_a_subscription_in_each_version(version: int) -> None:
    assert encode_subscription(FULL, version) == BY_VERSION[version]
    assert decode_subscription(BY_VERSION[version]) == READ[version]


def test_the_newest_version_is_written_by_default() -> None:
    assert encode_subscription(FULL) == BY_VERSION[3]
    assert encode_subscription(Subscription(topics=())) == (
        pack(">h", 3) + array() + data(None) + array() + pack(">i", -1) + string(None)
    )


@pytest.mark.parametrize("version", [4, 5, 32767])
def test_newer_versions_parse_as_the_newest_known(version: int) -> None:
    newer = pack(">h", version) + BY_VERSION[3][2:] + b"fields of the future"
    assert decode_subscription(newer) == FULL
    newer = pack(">h", version) + OWNED + data(None) + b"fields of the future"
    assert decode_assignment(newer) == HELD


@pytest.mark.parametrize("version", BY_VERSION)
def test_bytes_after_the_last_field_are_ignored(version: int) -> None:
    """As Java does: some clients write fields of a newer version under an older number."""
    assert decode_subscription(BY_VERSION[version] + b"\0\0") == READ[version]


def test_topics_and_partitions_are_sorted() -> None:
    mixed = Subscription(topics=("b", "a"), owned=(HELD[2], HELD[1], HELD[0]))
    encoded = encode_subscription(mixed, 1)
    assert encoded == pack(">h", 1) + TOPICS + data(None) + OWNED
    shuffled = array(owned("b", 2), owned("a", 1), owned("a", 0))
    assert decode_subscription(
        pack(">h", 1) + array(string("b"), string("a")) + data(None) + shuffled
    ) == decode_subscription(encoded)
    assert encode_assignment((HELD[2], HELD[1], HELD[0])) == encode_assignment(HELD)
    assert decode_assignment(pack(">h", 0) + shuffled + data(None)) == HELD


def test_an_empty_rack_is_none() -> None:
    empty = BY_VERSION[3][:-3] + string("")
    assert decode_subscription(empty).rack is None
    assert decode_subscription(BY_VERSION[3][:-3] + string(None)).rack is None


def test_an_assignment_round_trips() -> None:
    encoded = pack(">h", 3) + OWNED + data(b"u")
    assert encode_assignment(HELD, b"u") == encoded
    assert encode_assignment((), version=0) == pack(">h", 0) + array() + data(None)
    assert decode_assignment(encoded) == HELD


FROM_PYKAFKA = bytes.fromhex("00010000000100066f7264657273000000020000000000000002")
"""What pykafka 2.8.0 writes: `MemberAssignment([(b"orders", [0, 2])]).get_bytes()`. Its field of
user data is missing, where all others write at least a length."""


def test_a_pykafka_leader_writes_no_user_data() -> None:
    """A group that migrated from pykafka stalled: our members could not parse its leader's
    assignment."""
    assert decode_assignment(FROM_PYKAFKA) == (
        TopicPartition("orders", 0),
        TopicPartition("orders", 2),
    )
    assert assigned_user_data(FROM_PYKAFKA) is None
    assert assigned_user_data(b"") is None
    assert assigned_user_data(encode_assignment(HELD, b"u")) == b"u"


def test_no_bytes_are_an_empty_assignment() -> None:
    """A coordinator returns no bytes to a member that the leader omitted."""
    assert decode_assignment(b"") == ()


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"", "subscription of 0 bytes has no version"),
        (b"\0", "subscription of 1 bytes has no version"),
        (pack(">h", -1) + TOPICS, "subscription of version -1"),
        (pack(">h", 0) + array(string("a"), string("a")) + data(None), "names a topic twice"),
        (
            pack(">h", 1) + TOPICS + data(None) + array(owned("a", 1), owned("a", 1)),
            "subscription names a partition twice",
        ),
        (
            pack(">h", 1) + TOPICS + data(None) + array(owned("a", -1)),
            "subscription names a partition below zero",
        ),
        (pack(">h", 0) + array(pack(">h", 1) + b"\xff") + data(None), "utf-8. codec can"),
        (pack(">h", 0) + array(string(None)) + data(None), "topics is null"),
        (pack(">h", 0) + pack(">i", -1) + data(None), "topics is null"),
        (pack(">h", 0) + pack(">i", 2**31 - 1), "topics claims 2147483647, but only 0"),
        (BY_VERSION[3][:-1], "rack_id claims 1, but only 0"),
    ],
    ids=[
        "empty",
        "one byte",
        "negative version",
        "topic twice",
        "partition twice",
        "negative partition",
        "not UTF-8",
        "null topic",
        "null topics",
        "claims more than is there",
        "cut",
    ],
)
def test_a_malformed_subscription_is_an_error(encoded: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode_subscription(encoded)


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"\0", "assignment of 1 bytes has no version"),
        (pack(">h", -2) + OWNED, "assignment of version -2"),
        (pack(">h", 0) + array(owned("a", 1, 1)) + data(None), "names a partition twice"),
        (pack(">h", 0) + array(owned("a", -5)) + data(None), "names a partition below zero"),
        (pack(">h", 0) + OWNED[:-1], "claims"),
        (pack(">h", 0) + OWNED + b"\0\0\0", "the input ends early"),
        (pack(">h", 0) + OWNED + pack(">i", 1), "user_data claims 1, but only 0"),
    ],
    ids=[
        "one byte",
        "negative version",
        "partition twice",
        "negative partition",
        "cut in the partitions",
        "cut in the length of the user data",
        "cut in the user data",
    ],
)
def test_a_malformed_assignment_is_an_error(encoded: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode_assignment(encoded)


def test_the_number_of_partitions_is_limited() -> None:
    most = array(owned("a", *range(MAX_PARTITIONS // 2)), owned("b", *range(MAX_PARTITIONS // 2)))
    assert len(decode_assignment(pack(">h", 0) + most + data(None))) == MAX_PARTITIONS == 100_000
    more = array(owned("a", *range(MAX_PARTITIONS)), owned("b", 0))
    for encoded, decode in (
        (pack(">h", 0) + more + data(None), decode_assignment),
        (pack(">h", 1) + TOPICS + data(None) + more, decode_subscription),
    ):
        with pytest.raises(LimitExceededError, match=r"of 100001 partitions; the limit is 100000$"):
            decode(encoded)


names = st.text(min_size=1, max_size=6)
partitions = st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=9)


@repeatable
@given(
    topics=st.frozensets(names, max_size=6),
    user_data=st.none() | st.binary(max_size=9),
    held=partitions,
    generation=st.integers(-1, 2**31 - 1),
    rack=st.none() | names,
)
def test_encoded_subscriptions_and_assignments_decode_to_the_same_values(
    topics: frozenset[str],
    user_data: bytes | None,
    held: frozenset[TopicPartition],
    generation: int,
    rack: str | None,
) -> None:
    subscription = Subscription(
        topics=tuple(sorted(topics)),
        user_data=user_data,
        owned=tuple(sorted(held)),
        generation=generation,
        rack=rack,
    )
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(held)) == tuple(sorted(held))


@repeatable
@given(garbage=st.binary(max_size=60), version=st.integers(-1, 4))
def test_garbage_is_a_value_or_a_decode_error(garbage: bytes, version: int) -> None:
    for encoded in (garbage, pack(">h", version) + garbage):
        for decode in (decode_subscription, decode_assignment):
            try:
                decode(encoded)
            except DecodeError:
                pass


@repeatable
@given(version=st.sampled_from(sorted(BY_VERSION)), edits=st.data())
def test_a_damaged_subscription_is_a_value_or_a_decode_error(
    version: int, edits: st.DataObject
) -> None:
    encoded = bytearray(BY_VERSION[version])
    for _ in range(edits.draw(st.integers(1, 3))):
        at = edits.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = edits.draw(st.integers(0, 255))
    cut = edits.draw(st.integers(0, len(encoded)))
    for damaged in (bytes(encoded), bytes(encoded[:cut])):
        try:
            subscription = decode_subscription(damaged)
        except DecodeError:
            continue
        assert decode_subscription(encode_subscription(subscription)) == subscription

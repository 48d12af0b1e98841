"""Range and round robin as each participant computes them, as in pykafka."""

from __future__ import annotations

import re

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.assign.participants import decide_partitions_range, decide_partitions_roundrobin
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

each_function = pytest.mark.parametrize(
    "decide", [decide_partitions_range, decide_partitions_roundrobin]
)


@attrs.frozen
class PykafkaTopic:
    name: bytes


@attrs.frozen
class PykafkaBroker:
    id: int


@attrs.frozen
class PykafkaPartition:
    """Has the attributes of pykafka's `Partition` that the functions read."""

    id: int
    topic: PykafkaTopic = PykafkaTopic(b"t")
    leader: PykafkaBroker = PykafkaBroker(1)


def t(*numbers: int) -> set[TopicPartition]:
    return {TopicPartition("t", number) for number in numbers}


def test_range_assigns_consecutive_partitions_and_the_first_participants_one_more() -> None:
    assigned = [decide_partitions_range(["c", "a", "b"], t(*range(11)), id_) for id_ in "abc"]
    assert assigned == [t(0, 1, 2, 3), t(4, 5, 6, 7), t(8, 9, 10)]


def test_roundrobin_distributes_partitions_in_turn() -> None:
    assigned = [decide_partitions_roundrobin(["c", "a", "b"], t(*range(11)), id_) for id_ in "abc"]
    assert assigned == [t(0, 3, 6, 9), t(1, 4, 7, 10), t(2, 5, 8)]


def test_partitions_may_start_above_0_and_be_of_several_topics() -> None:
    both = [TopicPartition("u", 1), *t(5, 3)]
    assert decide_partitions_range(["a", "b"], both, "a") == t(3, 5)
    assert decide_partitions_roundrobin(["a", "b"], both, "b") == t(5)


@each_function
def test_surplus_participants_get_no_partitions(decide) -> None:
    assert decide(["a", "b"], t(0), "b") == set()
    assert decide(["a"], [], "a") == set()


def test_ids_may_be_bytes_and_partitions_a_mapping() -> None:
    """In pykafka, `topic.partitions` is a dict, and ids are bytes, some of them no text."""
    partitions = {number: PykafkaPartition(number) for number in range(3)}
    assert decide_partitions_range([b"\xff", b"a"], partitions, b"\xff") == {PykafkaPartition(2)}
    assert decide_partitions_roundrobin([b"\xff", b"a"], partitions, b"\xff") == {
        PykafkaPartition(1)
    }


def test_partition_objects_of_pykafka_sort_as_in_pykafka() -> None:
    """Members of both clients must compute the same assignment. pykafka sorts by topic, leader and
    id as text, so 10 comes before 2."""
    led_by_2 = PykafkaPartition(0, leader=PykafkaBroker(2))
    partitions = [led_by_2, *(PykafkaPartition(number) for number in range(1, 12))]
    assert decide_partitions_range(["a", "b", "c"], partitions, "a") == {
        PykafkaPartition(number) for number in (1, 10, 11, 2)
    }
    assert decide_partitions_roundrobin(["a", "b", "c"], partitions, "c") == {
        PykafkaPartition(11),
        PykafkaPartition(4),
        PykafkaPartition(7),
        led_by_2,
    }


@each_function
def test_a_consumer_outside_the_participants_is_an_error(decide) -> None:
    with pytest.raises(
        ConfigurationError, match=re.escape("'x' is not among the participants: 'a', 'b'")
    ):
        decide(["b", "a"], t(0), "x")
    assert issubclass(ConfigurationError, ValueError)  # what pykafka's range raises
    with pytest.raises(
        ConfigurationError, match=re.escape("'x' is not among the participants: there are none")
    ):
        decide([], t(0), "x")


@each_function
@settings(max_examples=100)
@given(
    ids=st.lists(st.text(max_size=3) | st.sampled_from("ab"), unique=True, min_size=1, max_size=9),
    numbers=st.sets(st.integers(0, 99)),
)
def test_all_participants_together_cover_every_partition_once(
    decide, ids: list[str], numbers: set[int]
) -> None:
    assigned = [decide(ids, t(*numbers), id_) for id_ in ids]
    assert sorted(tp for partitions in assigned for tp in partitions) == sorted(t(*numbers))
    lengths = [len(partitions) for partitions in assigned]
    assert max(lengths) - min(lengths) <= 1

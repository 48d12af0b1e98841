"""The partition counts that a static leader stores in its own assignment."""

from __future__ import annotations

import pytest

from kafkagroup.consume.partition_counts import encode_partition_counts, partition_counts_in
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import decode_assignment, encode_assignment

OWNED = (TopicPartition("t", 0), TopicPartition("u", 3))


def test_partition_counts_in_an_assignment_round_trip() -> None:
    for counts in ({"t": 1, "u": 4}, {"u": 100_000}, {}):
        assignment = encode_assignment(OWNED, encode_partition_counts(counts))
        assert partition_counts_in(assignment) == counts
        assert decode_assignment(assignment) == OWNED


@pytest.mark.parametrize(
    "user_data",
    [
        None,
        b"",
        b"\0" * 40,
        encode_partition_counts({"t": 1})[:-1],
        encode_partition_counts({"t": 1})[1:],
    ],
    ids=str,
)
def test_user_data_without_valid_partition_counts_decodes_to_none(user_data: bytes | None) -> None:
    assert partition_counts_in(encode_assignment(OWNED, user_data)) is None


def test_an_empty_assignment_has_no_partition_counts() -> None:
    assert partition_counts_in(b"") is None

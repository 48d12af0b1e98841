"""The partition counts that a static leader stores in its own assignment."""

from __future__ import annotations

import pytest

from kafkagroup.consume.basis import basis_in, encode_basis
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import decode_assignment, encode_assignment

OWNED = (TopicPartition("t", 0), TopicPartition("u", 3))


def test_the_basis_of_an_assignment_round_trips() -> None:
    for counts in ({"t": 1, "u": 4}, {"u": 100_000}, {}):
        assignment = encode_assignment(OWNED, encode_basis(counts))
        assert basis_in(assignment) == counts
        assert decode_assignment(assignment) == OWNED


@pytest.mark.parametrize(
    "user_data",
    [None, b"", b"\0" * 40, encode_basis({"t": 1})[:-1], encode_basis({"t": 1})[1:]],
    ids=str,
)
def test_user_data_without_a_valid_basis_decodes_to_none(user_data: bytes | None) -> None:
    assert basis_in(encode_assignment(OWNED, user_data)) is None


def test_an_empty_assignment_has_no_basis() -> None:
    assert basis_in(b"") is None

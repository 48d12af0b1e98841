"""Records of groups as rows: of every type and version, in one shape; no Spark here."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import MESSAGES, PAIRS, is_record, repeatable
from messages import messages as values_of

from kafkagroup import TopicPartition
from kafkagroup.spark.events import event_of, schema, to_events
from kafkagroup.wire import encode_assignment, encode_subscription
from kafkagroup.wire.codec import encode
from kafkagroup.wire.coordinator.classic import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from kafkagroup.wire.coordinator.consumer import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kafkagroup.wire.coordinator.offsets import OffsetCommitKey, OffsetCommitValue
from kafkagroup.wire.embedded_protocol import Subscription

pa = pytest.importorskip("pyarrow")

AN_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
VALUES = [p for p in PAIRS if is_record(p.values[0]) and p.values[0].__name__.endswith("Value")]


def data(message: Any, version: int, number: int) -> bytes:
    return pack(">h", number) + encode(message, version)


def test_a_commit_and_its_tombstone() -> None:
    key = data(OffsetCommitKey(group="g", topic="t", partition=3), 0, 1)
    value = OffsetCommitValue(
        offset=9, leader_epoch=2, metadata="m", commit_timestamp=1_700_000_000_123, topic_id=AN_ID
    )
    fields = {"record": "OffsetCommit", "kind": "offsets", "group_id": "g"}
    assert event_of(key, data(value, 4, 4)) == {
        **fields,
        "removed": False,
        "commit": {
            "topic": "t",
            "topic_id": str(AN_ID),
            "partition": 3,
            "offset": 9,
            "leader_epoch": 2,
            "metadata": "m",
            "commit_time": 1_700_000_000_123_000,
            "expire_time": None,
        },
    }
    gone = {**fields, "removed": True, "commit": {"topic": "t", "partition": 3}}
    assert event_of(key, None) == gone


def test_a_generation_of_consumers() -> None:
    member = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        rebalance_timeout=5,
        session_timeout=6,
        subscription=encode_subscription(Subscription(topics=("t",), rack="r")),
        assignment=encode_assignment([TopicPartition("t", 1)]),
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="m",
        current_state_timestamp=5,
        members=(member,),
    )
    event = event_of(data(GroupMetadataKey(group="g"), 0, 2), data(value, 3, 3))
    assert event["generation"] == {
        "number": 7,
        "protocol_type": "consumer",
        "protocol": "range",
        "leader": "m",
        "state_time": 5_000,
        "members": 1,
    }
    assert event["members"] == [
        {
            "member_id": "m",
            "instance_id": "i",
            "client_id": "c",
            "client_host": "/h",
            "epoch": 7,
            "session_timeout_ms": 6,
            "rebalance_timeout_ms": 5,
            "topics": ["t"],
            "rack": "r",
            "assigned": [{"topic": "t", "partition": 1}],
        }
    ]


def test_the_assignment_of_a_consumer_protocol_member() -> None:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=4,
        previous_member_epoch=3,
        state=1,
        assigned_partitions=(TopicPartitions(topic_id=AN_ID, partitions=(0, 2)),),
        partitions_pending_revocation=(TopicPartitions(topic_id=AN_ID, partitions=(1,)),),
    )
    has, pending = (
        [{"topic_id": str(AN_ID), "partition": n} for n in numbers] for numbers in ((0, 2), (1,))
    )
    assert event_of(data(key, 0, 8), data(value, 0, 0))["members"] == [
        {"member_id": "m", "epoch": 4, "state": 1, "assigned": has, "pending": pending}
    ]


def test_an_undecodable_record_is_kept_as_bytes() -> None:
    assert event_of(b"\0\x63", b"x") == {
        "undecoded": {"reason": "a key of type 99", "key": b"\0\x63", "value": b"x"}
    }


@pytest.mark.parametrize(("cls", "version"), VALUES)
def test_every_record_becomes_a_row(cls: Any, version: int) -> None:
    key_class: Any = MESSAGES[cls.__name__.removesuffix("Value") + "Key"]
    at = st.integers(-(2**63), 2**63 - 1)

    @repeatable(10)
    @given(values_of(key_class, 0), values_of(cls, version), at)
    def one_row(key: Any, value: Any, time: int) -> None:
        encoded = [data(key, 0, cls.api_key), data(value, version, version)]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([0, 0], pa.int32()),
                pa.array([5, 6], pa.int64()),
                pa.array([time, None], pa.timestamp("us", "UTC")),
                pa.array([encoded[0]] * 2, pa.binary()),
                pa.array([encoded[1], None], pa.binary()),
            ],
            names=["partition", "offset", "timestamp", "key", "value"],
        )
        made = pa.Table.from_batches(to_events([batch])).sort_by("log_offset")
        assert made.column("log_offset").to_pylist() == [5, 6]
        assert made.column("removed").to_pylist() == [False, True]
        assert made.column("undecoded").null_count == 2
        rows = made.drop_columns(["log_partition", "log_offset", "log_time"]).to_pylist()
        expected = [event_of(encoded[0], encoded[1]), event_of(encoded[0], None)]
        assert rows == [filled(event) for event in expected]

    one_row()


def filled(event: dict[str, Any]) -> dict[str, Any]:
    """The event with all fields, as Arrow returns it."""
    names = [name for name in schema().names if not name.startswith("log_")]
    array = [pa.array([event.get(name)], schema().field(name).type) for name in names]
    (row,) = pa.RecordBatch.from_arrays(array, names=names).to_pylist()
    return row  # type: ignore[no-any-return]


def batch_of(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> Any:
    """Records in partition 0 of the log, one after the other."""
    count = len(pairs)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([0] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array([0] * count, pa.timestamp("us", "UTC")),
            pa.array([key for key, _ in pairs], pa.binary()),
            pa.array([value for _, value in pairs], pa.binary()),
        ],
        names=["partition", "offset", "timestamp", "key", "value"],
    )


@st.composite
def damaged_commits(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A commit, often with some of its bytes changed, removed or added."""
    key = data(draw(values_of(OffsetCommitKey, 0)), 0, 1)
    version = draw(st.integers(1, 4))
    value = data(draw(values_of(OffsetCommitValue, version)), version, version)
    parts = []
    for part in (key, value):
        at = draw(st.integers(0, len(part)))
        match draw(st.sampled_from(["whole", "whole", "cut", "changed", "longer"])):
            case "cut":
                part = part[:at]
            case "changed":
                part = part[:at] + draw(st.binary(min_size=1, max_size=2)) + part[at + 1 :]
            case "longer":
                part += draw(st.binary(min_size=1, max_size=20))
        parts.append(part)
    return parts[0], draw(st.sampled_from([parts[1], parts[1], None]))


@repeatable(150)
@given(st.lists(damaged_commits(), max_size=6))
def test_commits_in_columns_are_the_rows_of_single_records(
    pairs: list[tuple[bytes, bytes | None]],
) -> None:
    batch = batch_of([(None, b"x"), *pairs]).slice(1)  # as Spark hands over a part of a batch
    made = list(to_events([batch]))
    rows = sorted(
        (row for part in made for row in part.to_pylist()), key=lambda row: row["log_offset"]
    )
    assert [row["log_offset"] for row in rows] == list(range(1, 1 + len(pairs)))
    for row, (key, value) in zip(rows, pairs, strict=True):
        found = {name: row[name] for name in row if not name.startswith("log_")}
        assert found == filled(event_of(key, value))

"""Records of `__consumer_offsets`: the same bytes as Kafka's own classes, and no errors.

`test_messages` compares each class with Kafka's schemas.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from struct import pack
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import MESSAGES, PAIRS, damaged, is_record, messages, repeatable, zero_of

from kafkagroup.testing._jars import LocalKafkaUnavailable, find_java, resolve_jars
from kafkagroup.wire.codec import encode
from kafkagroup.wire.coordinator.classic import GroupMetadataKey
from kafkagroup.wire.coordinator.offsets import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafkagroup.wire.group_log import GroupRecord, Undecoded, decode_group_record
from kafkagroup.wire.schema import fields_of

RECORDS = [pair for pair in PAIRS if is_record(pair.values[0])]
every_record = pytest.mark.parametrize(("cls", "version"), RECORDS)
VALUES = [pair for pair in RECORDS if pair.values[0].__name__.endswith("Value")]

# Put together by hand from the layout of Kafka's schemas.
KEY = bytes.fromhex("0001 0001 67 0002 746f 00000007")
VALUES_BY_HAND = {
    0: ("0000 000000000000002a 0001 6d 0000000000000005", {}),
    1: (
        "0001 000000000000002a 0001 6d 0000000000000005 0000000000000006",
        {"expire_timestamp": 6},
    ),
    2: ("0002 000000000000002a 0001 6d 0000000000000005", {}),
    3: ("0003 000000000000002a 00000003 0001 6d 0000000000000005", {"leader_epoch": 3}),
    4: ("0004 000000000000002a 00000003 02 6d 0000000000000005 00", {"leader_epoch": 3}),
}


@pytest.mark.parametrize("version", VALUES_BY_HAND)
def test_a_commit_in_each_version(version: int) -> None:
    text, more = VALUES_BY_HAND[version]
    value = OffsetCommitValue(offset=42, metadata="m", commit_timestamp=5, **more)
    assert decode_group_record(KEY, bytes.fromhex(text)) == GroupRecord(
        OffsetCommitKey(group="g", topic="to", partition=7), value
    )


def test_a_commit_of_the_oldest_type() -> None:
    key, value = b"\0\0" + KEY[2:], bytes.fromhex(VALUES_BY_HAND[0][0])
    assert decode_group_record(key, value) == GroupRecord(
        LegacyOffsetCommitKey(group="g", topic="to", partition=7),
        LegacyOffsetCommitValue(offset=42, metadata="m", commit_timestamp=5),
    )


def test_a_tombstone_has_a_key_and_no_value() -> None:
    key = OffsetCommitKey(group="g", topic="to", partition=7)
    assert decode_group_record(KEY, None) == GroupRecord(key, None)
    assert decode_group_record(b"\0\2\0\1g", None) == GroupRecord(GroupMetadataKey(group="g"), None)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"\0\0", "a record without a key"),
        (b"", None, "a key without a type"),
        (b"\0", None, "a key without a type"),
        (b"\0\x18\0\1g", b"\0\0", "a key of type 24"),
        (b"\0\x09\0\1g", None, "a key of type 9"),
        (b"\xff\xff\0\1g", None, "a key of type -1"),
        (KEY, b"", "OffsetCommitValue without a version"),
        (KEY, b"\0\5" + bytes(30), "OffsetCommitValue of version 5"),
        (KEY, b"\xff\xff" + bytes(30), "OffsetCommitValue of version -1"),
        (KEY + b"x", None, "OffsetCommitKey v0: 1 bytes left over"),
        (KEY[:-1], None, "OffsetCommitKey v0: the input ends early, after 12 bytes"),
        (
            KEY,
            bytes.fromhex(VALUES_BY_HAND[2][0]) + b"x",
            "OffsetCommitValue v2: 1 bytes left over",
        ),
    ],
)
def test_unknown_records_are_reported(key: bytes | None, value: bytes | None, reason: str) -> None:
    assert decode_group_record(key, value) == Undecoded(reason)


@pytest.mark.parametrize(("cls", "version"), VALUES)
def test_every_type_and_version_is_found_by_its_numbers(cls: Any, version: int) -> None:
    key_class: Any = MESSAGES[cls.__name__.removesuffix("Value") + "Key"]
    kind = pack(">h", cls.api_key)

    @repeatable(8)
    @given(messages(key_class, 0), messages(cls, version))
    def found(key: Any, value: Any) -> None:
        key_bytes = kind + encode(key, 0)
        value_bytes = pack(">h", version) + encode(value, version)
        assert decode_group_record(key_bytes, value_bytes) == GroupRecord(key, value)
        assert decode_group_record(key_bytes, None) == GroupRecord(key, None)

    @repeatable(12)
    @given(messages(cls, version).map(lambda m: encode(m, version)).flatmap(damaged))
    def damaged_value(data: bytes) -> None:
        key = zero_of(key_class)
        record = decode_group_record(kind + encode(key, 0), pack(">h", version) + data)
        assert isinstance(record, Undecoded) or record.key == key

    found()
    damaged_value()


@repeatable(300)
@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40), st.integers(-1, 25))
def test_any_bytes_decode_without_an_error(
    key: bytes | None, value: bytes | None, kind: int
) -> None:
    for prefixed_key in (key, None if key is None else pack(">h", kind) + key):
        for version in range(-1, 6):
            prefixed_value = None if value is None else pack(">h", version) + value
            assert isinstance(
                decode_group_record(prefixed_key, prefixed_value), GroupRecord | Undecoded
            )


def without_empty_tags(value: Any) -> Any:
    """Return the value with None for each empty tagged array: Java's classes omit both."""
    if isinstance(value, tuple):
        return tuple(map(without_empty_tags, value))
    if not hasattr(type(value), "__attrs_attrs__"):
        return value
    kept = {}
    for name, spec in fields_of(type(value)).items():
        inner = getattr(value, name)
        kept[name] = None if spec.tag is not None and inner == () else without_empty_tags(inner)
    return attrs.evolve(value, **kept)


@pytest.mark.slow
def test_kafkas_own_classes_read_and_write_the_same(tmp_path: Path) -> None:
    try:
        java = find_java()
        jars = resolve_jars("4.3.1", java)
    except LocalKafkaUnavailable as error:
        pytest.skip(f"records of groups are NOT COMPARED with Kafka's classes: {error}")
    lines: list[str] = []

    def gather(cls: Any, version: int) -> None:
        @repeatable(25)
        @given(messages(cls, version))
        def one(message: Any) -> None:
            data = encode(without_empty_tags(message), version)
            lines.append(f"{cls.__name__} {version} {data.hex()}")

        one()

    for pair in RECORDS:
        gather(*pair.values)
    (tmp_path / "records").write_text("".join(f"{line}\n" for line in lines))
    program = Path(__file__).parent / "java" / "GroupRecords.java"
    done = subprocess.run(
        [java, "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", program, tmp_path / "records"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    responses = done.stdout.decode().splitlines()
    wrong = [
        f"{line} -> {response}"
        for line, response in zip(lines, responses, strict=True)
        if line.rpartition(" ")[2] != response
    ]
    assert min(wrong, key=len, default=None) is None
    assert len(lines) > 20 * len(RECORDS)

"""Every message of the library with Kafka's schema facts, and values and bytes for tests."""

from __future__ import annotations

import json
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.schema import (
    BOOL,
    BYTES,
    INT16,
    INT64,
    NO_ID,
    RECORDS,
    STRING,
    UINT16,
    UUID_,
    Array,
    Field,
    Kind,
    Scalar,
    fields_of,
)

DATA = Path(__file__).parent / "data"
MAKER = runpy.run_path(str(DATA / "make_schemas.py"))
KAFKA: dict[str, Any] = json.loads((DATA / "schemas.json").read_text())
MESSAGES: dict[str, Any] = MAKER["declared"]()
PAIRS = [
    pytest.param(cls, version, id=f"{name}-v{version}")
    for name, cls in MESSAGES.items()
    for version in cls.versions
]
GROUP_LOG_PACKAGE = "kafkagroup.wire.coordinator."
"""The package of the records of `__consumer_offsets`, which are written to a log, not sent."""


def is_record(cls: type) -> bool:
    return cls.__module__.startswith(GROUP_LOG_PACKAGE)


def repeatable(examples: int) -> settings:
    """Return settings with this number of examples, and without checks of their speed. The profile
    in conftest.py makes the examples the same in each run."""
    return settings(max_examples=examples, suppress_health_check=list(HealthCheck))


REQUIRED = attrs.NOTHING
ZEROS = {STRING: "", UUID_: NO_ID, BYTES: b"", RECORDS: b"", BOOL: False}


def zero(kind: Kind) -> Any:
    """Return the value that Kafka's generated classes give a field without a default."""
    if isinstance(kind, Array):
        return ()
    if isinstance(kind, Scalar):
        return ZEROS.get(kind, 0)
    return zero_of(kind)


def zero_of(cls: Any) -> Any:
    return cls(
        **{
            a.name: zero(a.metadata[Field].kind) if a.default is REQUIRED else a.default
            for a in attrs.fields(cls)
        }
    )


CODES = {"b": 8, "h": 16, "i": 32, "q": 64}
error_codes = st.sampled_from(ErrorCode).map(int)
# kio, another codec with which results are compared, has durations and times instead of numbers:
# in whole seconds, and up to the year 2096.
milliseconds = st.integers(-(10**12), 10**12)
timestamps = st.just(-1) | st.integers(0, 4 * 10**9).map(lambda seconds: seconds * 1000)


def values(name: str, kind: Kind, version: int) -> st.SearchStrategy[Any]:
    """Generate values of one type that kio accepts: known error codes, valid times."""
    if isinstance(kind, Array):
        element = values("", kind.element, version)
        return st.lists(element, max_size=2).map(tuple)
    if isinstance(kind, type):
        return messages(kind, version)
    if kind is INT16 and name.endswith("error_code"):
        return error_codes
    if kind is INT64 and name.endswith("_ms"):
        times = ("log_append_time_ms", "transaction_start_time_ms")
        return timestamps if name in times else milliseconds
    if kind.code in CODES:
        half = 2 ** (CODES[kind.code] - 1)
        return st.integers(-half, half - 1)
    return {
        BOOL: st.booleans(),
        UINT16: st.integers(0, 65535),
        UUID_: st.just(NO_ID) | st.uuids(),
        STRING: st.text(max_size=8),
        BYTES: st.binary(max_size=8),
        RECORDS: st.binary(max_size=8),
    }[kind]


@cache
def messages(cls: Any, version: int) -> st.SearchStrategy[Any]:
    """Generate messages that `version` can encode; missing fields keep their default."""
    empty = zero_of(cls)
    parts = {}
    for name, spec in fields_of(cls).items():
        strategy = st.just(getattr(empty, name))
        if version in spec.versions:
            strategy = values(name, spec.kind, version)
            if version in spec.nullable:
                strategy = st.none() | strategy
        parts[name] = strategy
    return st.builds(cls, **parts)


HOSTILE_LENGTHS = (
    b"\x00",  # 0
    b"\xff",  # -1 in one byte
    b"\xff\xff",  # -1 in two
    b"\x7f\xff",  # the largest in two
    b"\x7f\xff\xff\xff",  # the largest in four
    b"\xff\xff\xff\xfe",  # -2 in four
    b"\xff\xff\xff\xff\x0f",  # the varint of 2**32 - 1
    b"\xff\xff\xff\xff\xff\x01",  # a varint that is too long
    b"\x80\x80\x80\x80\x00",  # a varint with a superfluous byte
)


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """Generate bytes that are usually damaged: truncated, with flipped bits, with a hostile length,
    or with inserted bytes."""
    where = st.integers(0, max(0, len(data) - 1))
    hostile = st.sampled_from(HOSTILE_LENGTHS)

    def flipped(bits: list[int]) -> bytes:
        out = bytearray(data)
        for bit in bits:
            out[bit // 8] ^= 1 << bit % 8
        return bytes(out)

    bit = st.integers(0, max(0, 8 * len(data) - 1))
    if not data:
        return st.binary(max_size=9)
    return st.one_of(
        where.map(lambda n: data[:n]),
        st.lists(bit, min_size=1, max_size=4).map(flipped),
        st.builds(lambda n, h: data[:n] + h + data[n + len(h) :], where, hostile),
        st.builds(lambda n, h: data[:n] + h + data[n:], where, hostile),
    )

"""Other releases can load users' pickles: each value under its public name, and under the module
that it reported before."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest

import kafkagroup
from kafkagroup import (
    AuthorizationError,
    BrokerError,
    Codec,
    CommitFailedError,
    ErrorCode,
    OffsetAndMetadata,
    Record,
    TopicPartition,
)
from kafkagroup.errors import RequestTimeoutError
from kafkagroup.events import MembershipLost, RebalanceCause
from kafkagroup.types import GroupMetadata, OffsetAndTimestamp, TimestampType

TP = TopicPartition("t", 3)
LOST = MembershipLost(at=1.0, generation_id=2, cause=RebalanceCause.FENCED, reason="fenced")
RECORD = Record("t", 3, 40, 1_000, TimestampType.CREATE_TIME, b"k", b"v", (("h", None),), 5)

ONCE: list[tuple[Any, str]] = [
    (TP, "types"),
    (OffsetAndMetadata(7, "note", 1), "types"),
    (OffsetAndTimestamp(7, 1_000), "types"),
    (GroupMetadata("g", 3, "m", None), "types"),
    (RECORD, "_record"),
    (TimestampType.CREATE_TIME, "types"),
    (LOST, "events"),
    (ErrorCode.NOT_COORDINATOR, "errors"),
    (BrokerError(16, "moved"), "errors"),
    (AuthorizationError(30, None, "group 'g'", "READ"), "errors"),
    (CommitFailedError("the group has rebalanced", (TP,)), "errors"),
    (RequestTimeoutError("late"), "errors"),
    (Codec.ZSTD, "wire.compression"),
]
"""A value, and the module below `kafkagroup` that its class once reported."""

PUBLIC = {b"kafkagroup", b"kafkagroup.errors", b"kafkagroup.events", b"kafkagroup.types"}
"""The modules that a pickle may name: they do not move."""


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Exception):
        return type(one) is type(other) and (str(one), vars(one)) == (str(other), vars(other))
    return bool(one == other)


@pytest.mark.parametrize(("value", "module"), ONCE, ids=lambda of: type(of).__name__)
def test_a_pickle_refers_to_the_public_package(value: Any, module: str) -> None:
    """It names no module that may move, and is the same compiled or not."""
    data = pickle.dumps(value, 2)
    named = set(re.findall(rb"c(kafkagroup[\w.]*)\n", data))
    assert {f"{type(value).__module__}".encode()} <= named <= PUBLIC
    assert same(pickle.loads(data), value)


@pytest.mark.parametrize(("value", "module"), ONCE, ids=lambda of: type(of).__name__)
def test_a_pickle_of_an_older_release_can_be_loaded(value: Any, module: str) -> None:
    name = type(value).__name__.encode()
    data = pickle.dumps(value, 2)
    home = type(value).__module__.encode()
    old = data.replace(b"c%s\n%s" % (home, name), b"ckafkagroup.%s\n%s" % (module.encode(), name))
    assert old != data or home == b"kafkagroup." + module.encode()
    assert same(pickle.loads(old), value)


@pytest.mark.parametrize("pure", ["", "1"], ids=["compiled", "pure"])
def test_a_pickle_can_be_loaded_in_another_process(pure: str) -> None:
    """The other process has imported nothing, and has the other form of a record."""
    values = [value for value, _ in ONCE if not isinstance(value, Exception)]
    program = (
        "import pickle, sys\n"
        "values = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(pickle.dumps(values))"
    )
    response = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(values),
        env={**os.environ, "KAFKAGROUP_PURE": pure},
        capture_output=True,
        check=True,
    )
    assert pickle.loads(response.stdout) == values


def test_the_class_that_a_traceback_names_can_be_imported() -> None:
    with pytest.raises(BrokerError) as caught:
        raise BrokerError(16)
    assert f"{caught.type.__module__}.{caught.type.__qualname__}" == "kafkagroup.BrokerError"
    assert kafkagroup.BrokerError is caught.type

"""The exceptions: their tree, their messages, and pickling."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from kafkagroup import errors
from kafkagroup._text import escaped
from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    ChangesRefusedError,
    ConfigurationError,
    CorruptRecordError,
    DeserializationError,
    ErrorCode,
    KafkaGroupError,
    NoOffsetError,
    NotWrittenError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    TransactionAbortedError,
    broker_error,
    error_name,
)
from kafkagroup.types import Record, TimestampType, TopicPartition

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
RECORD = Record("t", 0, 7, 5, TimestampType.CREATE_TIME, b"k", b"v", (("h", None),), 3)
SPECIAL: dict[type[Exception], tuple[Exception, str]] = {
    AuthorizationError: (
        AuthorizationError(29, "fetching t/0", "topic 't'", "READ"),
        "TOPIC_AUTHORIZATION_FAILED (29): READ on topic 't' is not allowed: fetching t/0",
    ),
    BrokerError: (
        BrokerError(25, "JoinGroup of group 'g'"),
        "UNKNOWN_MEMBER_ID (25): JoinGroup of group 'g'",
    ),
    RecordRefusedError: (
        RecordRefusedError(87, "writing to t/0: no key", 3),
        "INVALID_RECORD (87): writing to t/0: no key",
    ),
    ChangesRefusedError: (
        ChangesRefusedError(
            "creating topics", {"a": BrokerError(36), "b": BrokerError(17)}, ("c",)
        ),
        (
            "creating topics failed for 2 of 3: a: TOPIC_ALREADY_EXISTS (36);"
            " b: INVALID_TOPIC_EXCEPTION (17)"
        ),
    ),
    NotWrittenError: (
        NotWrittenError(T0, BrokerError(10)),
        "the record was not written to t/0: MESSAGE_TOO_LARGE (10)",
    ),
    TransactionAbortedError: (
        TransactionAbortedError(BrokerError(10)),
        "the transaction cannot commit: MESSAGE_TOO_LARGE (10)",
    ),
    CorruptRecordError: (
        CorruptRecordError("CRC-32C mismatch", topic="t", partition=3, offset=40),
        "t/3 at offset 40: CRC-32C mismatch",
    ),
    OffsetOutOfRangeError: (
        OffsetOutOfRangeError({T1: 9, T0: 5}),
        "no such offset in the log: t/0 at 5, t/1 at 9; seek, or set auto_offset_reset",
    ),
    NoOffsetError: (
        NoOffsetError((T1, T0, T2), {T2: 7}),
        (
            "no committed offset for t/0, t/1; no such offset in the log: t/2 at 7; seek, or set"
            " auto_offset_reset"
        ),
    ),
    DeserializationError: (
        DeserializationError(RECORD, "key"),
        "key_deserializer failed on t/0 at offset 7",
    ),
}
CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, KafkaGroupError)
]


def example(cls: type[Exception]) -> tuple[Exception, str]:
    return SPECIAL.get(cls) or (cls("what happened"), "what happened")


def test_a_traceback_of_a_record_that_cannot_be_read_says_what_to_do() -> None:
    error = DeserializationError(RECORD, "key")
    assert error.__notes__ == pickle.loads(pickle.dumps(error)).__notes__
    assert error.__notes__ == [
        (
            "Each call for records raises this until the application seeks past the record;"
            " on_deserialization_error can skip or replace it."
        )
    ]


def test_the_exception_tree_equals_the_one_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        if found := re.match(r"^([│├└─ ]*)([A-Z]\w+)( |$)", line):
            depth = len(found[1]) // 4
            del above[depth:]
            if above:
                drawn[found[2]] = above[-1]
            elif found[2] != "KafkaGroupError":
                continue
            above.append(found[2])
    assert drawn == {
        cls.__name__: cls.__bases__[0].__name__ for cls in CLASSES if cls is not KafkaGroupError
    }
    assert set(errors.__all__) == {cls.__name__ for cls in CLASSES} | {
        "ErrorCode",
        "InsecureConnectionWarning",
    }


def test_a_group_of_refusals_keeps_its_names_where_it_is_split() -> None:
    errors = {n: BrokerError(36 if n % 2 else 17) for n in range(7)}
    refused = ChangesRefusedError("creating topics", errors, ("x",))
    assert str(refused).endswith("(17); and 2 more")
    assert refused.exceptions == tuple(errors.values())
    exists = refused.subgroup(lambda error: getattr(error, "code", 0) == 36)
    assert isinstance(exists, ChangesRefusedError)
    assert exists.errors == {n: errors[n] for n in (1, 3, 5)}
    assert (exists.done, exists.doing) == (("x",), "creating topics")


def test_a_configuration_error_is_a_value_error() -> None:
    assert issubclass(ConfigurationError, ValueError)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_a_message(cls: type[Exception]) -> None:
    error, words = example(cls)
    assert str(error) == words
    assert inspect.getdoc(cls)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_and_copying(cls: type[Exception]) -> None:
    """Process pools and Spark executors pass errors on; three of these failed to unpickle."""
    error, words = example(cls)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(error, protocol))
        assert (type(back), str(back), vars(back)) == (cls, words, vars(error))
    twin = copy.copy(error)
    assert (type(twin), str(twin), vars(twin)) == (cls, words, vars(error))


def test_a_broker_error_is_created_from_its_code() -> None:
    error = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert (str(error), vars(error)) == (
        "NOT_LEADER_OR_FOLLOWER (6)",
        {"code": 6, "name": "NOT_LEADER_OR_FOLLOWER", "retriable": True, "stale_metadata": True},
    )
    assert vars(BrokerError(30)) == {
        "code": 30,
        "name": "GROUP_AUTHORIZATION_FAILED",
        "retriable": False,
        "stale_metadata": False,
    }


def test_a_code_of_a_newer_broker_is_kept() -> None:
    error = BrokerError(9999, "from the future")
    assert str(error) == "UNKNOWN_CODE_9999 (9999): from the future"
    assert (error.name, error.retriable, error_name(9999)) == (
        "UNKNOWN_CODE_9999",
        False,
        "UNKNOWN_CODE_9999",
    )


def test_broker_errors_compare_by_value() -> None:
    assert BrokerError(25) == BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    assert hash(BrokerError(25)) == hash(BrokerError(ErrorCode.UNKNOWN_MEMBER_ID))
    assert BrokerError(25) != BrokerError(25, "x")
    assert BrokerError(25) != BrokerError(22)
    assert BrokerError(25) != KafkaGroupError(str(BrokerError(25)))


def test_a_message_with_a_colon_survives() -> None:
    error = pickle.loads(pickle.dumps(BrokerError(25, ": a: b")))
    assert error == BrokerError(25, ": a: b")


def test_the_attributes_of_a_corrupt_record_have_defaults() -> None:
    assert str(CorruptRecordError("short")) == "?/-1 at offset -1: short"
    error = CorruptRecordError("short", topic="t", partition=1, offset=2)
    named = {"reason": "short", "topic": "t", "partition": 1, "offset": 2}
    assert vars(error) == {**named, "next_offset": -1}


@pytest.mark.parametrize(
    ("code", "resource", "operation"),
    [
        (29, "topic 't'", "READ"),
        (30, "group 'g'", "READ"),
        (31, "the cluster", ""),
        (53, "transactional id 'x'", "READ"),
    ],
)
def test_an_authorization_error_names_the_resource(
    code: int, resource: str, operation: str
) -> None:
    named = {"topic": "t", "group": "g", "transactional_id": "x"}
    error = broker_error(code, "doing it", operation="READ", **named)
    assert type(error) is AuthorizationError
    assert (error.code, error.resource, error.operation) == (code, resource, operation)
    missing = f"{operation or 'access'} on {resource}"
    assert str(error) == f"{error_name(code)} ({code}): {missing} is not allowed: doing it"


def test_other_codes_are_no_authorization_error() -> None:
    assert type(broker_error(25, "doing it", operation="READ", topic="t")) is BrokerError


def test_text_from_a_broker_is_shortened_to_one_line() -> None:
    """A log or a terminal must not execute control characters."""
    said = "no\r\n2026 INFO all is well \x1b[2J\u202e" + "x" * 100_000
    shown = escaped(said)
    assert shown.startswith("no\\r\\n2026 INFO all is well \\x1b[2J\\u202exxx")
    assert (len(shown), shown[-2:], shown.isprintable()) == (500, "x…", True)
    assert escaped(shown) == shown
    assert escaped("Größe: 5 µs") == "Größe: 5 µs"
    assert str(BrokerError(58, said)) == f"SASL_AUTHENTICATION_FAILED (58): {shown}"

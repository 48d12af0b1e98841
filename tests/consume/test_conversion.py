"""Deserializers, plain and coroutine functions, and the handling of their errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from kafkagroup.consume.conversion import Conversion, Outcome
from kafkagroup.errors import ConfigurationError, DeserializationError
from kafkagroup.types import Record, TimestampType


def record(value: bytes | None, key: bytes | None = None) -> Record:
    return Record("t", 0, 5, -1, TimestampType.CREATE_TIME, key, value, (), 7)


def finished(awaitable: Awaitable[Any]) -> Any:
    """Return the result of a coroutine that never waits."""

    async def run() -> Any:
        return await awaitable

    return asyncio.run(run())


def parts(made: Record | Outcome) -> tuple[object, object]:
    assert isinstance(made, Record)
    return made.key, made.value


def test_only_key_and_value_are_deserialized() -> None:
    conversion = Conversion(bytes.decode, int)
    assert conversion.now(record(b"12", b"k")) == record(b"12", b"k")._replace(key="k", value=12)


@pytest.mark.parametrize(
    ("key_deserializer", "value_deserializer", "expected"),
    [(bytes.decode, None, ("k", b"1")), (None, int, (b"k", 1))],
)
def test_without_a_deserializer_values_stay_bytes(
    key_deserializer: Any, value_deserializer: Any, expected: object
) -> None:
    conversion = Conversion(key_deserializer, value_deserializer)
    assert parts(conversion.now(record(b"1", b"k"))) == expected
    assert parts(finished(conversion.later(record(b"1", b"k")))) == expected


def test_null_is_not_deserialized() -> None:
    conversion = Conversion(int, int)
    assert parts(conversion.now(record(None))) == (None, None)
    assert parts(finished(conversion.later(record(None)))) == (None, None)


# ---------------------------------------------------------------- coroutine functions


async def decode(value: bytes) -> str:
    return value.decode()


class Registry:
    """A callable object, like some clients of schema registries."""

    async def __call__(self, value: bytes) -> str:
        return value.decode()

    async def decode(self, prefix: str, value: bytes) -> str:
        return prefix + value.decode()


@pytest.mark.parametrize(
    "deserializer",
    [
        decode,
        Registry(),
        partial(Registry().decode, ""),
        partial(partial(Registry().decode), ""),
        partial(Registry()),
    ],
    ids=["function", "object", "partial", "partial of a partial", "partial of an object"],
)
@pytest.mark.parametrize("part", ["key", "value"])
def test_a_coroutine_function_is_detected_before_the_first_record(
    deserializer: Any, part: str
) -> None:
    conversion = Conversion(*((deserializer, None) if part == "key" else (None, deserializer)))
    assert conversion.suspends
    raw = record(b"x", b"x")
    assert conversion.now(raw) is Outcome.SUSPENDS
    assert parts(raw) == (b"x", b"x")
    assert getattr(finished(conversion.later(raw)), part) == "x"


@pytest.mark.parametrize("function", [lambda value: decode(value), lambda value: Later(value)])
def test_a_plain_function_may_return_an_awaitable(
    function: Callable[[bytes], object],
) -> None:
    """A lambda around a coroutine function returned coroutines as values. None may stay unawaited:
    tests raise that warning."""
    conversion = Conversion(None, function)
    assert not conversion.suspends
    raw = record(b"x")
    assert conversion.now(raw) is Outcome.SUSPENDS
    assert conversion.suspends
    assert parts(finished(conversion.later(raw))) == (None, "x")


class Later:
    """An awaitable that is no coroutine."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __await__(self) -> Any:
        return decode(self.value).__await__()


def test_an_awaitable_after_values_of_another_type_is_detected() -> None:
    conversion = Conversion(None, lambda value: decode(value) if value == b"x" else 1)
    assert parts(conversion.now(record(b"1"))) == (None, 1)
    assert conversion.now(record(b"x")) is Outcome.SUSPENDS


# ---------------------------------------------------------------- errors


async def fail(value: bytes) -> int:
    return int(value)


def converted(conversion: Conversion, raw: Record) -> Record | Outcome:
    """Convert with `now`, or with `later` if that returns an awaitable."""
    made = conversion.now(raw)
    if made is Outcome.SUSPENDS:
        made = finished(conversion.later(raw))
    return made


deserializers = pytest.mark.parametrize("deserializer", [int, fail], ids=["plain", "coroutine"])


@deserializers
def test_by_default_an_error_is_raised_with_the_record_and_the_cause(deserializer: Any) -> None:
    raw = record(b"x", b"k")
    with pytest.raises(DeserializationError) as caught:
        converted(Conversion(bytes.decode, deserializer), raw)
    error = caught.value
    assert (error.record, error.part) == (record(b"x", b"k"), "value")
    assert isinstance(error.__cause__, ValueError)
    assert parts(raw) == (b"k", b"x")


@deserializers
def test_the_record_of_an_error_is_not_modified(deserializer: Any) -> None:
    """An application that keeps it and retries must not see it change when the retry succeeds."""
    broken = True

    def flaky(value: bytes) -> Any:
        if broken:
            raise ValueError("the registry is away")
        return deserializer(value)

    conversion, raw = Conversion(None, flaky), record(b"1")
    with pytest.raises(DeserializationError) as caught:
        converted(conversion, raw)
    broken = False
    assert parts(converted(conversion, raw)) == (None, 1)
    assert caught.value.record == record(b"1")


@deserializers
def test_skip_warns_and_counts(deserializer: Any, caplog: pytest.LogCaptureFixture) -> None:
    conversion = Conversion(None, deserializer, "skip")
    with caplog.at_level(logging.WARNING, "kafkagroup"):
        assert converted(conversion, record(b"x")) is Outcome.SKIPPED
    assert conversion.skipped_count == 1
    (warned,) = caplog.messages
    assert warned.startswith("skipped a record: value_deserializer failed on t/0 at offset 5: ")
    assert "invalid literal" in warned


def answers(answer: object) -> Callable[[Record, DeserializationError], Any]:
    def handle(failed: Record, error: DeserializationError) -> object:
        assert failed == error.record == record(b"x")
        assert error.part == "value"
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handle


def as_coroutine_function(handle: Callable[..., Any]) -> Callable[..., Any]:
    async def handler(*args: Any) -> Any:
        return handle(*args)

    return handler


handlers = pytest.mark.parametrize(
    "kind",
    [
        lambda handle: handle,
        as_coroutine_function,
        lambda h: lambda *a: as_coroutine_function(h)(*a),
    ],
    ids=["plain", "coroutine", "lambda"],
)


@deserializers
@handlers
def test_a_handler_may_skip(deserializer: Any, kind: Any) -> None:
    conversion = Conversion(None, deserializer, kind(answers(None)))
    assert converted(conversion, record(b"x")) is Outcome.SKIPPED
    assert conversion.skipped_count == 1


@deserializers
@handlers
def test_a_handler_may_replace(deserializer: Any, kind: Any) -> None:
    other = record(None)._replace(value=-1)
    conversion = Conversion(None, deserializer, kind(answers(other)))
    assert converted(conversion, record(b"x")) is other
    assert conversion.skipped_count == 0


@deserializers
@handlers
def test_errors_of_the_handler_reach_the_application(deserializer: Any, kind: Any) -> None:
    conversion = Conversion(None, deserializer, kind(answers(KeyError("its own"))))
    with pytest.raises(KeyError, match="its own"):
        converted(conversion, record(b"x"))
    assert conversion.skipped_count == 0


@deserializers
@handlers
def test_a_wrong_return_value_of_the_handler_is_an_error(deserializer: Any, kind: Any) -> None:
    conversion = Conversion(None, deserializer, kind(answers(b"x")))
    with pytest.raises(ConfigurationError, match="answered with bytes; expected a Record"):
        converted(conversion, record(b"x"))


def test_the_handler_is_called_for_failures_only() -> None:
    conversion = Conversion(None, int, answers(None))
    assert parts(conversion.now(record(b"1"))) == (None, 1)


def test_deserializers_receive_views_unchanged() -> None:
    seen: list[object] = []
    conversion = Conversion(None, lambda data: seen.append(type(data)) or bytes(data))
    raw = record(None)._replace(value=memoryview(b"x"))
    assert parts(conversion.now(raw)) == (None, b"x")
    assert seen == [memoryview]

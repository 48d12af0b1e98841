"""Errors reported to the application: which are raised once, which by every call."""

from __future__ import annotations

import anyio
import pytest

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    DecodeError,
    NoOffsetError,
    broker_error,
)
from kafkagroup.runtime.consume.error_channel import ErrorChannel
from kafkagroup.types import TopicPartition

TP = TopicPartition("t", 0)


class Channel(ErrorChannel):
    """Counts how often the application is woken."""

    def __init__(self) -> None:
        self.wakes = 0
        super().__init__(self._count)

    def _count(self) -> None:
        self.wakes += 1


def test_a_reported_error_is_raised_once() -> None:
    channel = Channel()
    channel.report(ConfigurationError("one"))
    assert (channel.wakes, channel.is_pending, channel.has_reports) == (1, True, True)
    with pytest.raises(ConfigurationError, match="one"):
        channel.raise_next()
    assert (channel.is_pending, channel.has_reports) == (False, False)
    channel.raise_next()


def test_the_last_refusal_of_the_credentials_is_raised_once() -> None:
    """An application that commits for a minute without a poll then gets one error."""
    channel = Channel()
    channel.report(ConfigurationError("other"))
    for n in range(3):
        channel.report_refused_login(AuthenticationError(f"refused {n}", is_refusal=True))
    assert channel.has_refused_login
    with pytest.raises(ConfigurationError, match="other"):
        channel.raise_next()
    with pytest.raises(AuthenticationError, match="refused 2"):
        channel.raise_next()
    assert (channel.has_refused_login, channel.has_reports) == (False, False)


def test_the_first_failure_is_raised_by_every_call() -> None:
    channel = Channel()
    channel.raise_failure()
    channel.fail(ConfigurationError("first"))
    channel.fail(ConfigurationError("second"))
    assert channel.wakes == 2
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="first"):
            channel.raise_next()
        with pytest.raises(ConfigurationError, match="first"):
            channel.raise_failure()


def test_an_error_of_a_partition_waits_for_the_records_before_it() -> None:
    channel, owned = Channel(), OwnedPartition(TP)
    owned.start_at(0)
    owned.fetch_offset = 1
    channel.fail_partition(owned, DecodeError("damaged"))
    assert not channel.is_pending
    channel.raise_next()
    owned.position = 1
    assert channel.is_pending
    with pytest.raises(DecodeError):
        channel.raise_next()
    assert owned.failed
    assert not channel.is_pending


def test_a_missing_position_is_raised_until_the_application_seeks() -> None:
    channel, owned = Channel(), OwnedPartition(TP)
    channel.fail_partition(owned, NoOffsetError((TP,)))
    for _ in range(2):
        with pytest.raises(NoOffsetError):
            channel.raise_next()
        with pytest.raises(NoOffsetError):
            channel.raise_without_position(owned)
    owned.start_at(3)
    channel.raise_next()
    channel.raise_without_position(owned)
    assert not channel.is_pending


def test_errors_of_a_revoked_partition_are_not_raised() -> None:
    channel, owned = Channel(), OwnedPartition(TP)
    owned.revoked = True
    channel.fail_partition(owned, NoOffsetError((TP,)))
    assert (channel.wakes, channel.is_pending, owned.failed) == (0, False, False)


@pytest.mark.anyio
async def test_a_denial_that_comes_and_goes_is_raised_once_a_minute() -> None:
    """Of two brokers one has not loaded the ACLs of the topic yet: each second another error."""
    channel, raised = Channel(), []
    for second in range(150):
        channel.report_refusal(broker_error(29, topic="t"), ("describe", "t"))
        try:
            channel.raise_next()
        except AuthorizationError:
            raised.append(second)
        await anyio.sleep(1)
    assert raised == [0, 60, 120]

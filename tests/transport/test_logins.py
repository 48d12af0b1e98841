"""When to log in again after a failure, and what the application gets to know."""

from __future__ import annotations

import pytest

from kafkagroup.errors import AuthenticationError, ConnectionLostError, TlsError
from kafkagroup.transport.logins import Logins

A, B = ("a", 9092), ("b", 9092)
REFUSED = AuthenticationError("a:9092: the broker refuses", is_refusal=True)
FAILED = AuthenticationError("PLAIN failed with OSError", is_of_source=True)


def logins(*, has_worked: bool = True) -> tuple[Logins, list[AuthenticationError]]:
    one, reported = Logins(), list[AuthenticationError]()
    one.watch(reported.append)
    if has_worked:
        one.succeeded(B, is_known=True)
    return one, reported


def allowed(one: Logins, now: float, address: tuple[str, int] = A) -> bool:
    try:
        one.check(address, now)
    except AuthenticationError:
        return False
    return True


def test_a_broker_that_refuses_is_asked_less_and_less_often() -> None:
    one, reported = logins()
    attempts, now = [], 0.0
    while now < 45.0:
        if allowed(one, now):
            attempts.append(now)
            one.failed(A, REFUSED, now)
        assert allowed(one, now, B)
        now += 0.5
    assert attempts == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 35.0]
    assert reported == [REFUSED], "after ten seconds, and once a minute"
    one.succeeded(A, is_known=True)
    assert allowed(one, now)
    one.failed(A, REFUSED, now)
    assert allowed(one, now + 1.0)


def test_a_source_that_fails_at_once_is_asked_after_a_pause() -> None:
    """Each task of a client asked it, for each broker: dozens of times a second."""
    one, _ = logins()
    attempts = []
    for tenth in range(40):
        if allowed(one, tenth / 10):
            attempts.append(tenth)
            one.failed(A, FAILED, tenth / 10)
    assert attempts == [0, 2, 7, 15, 25, 35]
    one.failed(A, REFUSED, 4.0)
    assert not allowed(one, 4.9)
    assert allowed(one, 5.0)


def test_after_a_failure_one_connection_tries_first() -> None:
    """All connections of a client logged in at the same moment, after each pause."""
    one, _ = logins()
    assert [allowed(one, 0.0) for _ in range(3)] == [True] * 3, "nothing is known to be wrong"
    one.failed(A, FAILED, 0.0)
    assert [allowed(one, 0.2) for _ in range(3)] == [True, False, False]
    assert allowed(one, 0.4), "the first has not ended"
    one.succeeded(A, is_known=True)
    assert [allowed(one, 0.4) for _ in range(3)] == [True] * 3


def test_a_source_that_fails_is_asked_by_one_connection_of_all_brokers() -> None:
    """The connections to each broker asked it at their own pace: a client of three brokers whose
    token server was down asked it 21 times in a second."""
    one, _ = logins()
    attempts = []
    for tenth in range(40):
        for address in (A, B):
            if allowed(one, tenth / 10, address):
                attempts.append((tenth, address))
                one.failed(address, FAILED, tenth / 10)
    assert attempts == [(tenth, A) for tenth in (0, 2, 7, 15, 25, 35)]
    assert allowed(one, 5.0, B)
    one.succeeded(B, is_known=True)
    assert [allowed(one, 5.0, address) for address in (A, B)] == [True, True]
    one.failed(A, TlsError("a:9092: the certificate has expired"), 6.0)
    assert [allowed(one, 6.0, address) for address in (A, B)] == [False, True]


def test_connections_that_renew_their_sessions_ask_a_failing_source_in_turn() -> None:
    """Each asked it at its own pace: with short sessions, 21 times in a second."""
    one, _ = logins()
    attempts = []
    for tenth in range(40):
        for address in (A, A, B):
            if one.may_ask_source(tenth / 10):
                attempts.append((tenth, address))
                one.failed(address, FAILED, tenth / 10)
    assert attempts == [(tenth, A) for tenth in (0, 2, 7, 15, 25, 35)]
    assert [one.may_ask_source(4.5) for _ in range(3)] == [True, False, False]
    assert not allowed(one, 4.5, B), "nor does a new connection"
    one.succeeded(B, is_known=True)
    assert [one.may_ask_source(4.5) for _ in range(3)] == [True] * 3


def test_after_a_refusal_of_all_brokers_the_application_must_go_on() -> None:
    one, reported = logins()
    one.failed(A, REFUSED, 0.0)
    one.refused_everywhere(0.0)
    one.refused_everywhere(0.0)
    assert reported == [REFUSED]
    assert not allowed(one, 1_000.0)
    assert not allowed(one, 1_000.0, B)
    with pytest.raises(AuthenticationError) as caught:
        one.raise_suspended()
    assert caught.value is REFUSED
    one.suspended = None
    one.raise_suspended()
    assert (allowed(one, 0.5), allowed(one, 0.5, B), allowed(one, 1.0)) == (False, True, True)
    one.failed(A, REFUSED, 1.0)
    one.refused_everywhere(1.0)
    assert reported == [REFUSED] * 2, "each attempt that the application has caused"


def test_a_refusal_before_a_response_is_not_one_of_all_brokers() -> None:
    """One broker refused for a moment, while the password changed. Later the source of credentials
    failed: the client raised the refusal, and tried no login until the application polled."""
    one, reported = logins()
    one.failed(A, REFUSED, 0.0)
    one.on_response()
    one.failed(B, FAILED, 5.0)
    one.refused_everywhere(5.0)
    assert (reported, allowed(one, 6.0)) == ([], True)
    one.failed(A, REFUSED, 6.0)
    one.refused_everywhere(6.0)
    assert (reported, allowed(one, 40.0)) == ([REFUSED], False)


def test_the_traceback_of_a_repeated_error_does_not_grow() -> None:
    one, _ = logins()
    one.failed(A, REFUSED, 0.0)
    one.refused_everywhere(0.0)
    depths = set()
    for _ in range(3):
        with pytest.raises(AuthenticationError) as caught:
            one.check(A, 0.0)
        depths.add(len(caught.traceback))
    assert len(depths) == 1


def test_what_no_broker_has_refused_is_raised_only_before_the_first_login() -> None:
    one, reported = logins(has_worked=False)
    for now in (0.0, 0.1, 59.0, 60.0):
        one.failed(A, FAILED, now)
        assert allowed(one, now + 1.0)
    assert reported == [FAILED] * 2
    one.succeeded(A, is_known=False)  # a bootstrap address: the broker's own may still be wrong
    one.failed(A, FAILED, 120.0)
    one.succeeded(A, is_known=True)
    one.failed(A, FAILED, 240.0)
    assert reported == [FAILED] * 3


def test_without_a_watching_application_each_call_logs_in() -> None:
    """An `Admin` has no calls but those of the application, which get the error."""
    one = Logins()
    one.failed(A, REFUSED, 0.0)
    one.refused_everywhere(0.0)
    assert allowed(one, 0.0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (REFUSED, (True, True)),
        (TlsError("a:9092: expired", is_refusal=True), (True, True)),
        (FAILED, (True, False)),
        (ConnectionLostError("broken"), (False, False)),
    ],
)
def test_which_errors_end_a_call(error: Exception, expected: tuple[bool, bool]) -> None:
    """At first the options may be wrong, and a call should not try them for a minute."""
    new, old = logins(has_worked=False)[0], logins()[0]
    assert (new.is_final(error), old.is_final(error)) == expected


def test_the_failures_of_a_thousand_addresses_are_kept() -> None:
    """A broker may name another address in each response."""
    one, _ = logins()
    for n in range(1_500):
        one.failed(("h", n), REFUSED, 0.0)
    assert [n for n in range(1_500) if not allowed(one, 0.5, ("h", n))] == list(range(500, 1_500))

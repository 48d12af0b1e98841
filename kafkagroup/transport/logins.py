"""When a client logs in again after a failure, and what it raises to the application. No I/O.

Brokers and directories lock the accounts of clients that repeat a wrong password. So if all brokers
refuse the credentials, the error is raised to the application, and no login is tried until the
application has got the error and calls the client again, which then clears `suspended`. One broker
that refuses what others accept is at fault itself: its logins are repeated, less and less often,
and while it still refuses, the error is raised to the application once a minute. A failure that is
not a broker's refusal, such as that of the source of credentials, is raised only before the first
successful login, when the options may be wrong. A source that fails does so for each broker: after
each pause, only one login of the client asks it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from kafkagroup._backoff import backoff
from kafkagroup._values import define
from kafkagroup.errors import AuthenticationError
from kafkagroup.transport.options import Address
from kafkagroup.transport.trouble import WARN_AFTER

__all__ = ["Logins"]

_PAUSES_AFTER_REFUSAL = (1.0, 10.0)
"""Seconds between two logins at a broker that refuses, at least and at most; doubled for each
further one."""

_PAUSES_AFTER_FAILURE = (0.2, 1.0)
"""Seconds between two logins after another failure, at least and at most; doubled likewise. Many
tasks request connections, and each tries one broker after the other: without a pause, a source that
fails at once would be called dozens of times a second."""

_SOURCE: Address = ("", 0)
"""The source of credentials, in place of a broker's address."""

_REPORT_INTERVAL = 60.0
"""Seconds between two reports of failed logins that the client repeats by itself."""

_MAX_FAILURES = 1_000
"""The limit of addresses whose failures are kept: a broker may name any number of others."""


@define
class _Failure:
    """The last failed login at one broker, or the last failure of the source of credentials."""

    error: AuthenticationError
    since: float
    """When the first of the failures in a row was noted."""
    attempts: int
    """How many failed in a row."""
    retry_at: float
    """When the next login may be tried."""

    def pause(self) -> float:
        """Return the seconds to wait before the next login."""
        pauses = _PAUSES_AFTER_REFUSAL if self.error.is_refusal else _PAUSES_AFTER_FAILURE
        return backoff(self.attempts, *pauses, jitter=0.5)  # the middle: no deviation


class Logins:
    """The logins of one client, with TLS or SASL or neither. Times are on the loop's clock."""

    def __init__(self) -> None:
        self.has_worked = False
        """Whether a broker that the metadata names has accepted a login: then the options are
        right."""
        self._failures: dict[Address, _Failure] = {}
        """By the address of the broker; under `_SOURCE` the failure of the source of
        credentials."""
        self._unreported: AuthenticationError | None = None
        """The last refusal by a broker, if no broker has responded since, and `refused_everywhere`
        has not reported it yet."""
        self.suspended: AuthenticationError | None = None
        """The refusal of all brokers, from `refused_everywhere` on: no login is tried. When the
        application continues or closes the client, the client sets it to None: logins are allowed
        again, after the pause of each broker."""
        self._on_refused: Callable[[AuthenticationError], None] | None = None
        """Raises an error to the application; None until `watch` is called."""
        self._reported_at = float("-inf")
        """When `_on_refused` was last called."""

    def watch(self, on_refused: Callable[[AuthenticationError], None]) -> None:
        """Call `on_refused` with the error to raise to the application. If this is never called,
        the caller of each request gets the error, and no login is delayed or suspended."""
        self._on_refused = on_refused

    def is_final(self, error: Exception) -> bool:
        """Return whether a call of the application ends with this error: it is not repeated after
        a refusal, and not while the options may be wrong."""
        if not isinstance(error, AuthenticationError):
            return False
        return error.is_refusal or not self.has_worked

    def check(self, address: Address, now: float) -> None:
        """Raise the last failure while it is too early for a login at this address. When its pause
        is over, only the first caller may log in, and the next pause begins: otherwise all
        connections would log in at once."""
        self.raise_suspended()
        if self._on_refused is None:
            return
        failures = [self._failures[key] for key in (address, _SOURCE) if key in self._failures]
        for failure in failures:
            if now < failure.retry_at:
                _raise_again(failure.error)
        for failure in failures:
            failure.retry_at = now + failure.pause()

    def may_ask_source(self, now: float) -> bool:
        """Return whether a connection may renew its session. After a failure of the source only one
        connection may in each pause, as in `check`."""
        failure = self._failures.get(_SOURCE)
        if failure is None or self._on_refused is None:
            return True
        may_ask = now >= failure.retry_at
        if may_ask:
            failure.retry_at = now + failure.pause()
        return may_ask

    def raise_suspended(self) -> None:
        """Raise the refusal of all brokers, while no login is tried."""
        if self.suspended is not None:
            _raise_again(self.suspended)

    def succeeded(self, address: Address, *, is_known: bool) -> None:
        """Note a login. `is_known`: the metadata names this broker."""
        self._failures.pop(address, None)
        self._failures.pop(_SOURCE, None)
        self.has_worked |= is_known

    def failed(self, address: Address, error: AuthenticationError, now: float) -> None:
        """Note a failed login. It counts for this broker, or for all if the source has failed."""
        key = _SOURCE if error.is_of_source else address
        known = self._failures.get(key)
        if known is not None and known.error.is_refusal != error.is_refusal:
            known = None
        attempts = 1 if known is None else known.attempts + 1
        since = now if known is None else known.since
        failure = _Failure(error, since, attempts, retry_at=now)
        failure.retry_at += failure.pause()
        self._failures[key] = failure
        if len(self._failures) > _MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        if not error.is_refusal:
            if not self.has_worked:
                self._report_at_intervals(error, now)
            return
        self._unreported = error
        if now - since >= WARN_AFTER:
            self._report_at_intervals(error, now)

    def on_response(self) -> None:
        """Note that a broker of this client's cluster has responded: not all brokers refuse. An
        accepted login does not show that: another cluster may listen at the broker's address."""
        self._unreported = None

    def refused_everywhere(self, now: float) -> None:
        """Note that no broker accepts a login: report it, and suspend all logins. Changes nothing
        if no login was refused since the last report, or since a broker responded: the brokers may
        only be in their pauses, or not be reached."""
        error = self._unreported
        if error is not None and self._on_refused is not None:
            self.suspended, self._unreported = error, None
            self._report(error, now)

    def _report_at_intervals(self, error: AuthenticationError, now: float) -> None:
        if now - self._reported_at >= _REPORT_INTERVAL:
            self._report(error, now)

    def _report(self, error: AuthenticationError, now: float) -> None:
        if self._on_refused is not None:
            self._reported_at = now
            self._on_refused(error)


def _raise_again(error: AuthenticationError) -> NoReturn:
    # Without its traceback, which would grow each time that the error is raised.
    raise error.with_traceback(None)

"""Whether a client must bootstrap again, and whether its cluster has changed. No I/O.

To bootstrap again is to forget the known brokers, so that only the bootstrap addresses are asked.
The cluster has changed only if no known broker responds, and the bootstrap addresses lead to
another cluster.
"""

from __future__ import annotations

from kafkagroup._text import escaped
from kafkagroup._values import define, field
from kafkagroup.errors import (
    AuthenticationError,
    ClusterChangedError,
    KafkaGroupError,
    NoBrokersAvailableError,
)
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.identity import ForeignClusterError
from kafkagroup.transport.options import Address
from kafkagroup.transport.trouble import Problem, Troubles

__all__ = ["Attempts", "Recovery", "Survey"]

_CONFIRM_AFTER = 1.0
"""Seconds after which a later round of requests to the bootstrap addresses confirms an earlier one.
One round does not suffice: a name may lead to another address for a moment."""

_CONFIRM_SOME_AFTER = 10.0
"""Replaces `_CONFIRM_AFTER` if some bootstrap addresses do not respond."""

_FORGET_AFTER = 30.0
"""Seconds after which a round is too old to be confirmed by the next one."""

_REBOOTSTRAP_INTERVAL = 5.0
"""The client obeys a broker that requires it to bootstrap again at most once in so many seconds, as
it closes the connections to all brokers each time."""

_REPORT_INTERVAL = 60.0
"""Seconds between two reports to the application that the cluster has changed."""

_MAX_REASONS = 5
"""The limit of reasons in one error: a response may name any number of brokers."""


@define
class Attempts:
    """The failures of one request, which is sent to one broker after another."""

    unreachable: set[Address] = field(factory=set)
    """The addresses of the brokers that did not respond."""
    foreign: dict[Address, str] = field(factory=dict)
    """Bootstrap address -> the id of the other cluster that it leads to."""
    has_timed_out: bool = False
    """Whether one of the brokers may only be slow (`BrokerClient.is_slow`): at the next attempt it
    has the whole request timeout."""
    silent_count: int = 0
    """How many bootstrap addresses failed, without those in `foreign`."""
    reasons: list[str] = field(factory=list)
    """Why each attempt failed, with the broker's address."""
    unauthenticated: AuthenticationError | None = None
    """Why a connection was not authenticated: a broker's refusal, if there is one."""

    def failed(self, broker: BrokerClient, error: Exception) -> None:
        """Note that a broker did not respond."""
        self.unreachable.add(broker.address)
        self.has_timed_out |= broker.is_slow
        if isinstance(error, AuthenticationError):
            known = self.unauthenticated
            if known is None or (error.is_refusal and not known.is_refusal):
                self.unauthenticated = error
        if broker.node_id < 0:  # a bootstrap address
            if isinstance(error, ForeignClusterError):
                self.foreign[broker.address] = error.found
            else:
                self.silent_count += 1
        address = f"{broker.host}:{broker.port}"
        # Most errors name the address themselves; a decoding error, for example, does not.
        self.reasons.append(str(error) if address in str(error) else f"{address}: {error}")

    @property
    def refusal(self) -> AuthenticationError | None:
        """A broker's refusal of the credentials, if there was one."""
        found = self.unauthenticated
        return found if found is not None and found.is_refusal else None

    def error(self) -> KafkaGroupError:
        """Return the error to raise: why a connection was not authenticated, else an error with the
        first reasons."""
        if self.unauthenticated is not None:
            return self.unauthenticated
        distinct = list(dict.fromkeys(self.reasons))
        more = len(distinct) - _MAX_REASONS
        return NoBrokersAvailableError(
            "no broker answered: "
            + "; ".join(distinct[:_MAX_REASONS])
            + (f"; and {more} more" if more > 0 else "")
        )


@define
class _Sighting:
    """Another cluster at the bootstrap addresses."""

    found: str
    """The id of that cluster."""
    first_at: float
    """When the first round found it."""
    last_at: float
    """When the last round found it."""


class Survey:
    """Where the bootstrap addresses led, in rounds in which no broker of the cluster responded."""

    def __init__(self) -> None:
        self._sighting: _Sighting | None = None

    def reset(self) -> None:
        """Note that a broker of the cluster has responded."""
        self._sighting = None

    def on_round(
        self,
        now: float,
        expected: str | None,
        attempts: Attempts,
    ) -> ClusterChangedError | None:
        """Return the error if the bootstrap addresses lead to another cluster in this round and in
        an earlier one, else None.

        `now`: a time on the loop's clock; `expected`: the id of the client's cluster, None if it is
        unknown; `attempts`: those of a round in which no broker responded and all bootstrap
        addresses were asked.
        """
        # The client may have adopted a cluster during this round.
        others = {
            address: found for address, found in attempts.foreign.items() if found != expected
        }
        if expected is None or len(set(others.values())) != 1:
            self._sighting = None  # only a single other cluster can replace the client's
            return None
        (host, port), found = min(others.items())  # all lead to `found`; the error names one
        seen = self._sighting
        if seen is None or seen.found != found or now - seen.last_at > _FORGET_AFTER:
            seen = self._sighting = _Sighting(found, now, now)
        seen.last_at = now
        if now - seen.first_at < (_CONFIRM_SOME_AFTER if attempts.silent_count else _CONFIRM_AFTER):
            return None
        address = escaped(f"{host}:{port}")
        # The ids themselves are kept as they are: the client may adopt the one that was found.
        return ClusterChangedError(
            f"{address} leads to cluster {escaped(found)!r}, and no broker of cluster"
            f" {escaped(expected)!r} responds,"
            " with which this client works; correct bootstrap_servers or what they resolve to, or,"
            " if the other cluster replaces this one, set on_cluster_change='adopt'",
            expected=expected,
            found=found,
            address=address,
        )


class Recovery:
    """Decides when one client bootstraps again and whether its cluster has changed, by the
    responses and failures of its brokers. Times are on the loop's clock."""

    def __init__(self, rebootstrap_trigger: float) -> None:
        """`rebootstrap_trigger`: seconds without a response of a known broker after which to
        bootstrap again."""
        self.change: ClusterChangedError | None = None
        """The error while a change of the cluster is confirmed; else None."""
        self._trigger = rebootstrap_trigger
        self._survey = Survey()
        self._failing_since: float | None = None
        """When a request to a known broker failed for the first time since one succeeded."""
        self._required_at = float("-inf")
        """When the client last obeyed a broker that required it to bootstrap again."""
        self._reported_at = float("-inf")

    def on_response(self) -> None:
        """Note that a broker of the cluster has responded."""
        self._failing_since = self.change = None
        self._survey.reset()

    def on_failure(self, now: float) -> None:
        """Note that a known broker has not responded."""
        if self._failing_since is None:
            self._failing_since = now

    def on_rebootstrap(self) -> None:
        """Note that the client bootstraps again."""
        self._failing_since = None

    def is_rebootstrap_due(self, now: float) -> bool:
        """Return whether no known broker has responded for so long that the bootstrap addresses are
        asked instead: with many brokers that do not respond, one round takes minutes."""
        return self._failing_since is not None and now - self._failing_since >= self._trigger

    def may_rebootstrap(self, now: float) -> bool:
        """Return whether to obey a broker that requires the client to bootstrap again, and note the
        time if so: the next requirement may be obeyed after `_REBOOTSTRAP_INTERVAL`."""
        if now < self._required_at + _REBOOTSTRAP_INTERVAL:
            return False
        self._required_at = now
        return True

    def survey(
        self, now: float, cluster_id: str | None, attempts: Attempts
    ) -> ClusterChangedError | None:
        """Note where the bootstrap addresses lead in this round, in which all were asked. Return
        the error if they lead to another cluster than `cluster_id`, as in an earlier round."""
        self.change = self._survey.on_round(now, cluster_id, attempts)
        return self.change

    def report(self, now: float, change: ClusterChangedError, troubles: Troubles) -> bool:
        """Report to `troubles` that the cluster has changed. Return whether to report it to the
        application, too: at most once in `_REPORT_INTERVAL`."""
        problem = Problem(
            subject="bootstrap_servers",
            cause=f"{change.address} leads to cluster {escaped(change.found)}, and no broker of"
            f" cluster {escaped(change.expected)} responds",
            advice="correct the addresses or what they resolve to, or, if the other cluster"
            " replaces this one, make a new client or set on_cluster_change='adopt'",
            is_foreign_cluster=True,
        )
        troubles.failed("cluster", now, problem, warn_after=0.0)
        is_due = now - self._reported_at >= _REPORT_INTERVAL
        if is_due:
            self._reported_at = now
        return is_due

"""Which cluster a client works with, and which cluster its bootstrap addresses lead to.

A response of another cluster is never used: its connection is closed. One broker's other id is that
broker's alone. Only if no known broker responds, and the bootstrap addresses lead to another
cluster, has the cluster changed. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup._values import define
from kafkagroup.errors import ClusterChangedError, ConnectionLostError, ErrorCode, escaped
from kafkagroup.transport.options import Address
from kafkagroup.wire.messages.metadata import MetadataResponse

__all__ = [
    "ClusterIdentity",
    "ForeignClusterError",
    "MisdirectedError",
    "RebootstrapRequiredError",
    "Survey",
    "require_cluster",
]

_REBOOTSTRAP_REQUIRED = int(ErrorCode.REBOOTSTRAP_REQUIRED)

_CONFIRM_AFTER = 1.0
"""Seconds. One round of responses is an opinion: a name may lead to another address for a moment.
A later round must say the same."""

_CONFIRM_SOME_AFTER = 10.0
"""The same in seconds, while some bootstrap addresses do not respond."""

_FORGET_AFTER = 30.0
"""Seconds after which a round is not confirmed by the next one."""


class MisdirectedError(ConnectionLostError):
    """The connection does not lead to a broker that this client should use, and is closed."""


class ForeignClusterError(MisdirectedError):
    """A broker of another cluster listens at this address."""

    def __init__(self, name: str, expected: str, found: str) -> None:
        super().__init__(
            f"{name}: belongs to cluster {escaped(found)!r}, and this client works with cluster"
            f" {escaped(expected)!r}: the connection is closed"
        )
        self.found = found
        """The other cluster's id."""


class RebootstrapRequiredError(MisdirectedError):
    """The broker requires this client to start again from its bootstrap addresses (KIP-1102)."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: the broker requires to bootstrap again (REBOOTSTRAP_REQUIRED)")


class ClusterIdentity:
    """The id of the cluster that a client works with: the first one that a response has."""

    def __init__(self, cluster_id: str | None = None) -> None:
        self.cluster_id = cluster_id
        """None before the first response, and with brokers that have no cluster id."""
        self.adoption_count = 0
        """How often another cluster was adopted. What was read before is of an earlier cluster."""

    def refusal(self, response: object, name: str) -> MisdirectedError | None:
        """Return why a response must not be used; None if it may. The first cluster id becomes the
        client's. `name`: the broker's address, for the error."""
        # Only Metadata and ApiVersions are known to have it, but in no response is it a result.
        if getattr(response, "error_code", 0) == _REBOOTSTRAP_REQUIRED:
            return RebootstrapRequiredError(name)
        if type(response) is not MetadataResponse or not (found := response.cluster_id):
            return None  # null is no identity
        if self.cluster_id is None:
            self.cluster_id = found
        if found != self.cluster_id:
            return ForeignClusterError(name, self.cluster_id, found)
        return None

    def adopt(self, cluster_id: str) -> None:
        """Work with another cluster from now on."""
        self.cluster_id = cluster_id
        self.adoption_count += 1


def require_cluster(expected: str | None, found: str | None, what: str) -> None:
    """Check that something that belongs to one cluster is used with it; null is no identity.

    `what`: what belongs to the cluster `expected`. Raises: ClusterChangedError.
    """
    if expected is not None and found is not None and expected != found:
        raise ClusterChangedError(
            f"{what} belong to cluster {escaped(expected)!r}, and this is cluster"
            f" {escaped(found)!r}: nothing was changed; use them with their own cluster",
            expected=expected,
            found=found,
        )


@define
class _Sighting:
    """Another cluster at the bootstrap addresses."""

    found: str
    first_at: float
    last_at: float


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
        foreign: Mapping[Address, str],
        silent_count: int,
    ) -> ClusterChangedError | None:
        """Return the error if the addresses lead to another cluster, also in an earlier round.

        `foreign`: the cluster ids of the bootstrap addresses that lead to other clusters;
        `silent_count`: how many addresses did not respond.
        """
        others = set(foreign.values()) - {expected}
        if expected is None or len(others) != 1:
            self._sighting = None  # none, or different ones: no cluster that could replace this one
            return None
        (host, port), found = min(foreign.items())
        seen = self._sighting
        if seen is None or seen.found != found or now - seen.last_at > _FORGET_AFTER:
            seen = self._sighting = _Sighting(found, now, now)
        seen.last_at = now
        if now - seen.first_at < (_CONFIRM_SOME_AFTER if silent_count else _CONFIRM_AFTER):
            return None
        address, expected, found = map(escaped, (f"{host}:{port}", expected, found))
        return ClusterChangedError(
            f"{address} leads to cluster {found!r}, and no broker of cluster {expected!r} responds,"
            " with which this client works; correct bootstrap_servers or what they resolve to, or,"
            " if the other cluster replaces this one, set on_cluster_change='adopt'",
            expected=expected,
            found=found,
            address=address,
        )

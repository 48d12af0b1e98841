"""Which cluster a client works with.

A response of another cluster is never used: its connection is closed. Only Metadata names the
cluster; a new connection holds all other responses back until it has received Metadata. One broker
of another cluster does not mean that the client's cluster has changed: `recovery` decides that. No
I/O.
"""

from __future__ import annotations

from kafkagroup._text import escaped
from kafkagroup.errors import ClusterChangedError, ConnectionLostError, ErrorCode
from kafkagroup.wire.messages.metadata import MetadataResponse

__all__ = [
    "ClusterIdentity",
    "ForeignClusterError",
    "MisdirectedError",
    "RebootstrapRequiredError",
    "require_cluster",
]

_REBOOTSTRAP_REQUIRED = int(ErrorCode.REBOOTSTRAP_REQUIRED)


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
        """How often another cluster was adopted. A caller compares it before and after a wait: if
        it has changed, what the caller read before is of the earlier cluster."""

    def refusal(self, response: object, name: str) -> MisdirectedError | None:
        """Return why a response must not be used; None if nothing in it forbids that. The first
        cluster id in a response becomes the client's. `name`: the broker's address, for the
        error."""
        # Checked in every response, although only Metadata and ApiVersions are known to have this
        # code: no response that has it contains a result.
        if getattr(response, "error_code", 0) == _REBOOTSTRAP_REQUIRED:
            return RebootstrapRequiredError(name)
        if type(response) is not MetadataResponse or not (found := response.cluster_id):
            return None  # brokers without a cluster id return null
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
    """Check that something that belongs to one cluster is used with it. A cluster id of None is
    unknown, and matches any other.

    `what`: what belongs to the cluster `expected`, in the plural. Raises: ClusterChangedError.
    """
    if expected is not None and found is not None and expected != found:
        raise ClusterChangedError(
            f"{what} belong to cluster {escaped(expected)!r}, and this is cluster"
            f" {escaped(found)!r}: nothing was changed; use them with their own cluster",
            expected=expected,
            found=found,
        )

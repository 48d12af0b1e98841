"""Ownership is one value: the assigned and the revoking partitions, and the expiry of the lease."""

from __future__ import annotations

import pytest
from attrs.exceptions import FrozenInstanceError

from kafkagroup.member.ownership import Ownership

OWNING = Ownership(is_assigned=True, acknowledged_at=10.0, lease_timeout=5.0)


def test_nothing_is_owned_at_the_start():
    assert Ownership().lease_expires_at == 0.0


def test_the_lease_runs_from_when_the_acknowledged_request_was_sent():
    joined = Ownership().acknowledge(10.0, 5.0)
    assert joined.lease_expires_at == 0.0  # nothing is assigned yet
    assert joined.assign() == OWNING
    assert OWNING.lease_expires_at == 15.0


def test_a_response_to_an_older_request_never_shortens_the_lease():
    assert OWNING.acknowledge(12.0, 5.0).lease_expires_at == 17.0
    assert OWNING.acknowledge(9.0, 5.0) == OWNING


def test_revoking_partitions_are_owned_until_they_are_released():
    revoking = OWNING.revoke()
    assert (revoking.is_revoking, revoking.lease_expires_at) == (True, 15.0)
    assert revoking.acknowledge(11.0, 5.0).lease_expires_at == 16.0
    assert revoking.keep() == OWNING
    released = revoking.release()
    assert (released.is_assigned, released.is_revoking, released.lease_expires_at) == (
        False,
        False,
        0.0,
    )


def test_ownership_is_replaced_and_never_modified():
    """The application reads it while the heartbeat thread runs."""
    with pytest.raises(FrozenInstanceError):
        OWNING.is_assigned = False

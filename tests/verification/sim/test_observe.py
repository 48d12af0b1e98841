"""The recorder takes a response for the member's only if a step used it."""

import pytest

from kafkagroup._values import evolve
from kafkagroup.errors import ErrorCode
from kafkagroup.member import classic
from kafkagroup.member.classic_state import Member, Phase
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import Coordinator, Replied
from kafkagroup.wire.messages.group import HeartbeatResponse
from verification.sim.observe import _is_used

CONFIG = MemberConfig(group_id="g", protocol_type="consumer", cooperative=True)
JOINING = Member(
    config=CONFIG,
    protocols=(("range", b""),),
    phase=Phase.JOINING,
    member_id="a",
    generation_id=1,
    coordinator=Coordinator(node_id=1, host="h", port=1),
    ownership=Ownership(is_assigned=True, lease_timeout=45.0),
    pending=2,
    heartbeat_in_flight=3,
    next_heartbeat_at=10.0,
    last_token=3,
)


def uses(member, token, code):
    response = HeartbeatResponse(error_code=code)
    event = Replied(now=1.0, jitter=0.5, token=token, message=response)
    return _is_used(member, event, classic.step(member, event)[0])


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS])
def test_a_heartbeat_response_counts_only_for_the_heartbeat_in_flight(code):
    assert uses(JOINING, 3, code)
    assert not uses(JOINING, 1, code)


def test_an_error_response_counts_if_the_step_reacts_to_it():
    """While a join is pending, its own response will report most errors."""
    assert uses(JOINING, 3, ErrorCode.UNKNOWN_MEMBER_ID)
    assert not uses(JOINING, 3, ErrorCode.NOT_COORDINATOR)
    stable = evolve(JOINING, phase=Phase.STABLE, pending=None, session_ends_at=9.0)
    assert uses(stable, 3, ErrorCode.NOT_COORDINATOR)
    assert not uses(stable, 1, ErrorCode.NOT_COORDINATOR)

"""What a comparison reports, and what it passes over."""

from verification.lockstep.compare import Difference, Names, compare

from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatResponse
from kafkagroup.wire.messages.group import JoinGroupResponse, JoinGroupResponseMember


def joined(*members, **changes):
    fields = {
        "error_code": 0,
        "protocol_name": "range",
        "leader": members[0],
        "member_id": members[0],
        "members": tuple(
            JoinGroupResponseMember(member_id=member, metadata=b"") for member in members
        ),
    }
    return JoinGroupResponse(**(fields | changes))


def differences(left, right, version=9):
    return compare(left, right, version, Names(), Names())


def test_a_different_field_is_reported_with_its_path():
    assert differences(joined("a", generation_id=1), joined("a", generation_id=2)) == [
        Difference("generation_id", 1, 2)
    ]
    member = JoinGroupResponseMember(member_id="a", metadata=b"x")
    assert differences(joined("a"), joined("a", members=(member,))) == [
        Difference("members[0].metadata", b"", b"x")
    ]


def test_a_missing_response_is_a_difference():
    (found,) = differences(joined("a"), None)
    assert found.path == ""
    assert found.right is None


def test_lists_of_different_lengths_differ_as_a_whole():
    (found,) = differences(joined("a", "b"), joined("a"))
    assert found.path == "members"


def test_member_ids_are_compared_by_their_first_appearance():
    assert differences(joined("a", "b"), joined("x", "y")) == []
    assert differences(joined("a", "b"), joined("x", "y", leader="y")) != []


def test_list_order_error_messages_and_throttle_times_are_not_compared():
    one, other = joined("a", "b"), joined("a", "b")
    swapped = joined("a", "b", members=other.members[::-1])
    names = Names()
    for member in ("a", "b"):
        names.of(member)
    assert compare(one, swapped, 9, names, names) == []
    fields = {"member_epoch": 0, "heartbeat_interval_ms": 0, "error_code": 16}
    assert (
        differences(
            ConsumerGroupHeartbeatResponse(throttle_time_ms=0, **fields),
            ConsumerGroupHeartbeatResponse(throttle_time_ms=9, error_message="no", **fields),
            version=1,
        )
        == []
    )


def test_fields_absent_from_the_version_are_not_compared():
    one, other = joined("a", skip_assignment=True), joined("a")
    assert differences(one, other, version=8) == []
    assert differences(one, other, version=9) == [Difference("skip_assignment", True, False)]

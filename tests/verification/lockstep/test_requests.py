"""Scripts reach every request's success, and the errors that matter."""

from collections import defaultdict

from verification.lockstep.embedded import EmbeddedCoordinator
from verification.lockstep.requests import make_script
from verification.lockstep.run import Side
from verification.lockstep.script import Ask

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import JoinGroupRequest

EXPECTED = {
    "ConsumerGroupDescribeRequest": {"NONE", "GROUP_ID_NOT_FOUND"},
    "ConsumerGroupHeartbeatRequest": {
        "NONE",
        "FENCED_INSTANCE_ID",
        "FENCED_MEMBER_EPOCH",
        "GROUP_ID_NOT_FOUND",
        "INVALID_REQUEST",
        "UNKNOWN_MEMBER_ID",
        "UNRELEASED_INSTANCE_ID",
        "UNSUPPORTED_ASSIGNOR",
        "INVALID_REGULAR_EXPRESSION",
    },
    "DeleteGroupsRequest": {"NONE", "GROUP_ID_NOT_FOUND", "NON_EMPTY_GROUP"},
    "DescribeGroupsRequest": {"NONE"},
    "HeartbeatRequest": {
        "NONE",
        "FENCED_INSTANCE_ID",
        "ILLEGAL_GENERATION",
        "INVALID_GROUP_ID",
        "REBALANCE_IN_PROGRESS",
        "UNKNOWN_MEMBER_ID",
    },
    "JoinGroupRequest": {
        "NONE",
        "FENCED_INSTANCE_ID",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_GROUP_ID",
        "INVALID_SESSION_TIMEOUT",
        "MEMBER_ID_REQUIRED",
        "UNKNOWN_MEMBER_ID",
    },
    "LeaveGroupRequest": {"NONE", "UNKNOWN_MEMBER_ID"},
    "ListGroupsRequest": {"NONE"},
    "OffsetCommitRequest": {
        "NONE",
        "FENCED_INSTANCE_ID",
        "ILLEGAL_GENERATION",
        "OFFSET_METADATA_TOO_LARGE",
        "REBALANCE_IN_PROGRESS",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
    },
    "OffsetDeleteRequest": {"NONE", "GROUP_ID_NOT_FOUND", "GROUP_SUBSCRIBED_TO_TOPIC"},
    "OffsetFetchRequest": {"NONE", "STALE_MEMBER_EPOCH", "UNKNOWN_TOPIC_ID"},
    "SyncGroupRequest": {
        "NONE",
        "FENCED_INSTANCE_ID",
        "ILLEGAL_GENERATION",
        "INCONSISTENT_GROUP_PROTOCOL",
        "REBALANCE_IN_PROGRESS",
        "UNKNOWN_MEMBER_ID",
    },
}


def error_codes(part):
    """Return every error code in a response."""
    if isinstance(part, tuple):
        return {code for item in part for code in error_codes(item)}
    fields = getattr(type(part), "__declared__", None)
    if fields is None:
        return set()
    values = {name: getattr(part, name) for name in fields.attributes}
    own = {values["error_code"]} if "error_code" in values else set()
    return own.union(*map(error_codes, values.values()))


def test_scripts_reach_successes_and_errors():
    coordinator = EmbeddedCoordinator()
    seen = defaultdict(set)
    for seed in range(500):
        script = make_script(seed)
        side = Side(coordinator, seed)
        for index, step in enumerate(script.steps):
            for ask, response in side.take(index, step).values():
                names = {ErrorCode(code).name for code in error_codes(response)}
                seen[type(ask.request).__name__] |= names
    missing = {api: names - seen[api] for api, names in EXPECTED.items() if names - seen[api]}
    assert missing == {}


def test_a_seed_always_gives_the_same_script():
    assert make_script(7) == make_script(7)
    assert make_script(7) != make_script(8)


def test_no_timeout_is_asked_for_that_one_side_could_not_follow():
    """Kafka retries a rebalance of static members without a timeout for ever at the same moment."""
    steps = (step for seed in range(2000) for step in make_script(seed).steps)
    asked = [step.request for step in steps if isinstance(step, Ask)]
    static = [r for r in asked if isinstance(r, JoinGroupRequest) and r.group_instance_id]
    assert min(request.rebalance_timeout_ms for request in static) > 0
    heartbeats = [r for r in asked if isinstance(r, ConsumerGroupHeartbeatRequest)]
    assert 0 not in {request.rebalance_timeout_ms for request in heartbeats}

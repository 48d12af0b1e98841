"""Requests converted to the formats of old brokers, and their responses converted back."""

from __future__ import annotations

from typing import Any

import pytest

from kafkagroup.errors import LocalProtocolError
from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkagroup.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kafkagroup.wire.schema import Request
from kafkagroup.wire.shapes import fold, unfold

FIND = FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))
LEAVE = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="m", reason="done"),))
FETCH = OffsetFetchRequest(
    groups=(
        OffsetFetchRequestGroup(
            group_id="g",
            topics=(
                OffsetFetchRequestTopics(name="t", partition_indexes=(0, 1)),
                OffsetFetchRequestTopics(name="u", partition_indexes=(2,)),
            ),
        ),
    ),
    require_stable=True,
)
OLD_TOPICS = (
    OffsetFetchRequestTopic(name="t", partition_indexes=(0, 1)),
    OffsetFetchRequestTopic(name="u", partition_indexes=(2,)),
)


def test_find_coordinator_before_v4_has_one_key() -> None:
    assert fold(FIND, 4) is FIND
    for version in range(4):
        assert fold(FIND, version) == FindCoordinatorRequest(key="g", key_type=0)


def test_a_find_coordinator_response_before_v4_has_one_coordinator() -> None:
    old = FindCoordinatorResponse(
        throttle_time_ms=5, error_code=15, error_message="no", node_id=1, host="h", port=9
    )
    new = FindCoordinatorResponse(
        throttle_time_ms=5,
        coordinators=(
            Coordinator(key="g", node_id=1, host="h", port=9, error_code=15, error_message="no"),
        ),
    )
    assert unfold(FIND, old, 3) == new
    assert unfold(FIND, new, 4) is new


def test_leave_group_before_v3_has_one_member() -> None:
    assert fold(LEAVE, 3) is LEAVE
    assert fold(LEAVE, 2) == LeaveGroupRequest(group_id="g", member_id="m")
    response = LeaveGroupResponse(error_code=25)
    assert unfold(LEAVE, response, 2) is response


def test_offset_fetch_before_v8_has_one_group() -> None:
    assert fold(FETCH, 8) is FETCH
    assert fold(FETCH, 7) == OffsetFetchRequest(
        group_id="g", topics=OLD_TOPICS, require_stable=True
    )
    # KIP-447: older brokers have nothing that is not stable.
    assert fold(FETCH, 6) == OffsetFetchRequest(group_id="g", topics=OLD_TOPICS)


def test_an_offset_fetch_of_all_topics_is_converted() -> None:
    everything = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),))
    assert fold(everything, 5) == OffsetFetchRequest(group_id="g", topics=None)


def test_an_offset_fetch_response_before_v8_has_one_group() -> None:
    old = OffsetFetchResponse(
        throttle_time_ms=5,
        error_code=16,
        topics=(
            OffsetFetchResponseTopic(
                name="t",
                partitions=(
                    OffsetFetchResponsePartition(
                        partition_index=1,
                        committed_offset=7,
                        committed_leader_epoch=3,
                        metadata="m",
                        error_code=29,
                    ),
                ),
            ),
        ),
    )
    new = OffsetFetchResponse(
        throttle_time_ms=5,
        groups=(
            OffsetFetchResponseGroup(
                group_id="g",
                error_code=16,
                topics=(
                    OffsetFetchResponseTopics(
                        name="t",
                        partitions=(
                            OffsetFetchResponsePartitions(
                                partition_index=1,
                                committed_offset=7,
                                committed_leader_epoch=3,
                                metadata="m",
                                error_code=29,
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )
    assert unfold(FETCH, old, 7) == new
    assert unfold(FETCH, new, 8) is new


@pytest.mark.parametrize("request_", [FIND, LEAVE, FETCH], ids=lambda r: type(r).__name__)
def test_every_version_can_be_sent(request_: Request[Any]) -> None:
    cls = type(request_)
    for version in cls.versions:
        if cls is OffsetFetchRequest and version >= 10:
            continue  # goes by topic id, which is not a matter of shape
        sent = encode(fold(request_, version), version)
        assert encode(decode(cls, version, sent), version) == sent


def test_other_messages_are_not_converted() -> None:
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    response = HeartbeatResponse(error_code=0)
    assert fold(heartbeat, 0) is heartbeat
    assert unfold(heartbeat, response, 0) is response


@pytest.mark.parametrize(
    ("asked", "version", "message"),
    [
        (
            FindCoordinatorRequest(coordinator_keys=("g", "h")),
            3,
            "FindCoordinatorRequest.coordinator_keys before version 4 takes one, not 2",
        ),
        (
            FindCoordinatorRequest(),
            3,
            "FindCoordinatorRequest.coordinator_keys before version 4 takes one, not 0",
        ),
        (
            LeaveGroupRequest(group_id="g", members=(MemberIdentity(),) * 2),
            2,
            "LeaveGroupRequest.members before version 3 takes one, not 2",
        ),
        (
            LeaveGroupRequest(group_id="g", members=(MemberIdentity(group_instance_id="i"),)),
            2,
            "LeaveGroupRequest before version 3 has no group_instance_id",
        ),
        (
            OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g"),) * 3),
            7,
            "OffsetFetchRequest.groups before version 8 takes one, not 3",
        ),
    ],
    ids=["two groups", "no group", "two members", "static member", "three groups"],
)
def test_fields_that_an_old_version_lacks_are_not_sent(
    asked: Request[Any], version: int, message: str
) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        fold(asked, version)
    assert str(caught.value) == message

"""Compares the cluster's clock with this machine's: the leader of the metadata log reports its time
with the state of its voters (KIP-836)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kafkagroup.admin.doctor.findings import Finding, not_checked, ok, warning
from kafkagroup.admin.doctor.requesting import request_from
from kafkagroup.errors import ErrorCode, KafkaGroupError, UnsupportedVersionError, error_name
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.wire.messages.quorum import DescribeQuorumRequest, PartitionData, TopicData
from kafkagroup.wire.messages.quorum_state import DescribeQuorumResponse

__all__ = ["examine_clock"]

_DESCRIBE_QUORUM = DescribeQuorumRequest(
    topics=(
        TopicData(topic_name="__cluster_metadata", partitions=(PartitionData(partition_index=0),)),
    )
)

_WARN_DIFFERENCE = 1.0
"""The difference, in seconds, from which to warn, in addition to the error of the measurement."""


async def examine_clock(servers: Sequence[Address], options: ClientOptions) -> list[Finding]:
    """Measure the difference of the clocks; the error is at most half of the round trip."""

    async def request(cluster: Cluster) -> tuple[float, float, DescribeQuorumResponse]:
        # Wall-clock time, as this is the clock to compare.
        sent_at = time.time()
        response = await cluster.request_any(_DESCRIBE_QUORUM)
        return sent_at, time.time(), response

    try:
        sent_at, received_at, response = await request_from(servers, options, request)
    except UnsupportedVersionError:
        return [_unknown("brokers report their time from Kafka 3.3 on, and only in KRaft mode")]
    except KafkaGroupError as error:
        return [_unknown(str(error))]
    time_or_code = _time_in(response)
    if isinstance(time_or_code, int):
        if time_or_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return [_unknown("it needs an ACL that allows DESCRIBE on the cluster")]
        return [_unknown(error_name(time_or_code))]
    ahead = time_or_code - (sent_at + received_at) / 2
    uncertainty = (received_at - sent_at) / 2
    relation = "ahead of" if ahead > 0 else "behind"
    text = f"the cluster's clock is {abs(ahead):.1f} s {relation} this machine's"
    if abs(ahead) > _WARN_DIFFERENCE + uncertainty:
        return [
            warning(
                "clock",
                "",
                text,
                "set both by NTP: else valid certificates and tokens may be refused, and lag in"
                " seconds and offsets by time are wrong by this difference",
            )
        ]
    # The difference is shown in tenths of a second, so the text cannot be more precise than 0.1 s.
    return [ok("clock", "", f"{text}, within {max(uncertainty, 0.1):.1f} s")]


def _time_in(response: DescribeQuorumResponse) -> float | int:
    """Return the cluster's time in seconds since 1970, a float; or, if the response has none, an
    error code, an int. The leader reports its present time as the one when it was last caught
    up."""
    if response.error_code:
        return response.error_code
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code:
                return partition.error_code
            for voter in partition.current_voters:
                if voter.replica_id == partition.leader_id and voter.last_caught_up_timestamp > 0:
                    return voter.last_caught_up_timestamp / 1000
    return int(ErrorCode.LEADER_NOT_AVAILABLE)


def _unknown(why: str) -> Finding:
    return not_checked("clock", "", why)

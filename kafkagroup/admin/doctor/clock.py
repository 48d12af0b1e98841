"""Compares the cluster's clock with this machine's: the leader of the metadata log reports its time
with the state of its voters (KIP-595)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kafkagroup.admin.doctor.findings import Finding, not_checked, ok, warning
from kafkagroup.admin.doctor.requesting import ask
from kafkagroup.errors import ErrorCode, KafkaGroupError, UnsupportedVersionError, error_name
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.wire.messages.quorum import DescribeQuorumRequest, PartitionData, TopicData
from kafkagroup.wire.messages.quorum_state import DescribeQuorumResponse

__all__ = ["examine_clock"]

_ASKED = DescribeQuorumRequest(
    topics=(
        TopicData(topic_name="__cluster_metadata", partitions=(PartitionData(partition_index=0),)),
    )
)

_MUCH = 1.0
"""The difference, in seconds, from which to warn, in addition to the error of the measurement."""


async def examine_clock(servers: Sequence[Address], options: ClientOptions) -> list[Finding]:
    """Measure the difference of the clocks, to within half the time until the response."""

    async def question(cluster: Cluster) -> tuple[float, float, DescribeQuorumResponse]:
        # Wall-clock time, as this is the clock to compare.
        asked = time.time()
        answer = await cluster.request_any(_ASKED)
        return asked, time.time(), answer

    try:
        asked, answered, answer = await ask(servers, options, question)
    except UnsupportedVersionError:
        return [_unknown("brokers tell it from Kafka 3.3 on, and without ZooKeeper")]
    except KafkaGroupError as error:
        return [_unknown(str(error))]
    theirs = _time_in(answer)
    if isinstance(theirs, int):
        if theirs == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return [_unknown("it takes the operation Describe on the cluster")]
        return [_unknown(error_name(theirs))]
    ahead = theirs - (asked + answered) / 2
    unsure = (answered - asked) / 2
    text = f"the cluster's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    if abs(ahead) > _MUCH + unsure:
        return [
            warning(
                "clock",
                "",
                text,
                "set both by NTP: certificates and tokens expire by them, and seconds of lag and"
                " offsets by time are wrong by so much",
            )
        ]
    return [ok("clock", "", f"{text}, within {max(unsure, 0.1):.1f} s")]


def _time_in(answer: DescribeQuorumResponse) -> float | int:
    """Return the cluster's time in seconds since 1970; an error code if the response has none."""
    if answer.error_code:
        return answer.error_code
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code:
                return partition.error_code
            for voter in partition.current_voters:
                if voter.replica_id == partition.leader_id and voter.last_caught_up_timestamp > 0:
                    return voter.last_caught_up_timestamp / 1000
    return int(ErrorCode.LEADER_NOT_AVAILABLE)


def _unknown(why: str) -> Finding:
    return not_checked("clock", "", why)

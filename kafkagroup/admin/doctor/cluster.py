"""Checks the cluster behind the bootstrap servers: advertised addresses and the offsets topic."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from kafkagroup._text import escaped
from kafkagroup.admin.doctor.addresses import examine_address, name_of
from kafkagroup.admin.doctor.findings import Finding, Status, failed, not_checked, ok, warning
from kafkagroup.admin.doctor.requesting import request_from
from kafkagroup.errors import ErrorCode, KafkaGroupError, error_name
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)

__all__ = ["examine_cluster", "examine_offsets_topic", "metadata_of"]

_OFFSETS_TOPIC = "__consumer_offsets"

_MAX_BROKERS = 200
"""The limit of brokers whose addresses are checked: a response may name a million."""

_MAX_CONCURRENT = 16
"""The limit of addresses that are checked at the same time, each with connections of its own."""


async def metadata_of(
    servers: Sequence[Address], options: ClientOptions, *topics: str
) -> MetadataResponse:
    """Request the metadata of the brokers and these topics; without `topics`, of the brokers alone.
    Raises: KafkaGroupError."""
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=topic) for topic in topics),
        allow_auto_topic_creation=False,
    )
    return await request_from(servers, options, lambda cluster: cluster.request_any(request))


async def examine_cluster(servers: Sequence[Address], options: ClientOptions) -> list[Finding]:
    """Check which brokers the cluster has, and whether this machine can use their addresses.

    `servers`: bootstrap servers that passed `examine_address`.
    """
    try:
        metadata = await metadata_of(servers, options)
    except KafkaGroupError as error:
        return [failed("cluster", "", error, "look into the brokers' logs")]
    if not metadata.brokers:
        advice = "wait until it has started, and look into its log"
        return [failed("cluster", "", "the broker's metadata lists no brokers", advice)]
    count = len(metadata.brokers)
    name = f"cluster {escaped(metadata.cluster_id)}" if metadata.cluster_id else "a cluster"
    summary = ok("cluster", "", f"{name} of {count} broker{'' if count == 1 else 's'}")
    checked = set(servers)
    brokers = sorted(metadata.brokers, key=lambda broker: broker.node_id)[:_MAX_BROKERS]
    found: dict[int, Finding] = {}
    limiter = anyio.CapacityLimiter(_MAX_CONCURRENT)

    async def check_advertised(broker: MetadataResponseBroker) -> None:
        async with limiter:
            found[broker.node_id] = await _check_advertised(broker, options)

    async with anyio.create_task_group() as tasks:
        for broker in brokers:
            if (broker.host, broker.port) in checked:
                subject = f"broker {broker.node_id}"
                text = f"{name_of((broker.host, broker.port))}, as checked above"
                found[broker.node_id] = ok("advertised address", subject, text)
            else:
                tasks.start_soon(check_advertised, broker)
    findings = [summary, *(found[broker.node_id] for broker in brokers)]
    if count > _MAX_BROKERS:
        more = count - _MAX_BROKERS
        text = f"{more} more broker{'' if more == 1 else 's'}"
        findings.append(not_checked("advertised address", "", text))
    return findings


async def _check_advertised(broker: MetadataResponseBroker, options: ClientOptions) -> Finding:
    """Check an advertised address. A common mistake is an address that only the broker's own host
    can use."""
    address = (broker.host, broker.port)
    subject, name = f"broker {broker.node_id}", name_of(address)
    findings = await examine_address(address, options)
    problems = [finding for finding in findings if finding.status is Status.FAILED]
    if not problems:
        return ok("advertised address", subject, f"{name} can be used from here")
    return failed(
        "advertised address",
        subject,
        f"it sends clients to {name}, where {problems[0].check} failed: {problems[0].text}",
        "set advertised.listeners of that broker to an address that clients can use, or make"
        f" it reachable from here: {problems[0].advice}",
    )


async def examine_offsets_topic(
    servers: Sequence[Address], options: ClientOptions
) -> list[Finding]:
    """Check the offsets topic, without which no group has a coordinator."""
    check, subject = "offsets topic", _OFFSETS_TOPIC
    try:
        metadata = await metadata_of(servers, options, _OFFSETS_TOPIC)
    except KafkaGroupError as error:
        return [failed(check, subject, error, "look into the brokers' logs")]
    topic = next((topic for topic in metadata.topics if topic.name == _OFFSETS_TOPIC), None)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
    if topic is None or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return [
            warning(
                check,
                subject,
                "does not exist yet",
                "nothing to do on a new cluster: the brokers create it for the first group. Else"
                " check offsets.topic.replication.factor, and how many brokers are up",
            )
        ]
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return [not_checked(check, subject, "this client may not see it; groups do not need that")]
    # With partitions, the code is that of one of them, such as LEADER_NOT_AVAILABLE.
    if code and not topic.partitions:
        return [failed(check, subject, error_name(code), "look into the brokers' logs")]
    leaderless = sum(partition.leader_id < 0 for partition in topic.partitions)
    if leaderless:
        return [
            failed(
                check,
                subject,
                f"{leaderless} of {len(topic.partitions)} partitions have no leader: their groups"
                " have no coordinator",
                "restart the brokers that have their replicas",
            )
        ]
    return [ok(check, subject, f"{len(topic.partitions)} partitions, all with a leader")]

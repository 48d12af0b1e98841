"""Finds what keeps a client from using its cluster, and what to do about it.

```python
async for finding in examine("kafka.example.org:9093", security=security, groups=["billing"]):
    print(finding)
```

The checks join no group and write nothing. On a cluster that has had no group yet, the look-up of a
coordinator makes the brokers create the offsets topic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from kafkagroup.admin.doctor import cluster
from kafkagroup.admin.doctor import groups as group_checks
from kafkagroup.admin.doctor import topics as topic_checks
from kafkagroup.admin.doctor.addresses import Address, examine_address
from kafkagroup.admin.doctor.clock import examine_clock
from kafkagroup.admin.doctor.findings import Finding, Status, not_checked, warning
from kafkagroup.errors import ConfigurationError
from kafkagroup.runtime.client import uncompiled
from kafkagroup.transport.options import ClientOptions, parse_servers
from kafkagroup.transport.security import Security

__all__ = ["Finding", "Status", "examine"]


async def examine(
    bootstrap_servers: str | Sequence[str] = "localhost:9092",
    *,
    security: Security | None = None,
    client_id: str = "kafkagroup",
    groups: Iterable[str] = (),
    topics: Iterable[str] = (),
    timeout: float = 10.0,
) -> AsyncIterator[Finding]:
    """Yield the findings for the installation, the bootstrap servers, the cluster behind them with
    its advertised addresses, clock and offsets topic, then groups and topics: those of one server,
    group or topic together, when its checks have ended.

    The checks of one of these stop at the first that fails; the next one is checked all the same.
    But if no bootstrap server can be used, the cluster, each group and each topic are reported as
    not checked.

    `timeout`: seconds for each connection and for each response. Raises: ConfigurationError.
    """
    if not 0 < timeout < 3600:
        raise ConfigurationError(f"timeout={timeout}; expected seconds, above 0 and below 3600")
    for name, given in (("groups", groups), ("topics", topics)):
        if isinstance(given, str):  # else its characters would be checked
            raise ConfigurationError(f"{name}={given!r}; expected several names, not one alone")
    options = ClientOptions(
        client_id=client_id, security=security, connect_timeout=timeout, request_timeout=timeout
    )
    addresses = dict.fromkeys(parse_servers(bootstrap_servers))
    # Without a C compiler the package is installed without its compiled modules.
    if not uncompiled.is_compiled():
        yield warning("installation", "", uncompiled.UNCOMPILED, uncompiled.advice())
    good: list[Address] = []
    for address in addresses:
        findings = await examine_address(address, options)
        for finding in findings:
            yield finding
        if all(finding.status is not Status.FAILED for finding in findings):
            good.append(address)
    wanted_groups, wanted_topics = list(dict.fromkeys(groups)), list(dict.fromkeys(topics))
    if not good:
        why = "no bootstrap server could be used"
        yield not_checked("cluster", "", why)
        for group in wanted_groups:
            yield not_checked("group", group, why)
        for topic in wanted_topics:
            yield not_checked("topic", topic, why)
        return
    for finding in await cluster.examine_cluster(good, options):
        yield finding
    for finding in await examine_clock(good, options):
        yield finding
    for finding in await cluster.examine_offsets_topic(good, options):
        yield finding
    for group in wanted_groups:
        for finding in await group_checks.examine_group(good, options, group):
            yield finding
    for topic in wanted_topics:
        for finding in await topic_checks.examine_topic(good, options, topic):
            yield finding

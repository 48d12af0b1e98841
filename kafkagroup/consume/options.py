"""The options of a consumer: their defaults, their checks, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from kafkagroup._values import frozen
from kafkagroup.assign import (
    Assignor,
    cooperative_sticky_assignor,
    protocol_name,
    range_assignor,
    roundrobin_assignor,
)
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "ConsumerOptions",
    "Deserializer",
    "GroupProtocol",
    "OffsetReset",
    "PartitionLoads",
    "check_kept_elsewhere",
]

DEFAULT_ASSIGNORS: tuple[Assignor, ...] = (
    range_assignor,
    cooperative_sticky_assignor,
    roundrobin_assignor,
)
"""One of these each other client offers by default: Java range and cooperative-sticky, librdkafka
range and roundrobin, aiokafka roundrobin. As range is among them, members rebalance eagerly."""

MOST = 2**31 - 1
"""What no option may exceed: it would not fit into the field of a request."""

_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}

Deserializer = Callable[[bytes], object]
"""Called with the bytes of a key or value that is not null; with `views`, a memoryview of them."""

Loads = Mapping[TopicPartition, float]
PartitionLoads = Callable[[], Loads | Awaitable[Loads]]
"""Called on the leader of the group at each assignment; what is missing counts as 1.0."""

OffsetReset: TypeAlias = 'Literal["earliest", "latest", "none"] | timedelta'
"""Where to start without a committed offset: the log's start, its end, nowhere (an error), or at
the first record that is younger than a duration."""


class GroupProtocol(Enum):
    """Who assigns partitions to members."""

    CLASSIC = "classic"
    """One of the members."""
    CONSUMER = "consumer"
    """The coordinator (KIP-848)."""
    AUTO = "auto"
    """The coordinator, where it can and the group lets it."""


@frozen(kw_only=True)
class ConsumerOptions:
    """Checked options; durations are seconds from here on."""

    group_id: str | None
    group_instance_id: str | None
    client_id: str
    group_protocol: GroupProtocol
    """Never `AUTO` where assignors of the client's are asked for: those are classic."""
    group_remote_assignor: str | None
    assignors: tuple[Assignor, ...]
    partition_loads: PartitionLoads | None
    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval: float
    offsets_commit_max_retries: int | None
    offsets_channel_backoff: float
    leave_group_on_close: bool | None
    """None: as members of their kind do, static ones not."""
    session_timeout: float
    heartbeat_interval: float
    rebalance_timeout: float
    rebalance_max_retries: int | None
    rebalance_backoff: float
    max_poll_interval: float
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    fetch_max_wait: float
    num_consumer_fetchers: int
    queued_max_records: int
    isolation_level: int
    """0 for read_uncommitted, 1 for read_committed, as on the wire."""
    check_crcs: bool
    max_batch_bytes: int
    max_frame_bytes: int
    client_rack: str | None
    metadata_max_age: float
    retry_backoff: float
    retry_backoff_max: float
    request_timeout: float
    close_timeout: float
    heartbeat_thread: bool
    """Whether the membership runs in a thread, to outlast an application that blocks its loop."""

    @classmethod
    def checked(
        cls,
        *,
        group_id: str | None,
        group_instance_id: str | None,
        client_id: str,
        group_protocol: str,
        group_remote_assignor: str | None,
        assignors: Sequence[Assignor] | None,
        partition_loads: PartitionLoads | None,
        auto_offset_reset: OffsetReset,
        enable_auto_commit: bool,
        auto_commit_interval_ms: int,
        offsets_commit_max_retries: int | None,
        offsets_channel_backoff_ms: int | None,
        leave_group_on_close: bool | None,
        session_timeout_ms: int | None,
        heartbeat_interval_ms: int | None,
        rebalance_timeout_ms: int | None,
        rebalance_max_retries: int | None,
        rebalance_backoff_ms: int | None,
        max_poll_interval_ms: int,
        fetch_min_bytes: int,
        fetch_max_bytes: int,
        max_partition_fetch_bytes: int,
        fetch_max_wait_ms: int,
        num_consumer_fetchers: int,
        queued_max_records: int | None,
        isolation_level: str,
        check_crcs: bool,
        max_batch_bytes: int,
        max_frame_bytes: int,
        client_rack: str | None,
        metadata_max_age_ms: int,
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
        request_timeout_ms: int,
        close_timeout: float,
        heartbeat_thread: bool,
    ) -> ConsumerOptions:
        """Options as users give them, in milliseconds. Raises: ConfigurationError."""
        session_timeout_ms = 45_000 if session_timeout_ms is None else session_timeout_ms
        heartbeat_interval_ms = 1_000 if heartbeat_interval_ms is None else heartbeat_interval_ms
        if rebalance_timeout_ms is None:
            rebalance_timeout_ms = max_poll_interval_ms
        if offsets_channel_backoff_ms is None:
            offsets_channel_backoff_ms = retry_backoff_ms
        if rebalance_backoff_ms is None:
            rebalance_backoff_ms = retry_backoff_ms
        queued_max_records = MOST if queued_max_records is None else queued_max_records
        if group_id is not None and not group_id:
            raise ConfigurationError("group_id is empty; give a name, or None for no group")
        if group_instance_id is not None and (not group_instance_id or group_id is None):
            raise ConfigurationError(
                f"group_instance_id={group_instance_id!r} needs a name, and a group_id beside it"
            )
        if auto_offset_reset not in ("earliest", "latest", "none") and not _is_duration(
            auto_offset_reset
        ):
            raise ConfigurationError(
                f"auto_offset_reset={auto_offset_reset!r}; expected 'earliest', 'latest', 'none'"
                " or a timedelta back from now"
            )
        if isolation_level not in _ISOLATION_LEVELS:
            raise ConfigurationError(
                f"isolation_level={isolation_level!r}; expected one of {list(_ISOLATION_LEVELS)}"
            )
        for name, value, least in (
            ("auto_commit_interval_ms", auto_commit_interval_ms, 1),
            ("offsets_commit_max_retries", offsets_commit_max_retries or 0, 0),
            ("session_timeout_ms", session_timeout_ms, 1),
            ("heartbeat_interval_ms", heartbeat_interval_ms, 1),
            ("max_poll_interval_ms", max_poll_interval_ms, 1),
            ("rebalance_timeout_ms", rebalance_timeout_ms, 1),
            ("rebalance_max_retries", rebalance_max_retries or 0, 0),
            ("fetch_min_bytes", fetch_min_bytes, 0),
            ("fetch_max_bytes", fetch_max_bytes, 1),
            ("max_partition_fetch_bytes", max_partition_fetch_bytes, 1),
            ("fetch_max_wait_ms", fetch_max_wait_ms, 0),
            ("num_consumer_fetchers", num_consumer_fetchers, 1),
            ("queued_max_records", queued_max_records, 1),
            ("max_batch_bytes", max_batch_bytes, 1),
            ("max_frame_bytes", max_frame_bytes, fetch_max_bytes),
            ("metadata_max_age_ms", metadata_max_age_ms, 1),
            ("retry_backoff_ms", retry_backoff_ms, 1),
            ("retry_backoff_max_ms", retry_backoff_max_ms, retry_backoff_ms),
            ("offsets_channel_backoff_ms", offsets_channel_backoff_ms, 1),
            ("rebalance_backoff_ms", rebalance_backoff_ms, 1),
            ("request_timeout_ms", request_timeout_ms, 1),
            ("close_timeout", close_timeout, 0),
        ):
            if not isinstance(value, int | float) or not least <= value <= MOST:
                raise ConfigurationError(f"{name}={value}; expected {least} to {MOST}")
        if heartbeat_interval_ms >= session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms={heartbeat_interval_ms} must be less than"
                f" session_timeout_ms={session_timeout_ms}; a third of it at most is wise"
            )
        protocol = _checked_protocol(group_protocol, group_remote_assignor, assignors)
        strategies = DEFAULT_ASSIGNORS if assignors is None else assignors
        names = [protocol_name(assignor) for assignor in strategies]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError(f"assignors are {names}; expected one or more, each once")
        return cls(
            group_id=group_id,
            group_instance_id=group_instance_id,
            client_id=client_id,
            group_protocol=protocol,
            group_remote_assignor=group_remote_assignor,
            assignors=tuple(strategies),
            partition_loads=partition_loads,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval=auto_commit_interval_ms / 1000,
            offsets_commit_max_retries=offsets_commit_max_retries,
            offsets_channel_backoff=offsets_channel_backoff_ms / 1000,
            leave_group_on_close=leave_group_on_close,
            session_timeout=session_timeout_ms / 1000,
            heartbeat_interval=heartbeat_interval_ms / 1000,
            rebalance_timeout=rebalance_timeout_ms / 1000,
            rebalance_max_retries=rebalance_max_retries,
            rebalance_backoff=rebalance_backoff_ms / 1000,
            max_poll_interval=max_poll_interval_ms / 1000,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            fetch_max_wait=fetch_max_wait_ms / 1000,
            num_consumer_fetchers=num_consumer_fetchers,
            queued_max_records=queued_max_records,
            isolation_level=_ISOLATION_LEVELS[isolation_level],
            check_crcs=check_crcs,
            max_batch_bytes=max_batch_bytes,
            max_frame_bytes=max_frame_bytes,
            client_rack=client_rack or None,
            metadata_max_age=metadata_max_age_ms / 1000,
            retry_backoff=retry_backoff_ms / 1000,
            retry_backoff_max=retry_backoff_max_ms / 1000,
            request_timeout=request_timeout_ms / 1000,
            close_timeout=close_timeout,
            heartbeat_thread=heartbeat_thread,
        )


def _checked_protocol(
    name: str, remote_assignor: str | None, assignors: Sequence[Assignor] | None
) -> GroupProtocol:
    names = [protocol.value for protocol in GroupProtocol]
    if name not in names:
        raise ConfigurationError(f"group_protocol={name!r}; expected one of {names}")
    protocol = GroupProtocol(name)
    if remote_assignor is not None and (protocol is GroupProtocol.CLASSIC or not remote_assignor):
        raise ConfigurationError(
            f"group_remote_assignor={remote_assignor!r} is an assignor of the coordinator's, such"
            " as 'uniform' or 'range', for group_protocol='consumer' or 'auto'"
        )
    if assignors is not None and protocol is GroupProtocol.CONSUMER:
        raise ConfigurationError(
            "assignors are the members' own, and with group_protocol='consumer' the coordinator"
            " assigns; see group_remote_assignor"
        )
    if assignors is not None and remote_assignor is not None:
        raise ConfigurationError("give assignors, or group_remote_assignor: one of them assigns")
    return protocol if assignors is None else GroupProtocol.CLASSIC


def _is_duration(value: object) -> bool:
    # Only here: importing it takes a fiftieth of all that a consumer imports, and most have none.
    from datetime import timedelta

    return isinstance(value, timedelta) and value >= timedelta(0)


def check_kept_elsewhere(options: ConsumerOptions) -> None:
    """For a group that Kafka does not keep: what only a coordinator can do is an error.

    Raises: ConfigurationError.
    """
    if options.group_id is None:
        raise ConfigurationError("membership= needs a group_id")
    if options.group_instance_id is not None:
        raise ConfigurationError("group_instance_id is for groups that Kafka keeps: no membership=")
    if options.group_protocol is not GroupProtocol.CLASSIC:
        raise ConfigurationError("group_protocol= is for groups that Kafka keeps: no membership=")
    if options.partition_loads is not None:
        raise ConfigurationError(
            "partition_loads is asked of the leader, and with membership= every member computes:"
            " members that know of other loads would never agree"
        )

"""The options of the clients as pages list them: by purpose, each with an anchor of its own."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature

from kafkagroup import Consumer, Producer
from kafkagroup._option_kinds import Option, declared
from kafkagroup.options import ConsumerOptions, ProducerOptions

__all__ = [
    "GROUPS",
    "options_of_a_consumer",
    "options_of_a_producer",
    "sentence",
    "type_and_default",
]

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Cluster": (
        "bootstrap_servers",
        "security",
        "client_id",
        "client_rack",
        "on_cluster_change",
        "metadata_max_age_ms",
        "metadata_recovery_rebootstrap_trigger_ms",
        "connections_max_idle_ms",
    ),
    "Topics and group": (
        "group_id",
        "pattern",
        "exclude_internal_topics",
        "group_protocol",
        "group_instance_id",
        "membership",
    ),
    "Where to start": ("auto_offset_reset", "auto_offset_reset_new_partitions"),
    "Records": (
        "key_deserializer",
        "value_deserializer",
        "on_deserialization_error",
        "views",
        "isolation_level",
        "check_crcs",
    ),
    "Commits": (
        "enable_auto_commit",
        "auto_commit_interval_ms",
        "committed_offsets_max_age_ms",
    ),
    "Assignment": (
        "assignors",
        "partition_loads",
        "group_remote_assignor",
        "on_partitions_assigned",
        "on_partitions_revoked",
        "on_partitions_lost",
    ),
    "Membership and rebalances": (
        "session_timeout_ms",
        "heartbeat_interval_ms",
        "heartbeat_thread",
        "max_poll_interval_ms",
        "rebalance_timeout_ms",
        "leave_group_on_close",
        "close_timeout",
    ),
    "Fetching and memory": (
        "fetch_min_bytes",
        "fetch_max_wait_ms",
        "fetch_max_bytes",
        "max_partition_fetch_bytes",
        "max_batch_bytes",
        "max_frame_bytes",
    ),
    "Requests and retries": ("request_timeout_ms", "retry_backoff_ms", "retry_backoff_max_ms"),
}
"""Purpose -> the options of a consumer for it, the most used first."""

_GROUPS_OF_A_PRODUCER: Mapping[str, tuple[str, ...]] = {
    "Cluster": (
        "bootstrap_servers",
        "security",
        "client_id",
        "on_cluster_change",
        "metadata_max_age_ms",
        "metadata_recovery_rebootstrap_trigger_ms",
        "connections_max_idle_ms",
    ),
    "Records": ("key_serializer", "value_serializer", "partitioner", "max_request_size"),
    "Delivery": ("delivery_timeout_ms", "enable_idempotence", "acks", "close_timeout"),
    "Transactions": ("transactional_id", "transaction_timeout_ms"),
    "Batches and memory": (
        "linger_ms",
        "batch_size",
        "compression_type",
        "compression_level",
        "buffer_memory",
    ),
    "Requests and retries": ("request_timeout_ms", "retry_backoff_ms", "retry_backoff_max_ms"),
}
"""As `GROUPS`, of a producer."""


def sentence(text: str) -> str:
    """Return the text of an option as a sentence."""
    return text[:1].upper() + text[1:] + "." * (not text.endswith("."))


def type_and_default(option: Option) -> str:
    """Return the type and the default of an option, as code."""
    return f"`{option.annotation}`, default `{option.default!r}`"


def options_of_a_consumer() -> str:
    """The options of a consumer: an index, then each with type, default and meaning."""
    return _options_of(Consumer, ConsumerOptions, GROUPS)


def options_of_a_producer() -> str:
    """As `options_of_a_consumer`, of a producer."""
    return _options_of(Producer, ProducerOptions, _GROUPS_OF_A_PRODUCER)


def _options_of(client: type, declaration: type, groups: Mapping[str, tuple[str, ...]]) -> str:
    options = declared(declaration)
    unlisted = signature(client).parameters.keys() & options.keys()
    lines = []
    for purpose, names in groups.items():
        links = ", ".join(f"[`{name}`](#{name})" for name in names)
        lines.append(f"- **[{purpose}](#{purpose.lower().replace(' ', '-')})**: {links}")
    lines.append("")
    for purpose, names in groups.items():
        lines += [f"## {purpose}", ""]
        for name in names:
            unlisted.remove(name)
            option = options[name]
            lines += [f"### `{name}`", "", type_and_default(option), "", sentence(option.text), ""]
    assert not unlisted, f"in no group: {sorted(unlisted)}"
    return "\n".join(lines)

"""The settings of the embedded brokers: a few of Kafka's options, with durations in seconds."""

from __future__ import annotations

from typing import Any

import attrs

from kafkagroup.errors import ConfigurationError

__all__ = ["BrokerSettings", "check_transaction_version"]


def check_transaction_version(version: int) -> None:
    """Raises: ConfigurationError unless it is a level of the feature `transaction.version`."""
    if version not in (0, 1, 2):
        raise ConfigurationError(f"transaction.version is 0, 1 or 2, not {version!r}")


def _is_transaction_version(_: object, __: Any, version: int) -> None:
    check_transaction_version(version)


@attrs.frozen
class BrokerSettings:
    """Options of every node of an `EmbeddedKafka`. Kafka's default is named where it differs."""

    auto_create_topics: bool = False
    """Whether a Metadata request for an unknown topic creates it. Kafka: True."""
    default_partitions: int = 1
    """Partition count of topics that are created without one."""
    internal_topics: bool = True
    """Whether `__consumer_offsets` and `__transaction_state` exist, once a client has looked for a
    coordinator. They are empty."""
    max_message_bytes: int = 1_048_588
    """The largest record batch, in bytes."""
    max_request_bytes: int = 104_857_600
    """The largest request, in bytes; a larger one closes the connection."""
    group_initial_rebalance_delay: float = 0.0
    """Seconds that the first rebalance of an empty group waits for members. Kafka: 3 s."""
    group_min_session_timeout: float = 6.0
    """The shortest session timeout that a member of a classic group may request."""
    group_max_session_timeout: float = 1800.0
    """The longest session timeout that such a member may request."""
    group_max_size: int = 2**31 - 1
    """The largest number of members in a group."""
    consumer_groups: bool = True
    """Whether KIP-848 consumer groups are supported. Brokers before Kafka 3.7 do not support them,
    and do not list their APIs."""
    group_consumer_session_timeout: float = 45.0
    """Session timeout of a consumer group's members (KIP-848)."""
    group_consumer_heartbeat_interval: float = 5.0
    """Heartbeat interval that the coordinator sends to a consumer group's members."""
    group_consumer_assignment_interval: float = 0.0
    """Minimum time between two assignments of a consumer group. Kafka: 1 s."""
    group_new_member_join_timeout: float = 300.0
    """The longest that the JoinGroup of a classic group's new member stays pending."""
    offset_metadata_max_bytes: int = 4096
    """The longest metadata of a committed offset; as in Kafka, characters are counted."""
    max_incremental_fetch_session_cache_slots: int = 1000
    """Fetch sessions per node; 0 disables them."""
    connections_max_reauth: float = 0.0
    """Lifetime of a SASL session, after which the client must re-authenticate; 0: unlimited."""
    transaction_version: int = attrs.field(default=2, validator=_is_transaction_version)
    """The finalized feature `transaction.version`: 0, 1, or 2, where an epoch ends with each
    transaction (KIP-890). See `EmbeddedKafka.set_transaction_version`."""
    transaction_max_timeout: float = 900.0
    """The largest transaction timeout that a producer may ask for."""
    transaction_marker_delay: float = 0.0
    """Seconds from the end of a transaction until its markers are written: until then the next
    transaction is refused with CONCURRENT_TRANSACTIONS. Kafka: some milliseconds."""
    transactional_id_expiration: float = 604_800.0
    """Seconds after which an unused transactional id is forgotten."""
    producer_id_expiration: float = 86_400.0
    """Seconds without records after which a partition forgets a producer."""
    any_first_sequence: bool = True
    """Whether a producer that a partition does not know may begin at any sequence number, as in
    brokers from 2.5 to 4.4 (KAFKA-15591). Otherwise it begins at 0."""
    scram_iterations: int = 4096
    """Iterations of SCRAM's password hash."""

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            _check_setting(field.name, getattr(self, field.name), type(field.default))


_EXPECTED: dict[type, str] = {
    bool: "True or False",
    int: "a whole number, at least 0",
    float: "a number of seconds, at least 0",
}


def _check_setting(name: str, value: Any, kind: type) -> None:
    """Raises: ConfigurationError for a value of another type than `kind`, or below 0."""
    is_number = isinstance(value, int | kind) and not isinstance(value, bool)
    is_valid = isinstance(value, bool) if kind is bool else is_number and value >= 0
    if not is_valid:
        raise ConfigurationError(f"{name}={value!r}; expected {_EXPECTED[kind]}")

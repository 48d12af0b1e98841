"""What can be set about the broker: names and defaults are Kafka's, durations in seconds."""

from __future__ import annotations

import attrs

__all__ = ["BrokerSettings"]


@attrs.frozen
class BrokerSettings:
    """Options of every node of an `EmbeddedKafka`."""

    auto_create_topics: bool = False
    """Whether asking for the metadata of an unknown topic creates it."""
    default_partitions: int = 1
    """Partitions of topics that are created without a count."""
    max_message_bytes: int = 1_048_588
    """Largest record batch."""
    max_request_bytes: int = 104_857_600
    """Largest request; a larger claim closes the connection."""
    group_initial_rebalance_delay: float = 0.0
    """How long the first rebalance of an empty group waits for more members. Kafka: 3 s."""
    group_min_session_timeout: float = 6.0
    group_max_session_timeout: float = 1800.0
    group_max_size: int = 2**31 - 1
    """Members of one group."""
    consumer_groups: bool = True
    """Whether there are groups of KIP-848. Brokers before Kafka 3.7 have none, and tell of no APIs
    for them."""
    group_consumer_session_timeout: float = 45.0
    """How long a member of a consumer group (KIP-848) may be silent."""
    group_consumer_heartbeat_interval: float = 5.0
    """What its members are told to wait between heartbeats."""
    group_consumer_assignment_interval: float = 0.0
    """How long a group waits from one assignment to the next. Kafka: 1 s."""
    group_new_member_join_timeout: float = 300.0
    """How long a JoinGroup of a new member stays parked."""
    offset_metadata_max_bytes: int = 4096
    max_incremental_fetch_session_cache_slots: int = 1000
    """Fetch sessions of one node; 0: there are none."""
    connections_max_reauth: float = 0.0
    """After how long a client that came by SASL has to authenticate again; 0: never."""
    scram_iterations: int = 4096
    """How often SCRAM hashes a password."""

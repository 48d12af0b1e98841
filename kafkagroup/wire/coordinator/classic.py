"""Classic groups: the members and their assignments in each generation.

The names and fields are those of Apache Kafka 4.3's schemas; a test compares them. The number of
each message is the record type. Timeouts are in milliseconds, timestamps in milliseconds since the
epoch.
"""

from kafkagroup.wire.schema import BYTES, INT32, INT64, STRING, array, field, message, struct


@message(2, "0")
class GroupMetadataKey:
    group: str = field(STRING)


@struct
class MemberMetadata:
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+", ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout: int = field(INT32, "1+", default=-1, ignorable=True)
    session_timeout: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


@message(2, "0-4", flexible="4+")
class GroupMetadataValue:
    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+")
    leader: str | None = field(STRING, nullable="0+")
    current_state_timestamp: int = field(INT64, "2+", default=-1, ignorable=True)
    members: tuple[MemberMetadata, ...] = field(array(MemberMetadata))

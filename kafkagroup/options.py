"""Every option of the clients, declared once: type, default, unit, range and text.

What is derived from a declaration: the checks and conversions, the table in the documentation, and
the options of the command line. The constructors of the clients have signatures of their own, for
type checkers and editors; a test holds names, types and defaults to the declarations here.

To add an option: declare it here, add it to the signature, and run `python docs/site/made.py`.

The fields are what the library works with: checked, and durations in seconds, whatever the unit in
the option's name. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

from kafkagroup._option_kinds import (
    MOST,
    Boolean,
    Choice,
    Function,
    Given,
    Kind,
    Milliseconds,
    Seconds,
    Text,
    Whole,
    checked_values,
    option,
)
from kafkagroup._values import REQUIRED, frozen
from kafkagroup.assign import (
    Assignor,
    cooperative_sticky_assignor,
    protocol_name,
    range_assignor,
    roundrobin_assignor,
)
from kafkagroup.errors import ConfigurationError, DeserializationError
from kafkagroup.types import Record, TopicPartition
from kafkagroup.wire.compression import Codec

if TYPE_CHECKING:
    import re
    from datetime import timedelta

    from kafkagroup.runtime.interfaces import AssignedCallback, Membership, PartitionsCallback
    from kafkagroup.transport.security import Security

__all__ = [
    "AdminOptions",
    "CommonOptions",
    "ConsumerOptions",
    "ConsumerProtocol",
    "DeserializationErrorPolicy",
    "Deserializer",
    "GroupMemberOptions",
    "OffsetReset",
    "PartitionLoads",
    "ProducerOptions",
]

DEFAULT_ASSIGNORS: tuple[Assignor, ...] = (
    range_assignor,
    cooperative_sticky_assignor,
    roundrobin_assignor,
)
"""Every other client offers one of these by default: Java range and cooperative-sticky, librdkafka
range and roundrobin, aiokafka roundrobin. As range is among them, members rebalance eagerly."""

T = TypeVar("T")

# Recursive, as mypy infers what a coroutine function returns from no other union; and it is true:
# an awaitable of an awaitable is awaited twice.
Converted: TypeAlias = "T | Awaitable[Converted[T]]"

Deserializer: TypeAlias = "Callable[[bytes], Converted[T]]"
"""Called with the bytes of a key or value that is not null; with `views`, a memoryview of them. A
plain function, or a coroutine function."""

Replacement: TypeAlias = Record[Any, Any] | None

DeserializationErrorPolicy: TypeAlias = (
    Literal["raise", "skip"]
    | Callable[[Record, DeserializationError], Replacement | Awaitable[Replacement]]
)
"""What becomes of a record whose deserializer fails. A function gets it as the broker sent it, and
the error. It returns the record to deliver instead, or None to skip it; what it raises, the
application gets. A plain function, or a coroutine function."""

Loads = Mapping[TopicPartition, float]
PartitionLoads = Callable[[], Loads | Awaitable[Loads]]
"""Called on the leader of the group at each assignment; what is missing counts as 1.0."""

OffsetReset: TypeAlias = 'Literal["earliest", "latest", "none"] | timedelta'
"""Where to start without a committed offset: the log's start, its end, nowhere (an error), or at
the first record that is younger than a duration."""


class ConsumerProtocol(Enum):
    """Who assigns partitions to the members of a consumer group."""

    CLASSIC = "classic"
    """One of the members."""
    CONSUMER = "consumer"
    """The coordinator (KIP-848)."""
    AUTO = "auto"
    """The coordinator, if it supports KIP-848 and the group can be upgraded."""


# ---------------------------------------------------------------- kinds that one option alone has


class _Servers(Kind):
    annotation = "str | Sequence[str]"
    text_type = str

    def expected(self, given: Given) -> str:
        return "'host:port,host:port' or a list of 'host:port'"

    def fits(self, value: Any) -> bool:
        if isinstance(value, str):
            return True
        return isinstance(value, Sequence) and all(isinstance(one, str) for one in value)


class _Pattern(Kind):
    annotation = "str | re.Pattern[str]"
    text_type = str

    def expected(self, given: Given) -> str:
        return "a regular expression"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) or hasattr(value, "fullmatch")


class _Reset(Kind):
    annotation = "OffsetReset"
    text_type = str

    def expected(self, given: Given) -> str:
        return "'earliest', 'latest', 'none' or a timedelta back from now"

    def fits(self, value: Any) -> bool:
        # A timedelta, without importing it: that takes a fiftieth of importing a consumer.
        return isinstance(value, str) or hasattr(value, "total_seconds")

    def allows(self, value: Any, given: Given) -> bool:
        if isinstance(value, str):
            return value in ("earliest", "latest", "none")
        return bool(value.total_seconds() >= 0)


class _Assignors(Kind):
    annotation = "Sequence[Assignor]"

    def expected(self, given: Given) -> str:
        return "a list of assignors"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str)

    def converted(self, value: Any) -> Any:
        return tuple(value)


class _Membership(Kind):
    annotation = "Membership"

    def expected(self, given: Given) -> str:
        return "a ZooKeeperMembership"

    def fits(self, value: Any) -> bool:
        return hasattr(value, "begin")


class _Security(Kind):
    """`ClientOptions` checks the value: importing TLS takes long, and most clients do without."""

    annotation = "Security"

    def fits(self, value: Any) -> bool:
        return True


class _ErrorPolicy(Kind):
    annotation = "DeserializationErrorPolicy"

    def expected(self, given: Given) -> str:
        return "'raise', 'skip' or a function"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) or callable(value)

    def allows(self, value: Any, given: Given) -> bool:
        return value in ("raise", "skip") or callable(value)


class _Codec(Kind):
    annotation = "Codec"

    def expected(self, given: Given) -> str:
        return "a Codec, such as Codec.ZSTD"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Codec)


# ---------------------------------------------------------------- the options


@frozen(kw_only=True)
class CommonOptions:
    """What every client takes."""

    bootstrap_servers: str | Sequence[str] = option(
        _Servers(),
        "localhost:9092",
        "`host:port`, comma-separated or a sequence; where to ask for the brokers of the cluster",
    )
    client_id: str = option(Text(), "kafkagroup", "shown in the brokers' logs and quotas")
    security: Security | None = option(
        _Security(),
        None,
        "a `Security`: TLS, SASL or both ([below](#security)); `None` is plain TCP",
    )
    request_timeout: float = option(Milliseconds(1), 30_000, "how long an answer may take")
    retry_backoff: float = option(
        Milliseconds(1), 100, "pause before the first retry; it doubles, with jitter"
    )
    retry_backoff_max: float = option(
        Milliseconds("retry_backoff_ms"), 1_000, "upper limit of that pause"
    )
    close_timeout: float = option(
        Seconds(0),
        10.0,
        "seconds that closing may take, the record in flight, commit and leave included",
    )

    @classmethod
    def checked(cls, given: Given) -> Self:
        """The options that users gave, by the names and in the units of the signature. Other names
        are passed over. Raises: ConfigurationError."""
        return cls(**checked_values(cls, given))


@frozen(kw_only=True)
class _MembershipOptions(CommonOptions):
    """What every member of a group takes."""

    group_instance_id: str | None = option(
        Text(),
        None,
        "static membership: a name of this member that outlives the process, so that a restart"
        " within the session timeout moves nothing",
    )
    session_timeout: float = option(
        Milliseconds(1),
        45_000,
        "how long the coordinator waits for a heartbeat before it removes the member",
    )
    heartbeat_interval: float = option(
        Milliseconds(1), 1_000, "time between two heartbeats; less than the session timeout"
    )
    heartbeat_thread: bool = option(
        Boolean(),
        False,
        "run the membership in a thread with an event loop of its own, so that heartbeats go on"
        " while the application blocks its loop; records, commits and callbacks stay where they"
        " are. Code that holds the interpreter's lock stops the thread too; a token callback of"
        " `security` is called in both",
    )
    membership: Membership | None = option(
        _Membership(),
        None,
        "who keeps the group, if not Kafka: a `ZooKeeperMembership`"
        " ([docs/zookeeper.md](docs/zookeeper.md))",
    )
    rebalance_timeout: float = option(
        Milliseconds(1),
        300_000,
        "how long members may take to finish their work and rejoin in a rebalance",
    )
    rebalance_max_retries: int | None = option(
        Whole(0),
        None,
        "how often in a row joining may fail and be tried again, before the client fails with"
        " `JoinFailedError`; `None`: without limit",
    )
    leave_group_on_close: bool | None = option(
        Boolean(),
        None,
        "tell the group at the close, so that it need not wait for the session to time out;"
        " `None`: static members keep their place, the others leave. `True` removes a static"
        " member, too (KIP-1092)",
    )

    def _check_heartbeats(self) -> None:
        if self.heartbeat_interval >= self.session_timeout:
            raise ConfigurationError(
                f"heartbeat_interval_ms={self.heartbeat_interval * 1000:.0f} must be less than"
                f" session_timeout_ms={self.session_timeout * 1000:.0f}; a third of it at most is"
                " wise"
            )


@frozen(kw_only=True)
class GroupMemberOptions(_MembershipOptions):
    """The options of a `GroupMember`."""

    group_id: str = option(Text(), REQUIRED, "the group")

    def __attrs_post_init__(self) -> None:
        if not self.group_id:
            raise ConfigurationError("group_id is empty")
        self._check_heartbeats()
        if self.membership is not None and self.group_instance_id is not None:
            raise ConfigurationError(
                "group_instance_id is for groups that Kafka keeps: no membership="
            )


@frozen(kw_only=True)
class ConsumerOptions(_MembershipOptions):
    """The options of a `Consumer`."""

    group_id: str | None = option(
        Text(),
        None,
        "the group; without one, all partitions of the topics are consumed and nothing is"
        " committed",
    )
    pattern: str | re.Pattern[str] | None = option(
        _Pattern(),
        None,
        "instead of topics: a regular expression that whole topic names must match; new topics are"
        " found when metadata is refreshed",
    )
    exclude_internal_topics: bool = option(
        Boolean(), True, "whether a pattern passes over internal topics"
    )
    assignors: tuple[Assignor, ...] = option(
        _Assignors(),
        None,
        "strategies this member offers, from `kafkagroup.assign`; `None`: range,"
        " cooperative-sticky, round-robin, so that every common client shares one",
    )
    partition_loads: PartitionLoads | None = option(
        Function("PartitionLoads"),
        None,
        "for `weighted_sticky`: a function, or coroutine function, that the leader asks for"
        " partition -> load; `LoadsFile` is one",
    )
    group_protocol: ConsumerProtocol = option(
        Choice({protocol.value: protocol for protocol in ConsumerProtocol}),
        "classic",
        'who assigns: `"classic"`, one of the members; `"consumer"`, the coordinator (KIP-848;'
        ' brokers 4.0 and later); `"auto"`, the coordinator where it can and the group lets it, a'
        ' member otherwise or where `assignors` are given. With `"consumer"` a `pattern` is matched'
        " by the broker (RE2J), which looks for new topics at most every 10 s",
    )
    group_remote_assignor: str | None = option(
        Text(),
        None,
        "with `\"consumer\"` and `\"auto\"`: the coordinator's strategy, `'uniform'` or `'range'`;"
        " `None`: the broker's default",
    )
    auto_offset_reset: OffsetReset = option(
        _Reset(),
        "earliest",
        'where to start without a committed offset: `"earliest"`, `"latest"`, `"none"` (an error),'
        " or a `timedelta` back from now",
    )
    enable_auto_commit: bool = option(
        Boolean(), True, "commit what is processed without being asked"
    )
    auto_commit_interval: float = option(Milliseconds(1), 5_000, "time between these commits")
    offsets_commit_max_retries: int | None = option(
        Whole(0),
        None,
        "how often a commit that failed in passing is tried again; `None`: as long as"
        " `request_timeout_ms` leaves time",
    )
    offsets_channel_backoff: float = option(
        Milliseconds(1),
        None,
        "pause before the first retry of a commit, or of reading committed offsets; `None`:"
        " `retry_backoff_ms`",
        otherwise="retry_backoff_ms",
    )
    session_timeout: float = option(
        Milliseconds(1),
        None,
        "how long the coordinator waits for a heartbeat before it removes the member; `None`:"
        " 45,000",
        otherwise=45_000,
    )
    heartbeat_interval: float = option(
        Milliseconds(1),
        None,
        "time between two heartbeats; less than the session timeout; `None`: 1,000",
        otherwise=1_000,
    )
    max_poll_interval: float = option(
        Milliseconds(1),
        300_000,
        "how long the application may stay away while it owns partitions; then the member leaves,"
        " and rejoins at the next call",
    )
    rebalance_timeout: float = option(
        Milliseconds(1),
        None,
        "how long members may take to finish their work and rejoin in a rebalance; `None`:"
        " `max_poll_interval_ms`",
        otherwise="max_poll_interval_ms",
    )
    rebalance_backoff: float = option(
        Milliseconds(1),
        None,
        "pause before the first of these retries; `None`: `retry_backoff_ms`",
        otherwise="retry_backoff_ms",
    )
    fetch_min_bytes: int = option(
        Whole(0),
        1,
        "a broker waits for this much, at most `fetch_max_wait_ms`. If it is more than one byte, a"
        " seek, a resume or a new partition waits so too, unless another request waits at the"
        " broker already: then it gets at once what there is",
    )
    fetch_max_bytes: int = option(Whole(1), 52_428_800, "limit of one answer")
    max_partition_fetch_bytes: int = option(
        Whole(1), 1_048_576, "limit of one partition in an answer"
    )
    fetch_max_wait: float = option(
        Milliseconds(0),
        500,
        "how long a broker may wait for `fetch_min_bytes`; if that is one byte, and this 500 or"
        " more: longer and longer while nothing comes, up to 5,000. A seek, a resume or a new"
        " partition does not wait until a request that waits is answered",
    )
    num_consumer_fetchers: int = option(
        Whole(1),
        1,
        "connections to each broker that fetch; the partitions are spread over them. One more is"
        " opened when a seek, a resume or a new partition needs it, and closed after a minute"
        " without use",
    )
    queued_max_records: int = option(
        Whole(1),
        None,
        "fetch nothing for a partition with this many records waiting; `None`: bytes alone count",
        otherwise=MOST,
    )
    isolation_level: int = option(
        Choice({"read_uncommitted": 0, "read_committed": 1}),
        "read_uncommitted",
        '`"read_committed"`: only records outside transactions or of committed ones',
    )
    """0 or 1, as on the wire."""
    check_crcs: bool = option(
        Boolean(), True, "check each batch's CRC-32C before any of its records is handed out"
    )
    max_batch_bytes: int = option(
        Whole(1), 134_217_728, "limit of one batch, decompressed; a larger one is an error"
    )
    max_frame_bytes: int = option(
        Whole("fetch_max_bytes"),
        104_857_600,
        "limit of one answer of a broker; a larger one ends the connection",
    )
    client_rack: str | None = option(
        Text(),
        None,
        "where this client is: brokers may name a replica nearby to fetch from (KIP-392)",
    )
    metadata_max_age: float = option(Milliseconds(1), 300_000, "how old metadata may get")
    on_partitions_assigned: AssignedCallback | None = option(
        Function("AssignedCallback"),
        None,
        "called with the partitions, sorted; a function or a coroutine function. It may answer with"
        " a mapping of partitions to offsets: there they start",
    )
    on_partitions_revoked: PartitionsCallback | None = option(
        Function("PartitionsCallback"),
        None,
        "called before they are revoked, after the commit",
    )
    on_partitions_lost: PartitionsCallback | None = option(
        Function("PartitionsCallback"),
        None,
        "called when they are lost already, so that nothing can be committed",
    )
    views: bool = option(
        Boolean(),
        False,
        "keys and values are read-only memoryviews of the batch that came, not bytes: nothing is"
        " copied, which pays from some KB a value on; a record then keeps its whole batch in"
        " memory, and is neither hashed nor pickled",
    )
    key_deserializer: Deserializer[Any] | None = option(
        Function("Deserializer[K_co]"),
        None,
        "a function, or coroutine function, that is called with the bytes of each key that is not"
        " null; with `views`, a memoryview",
    )
    value_deserializer: Deserializer[Any] | None = option(
        Function("Deserializer[V_co]"),
        None,
        "a function, or coroutine function, that is called with the bytes of each value that is not"
        " null; with `views`, a memoryview",
    )
    on_deserialization_error: DeserializationErrorPolicy = option(
        _ErrorPolicy(),
        "raise",
        'what becomes of a record whose deserializer fails: `"raise"`, at each call until the'
        ' application seeks past it; `"skip"`, with a warning, counted in `metrics()`; or a'
        " function, or coroutine function, that is called with the record and the error, and"
        " returns the record to deliver instead, or `None` to skip it",
    )

    @classmethod
    def checked(cls, given: Given) -> Self:
        values = checked_values(cls, given)
        assignors = values["assignors"]
        _check_assigning(values["group_protocol"], values["group_remote_assignor"], assignors)
        if assignors is None:
            values["assignors"] = DEFAULT_ASSIGNORS
        else:
            # With "auto", too: a coordinator runs no assignor of its members.
            values["group_protocol"] = ConsumerProtocol.CLASSIC
        return cls(**values)

    def __attrs_post_init__(self) -> None:
        if self.group_id is not None and not self.group_id:
            raise ConfigurationError("group_id is empty; give a name, or None for no group")
        instance = self.group_instance_id
        if instance is not None and (not instance or self.group_id is None):
            raise ConfigurationError(
                f"group_instance_id={instance!r} needs a name, and a group_id beside it"
            )
        self._check_heartbeats()
        if self.membership is not None:
            self._check_membership()

    def _check_membership(self) -> None:
        """Where Kafka does not keep the group, what only its coordinator can do is an error."""
        if self.group_id is None:
            raise ConfigurationError("membership= needs a group_id")
        if self.group_instance_id is not None:
            raise ConfigurationError(
                "group_instance_id is for groups that Kafka keeps: no membership="
            )
        if self.group_protocol is not ConsumerProtocol.CLASSIC:
            raise ConfigurationError(
                "group_protocol= is for groups that Kafka keeps: no membership="
            )
        if self.partition_loads is not None:
            raise ConfigurationError(
                "partition_loads is asked of the leader, and with membership= every member"
                " computes: members that know of other loads would never agree"
            )


def _check_assigning(
    protocol: ConsumerProtocol, remote: str | None, assignors: Sequence[Assignor] | None
) -> None:
    """Raises: ConfigurationError where it is not clear who assigns, or how."""
    if remote is not None and (protocol is ConsumerProtocol.CLASSIC or not remote):
        raise ConfigurationError(
            f"group_remote_assignor={remote!r} is an assignor of the coordinator's, such as"
            " 'uniform' or 'range', for group_protocol='consumer' or 'auto'"
        )
    if assignors is None:
        return
    if protocol is ConsumerProtocol.CONSUMER:
        raise ConfigurationError(
            "assignors are the members' own, and with group_protocol='consumer' the coordinator"
            " assigns; see group_remote_assignor"
        )
    if remote is not None:
        raise ConfigurationError("give assignors, or group_remote_assignor: one of them assigns")
    names = [protocol_name(assignor) for assignor in assignors]
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"assignors are {names}; expected one or more, each once")


@frozen(kw_only=True)
class AdminOptions(CommonOptions):
    """The options of an `Admin`."""

    default_api_timeout: float = option(
        Milliseconds(1), 60_000, "how long a call may take with all its retries"
    )


@frozen(kw_only=True)
class ProducerOptions(CommonOptions):
    """The options of a `Producer`."""

    compression: Codec = option(_Codec(), Codec.NONE, "how batches are compressed")
    delivery_timeout: float = option(
        Milliseconds(1), 120_000, "how long writing a batch may take with all its retries"
    )

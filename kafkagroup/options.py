"""Every option of the clients, declared once: type, default, unit, range and text.

The checks, the conversions, the signatures and docstrings of the clients, the list in the
documentation and the options of the command line are derived from these declarations.

To add an option: declare it here, and run `python docs/site/made.py`. It writes the signatures, the
docstrings and the list. A client's `_set_up` gets the checked options. The declaration of a number
begins with the least value, or the name of the option that is the least value; then the default.
Only `kafkagroup.compat` sets options with `is_private`.

The fields hold checked values, with durations in seconds even if the option's name ends in `_ms`.
Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from kafkagroup._option_kinds import (
    MAX_INT32,
    Given,
    boolean,
    checked_values,
    choice,
    function,
    integer,
    milliseconds,
    option,
    plain_function,
    seconds,
    string,
)
from kafkagroup._values import REQUIRED, frozen
from kafkagroup.assign import (
    Assignor,
    cooperative_sticky_assignor,
    protocol_name,
    range_assignor,
    roundrobin_assignor,
)
from kafkagroup.callbacks import (
    AssignedCallback,
    DeserializationErrorPolicy,
    Deserializer,
    Partitioner,
    PartitionLoads,
    PartitionsCallback,
    Serializer,
)
from kafkagroup.errors import ConfigurationError
from kafkagroup.wire.compression import LEVELS, Codec

if TYPE_CHECKING:
    import re
    from datetime import timedelta


__all__ = [
    "AdminOptions",
    "CommonOptions",
    "ConsumerOptions",
    "ConsumerProtocol",
    "GroupMemberOptions",
    "OffsetReset",
    "ProducerOptions",
]

MIN_LIKELY_SESSION_MS = 1_000
"""A shorter session timeout was probably given in seconds: no broker allows it by default."""

_MIN_LIKELY_REQUEST_TIMEOUT = 0.1
"""In seconds. A shorter `request_timeout_ms` was probably given in seconds: a login alone may take
as long."""

_MAX_LIKELY_CLOSE_TIMEOUT = 3_600.0
"""In seconds. A longer `close_timeout` was probably given in milliseconds."""

_DEFAULT_ASSIGNORS: tuple[Assignor, ...] = (
    range_assignor,
    cooperative_sticky_assignor,
    roundrobin_assignor,
)
"""Each common client supports one of these by default: Java range and cooperative-sticky,
librdkafka range and roundrobin, aiokafka roundrobin. Because range is eager, the rebalance protocol
is eager."""

OffsetReset: TypeAlias = 'Literal["earliest", "latest", "none"] | timedelta'
"""Where to start without a committed offset: at the log's start, at its end, not at all (an error),
or at the first record younger than a duration."""


class ConsumerProtocol(Enum):
    """The group protocol of a consumer (Kafka's `group.protocol`): who assigns the partitions."""

    CLASSIC = "classic"
    """The leader, one of the members, assigns the partitions."""
    CONSUMER = "consumer"
    """The coordinator assigns the partitions (KIP-848)."""
    AUTO = "auto"
    """CONSUMER if the coordinator supports it and can upgrade the group, else CLASSIC."""


def _is_valid_reset(value: Any) -> bool:
    """Return whether a text or `timedelta` is a reset policy."""
    if isinstance(value, str):
        return value in ("earliest", "latest", "none")
    return bool(value.total_seconds() >= 0)


# ---------------------------------------------------------------- the options


@frozen(kw_only=True)
class CommonOptions:
    """The options of every client."""

    bootstrap_servers: str | Sequence[str] = option(
        "str | Sequence[str]",
        "localhost:9092",
        "`host:port`, comma-separated or a sequence: the addresses of some brokers, through which"
        " the client finds the others",
        text_type=str,
        # `parse_servers` checks the items.
        has_type=lambda value: isinstance(value, Sequence) and not isinstance(value, bytes),
        expected="'host:port,host:port' or a list of 'host:port'",
    )
    client_id: str = string("kafkagroup", "the client's name in the brokers' logs and quotas")
    # `Any`: the type is of `transport`, which this module must not import.
    security: Any = option(
        "Security",
        None,
        "a `Security`: TLS, SASL or both ([security](security.md)); `None` is plain TCP",
        # `ClientOptions` checks it: importing TLS is slow, and most clients do not need it.
        has_type=lambda value: True,
    )
    request_timeout: float = milliseconds(1, 30_000, "how long a response may take")
    retry_backoff: float = milliseconds(
        1, 100, "backoff before the first retry; it doubles, with jitter"
    )
    retry_backoff_max: float = milliseconds(
        "retry_backoff_ms", 1_000, "upper limit of that backoff, before its jitter of a fifth"
    )
    metadata_recovery_rebootstrap_trigger: float = milliseconds(
        0,
        300_000,
        "how long all known brokers may fail before the client forgets their addresses and asks"
        " only the bootstrap addresses, whose names it resolves again (KIP-1102). It also asks"
        " those whenever no known broker responds",
    )
    connections_max_idle: float = milliseconds(
        1,
        540_000,
        "close a connection after this time without a request, before a load balancer or firewall"
        " forgets it; the next request opens another one",
    )
    close_timeout: float = seconds(
        0,
        10.0,
        "seconds that closing may take, with all that it waits for",
    )

    @classmethod
    def checked(cls, given: Given) -> Self:
        """Return the checked options. `given` has the names and units of the signature; other names
        are ignored. Raises: ConfigurationError."""
        return cls(**checked_values(cls, given))

    def __attrs_post_init__(self) -> None:
        self._check_units()

    def _check_units(self) -> None:
        """Raise ConfigurationError for a duration that was probably given in another unit."""
        if self.request_timeout < _MIN_LIKELY_REQUEST_TIMEOUT:
            ms = self.request_timeout * 1000
            raise ConfigurationError(
                f"request_timeout_ms={ms:g}: the option is in milliseconds;"
                f" did you mean {ms * 1000:g}?"
            )
        if self.close_timeout > _MAX_LIKELY_CLOSE_TIMEOUT:
            raise ConfigurationError(
                f"close_timeout={self.close_timeout:.10g}: the option is in seconds;"
                f" did you mean {self.close_timeout / 1000:.10g}?"
            )


def _on_cluster_change(raising: str, forgetting: str) -> Any:
    """Declare the option of the clients that can continue with another cluster. `raising`,
    `forgetting`: what the client does with "raise", and with "adopt" besides forgetting."""
    return choice(
        {"raise": "raise", "adopt": "adopt"},
        "raise",
        "what to do when no broker of the client's cluster responds and the bootstrap addresses"
        f' lead to another cluster: `"raise"`: {raising}, until the cluster'
        ' responds again; or, for a failover behind one name, `"adopt"` the other cluster'
        f" and forget what was known of the earlier one: {forgetting}"
        " ([another cluster](operating.md#another-cluster-at-the-same-address))",
    )


@frozen(kw_only=True)
class _MembershipOptions(CommonOptions):
    """The options of every member of a group."""

    group_instance_id: str | None = string(
        None,
        "static membership: a name that this member keeps across restarts, so that a restart within"
        " the session timeout causes no rebalance",
    )
    session_timeout: float = milliseconds(
        1,
        45_000,
        "how long the coordinator waits for a heartbeat before it removes the member",
    )
    heartbeat_interval: float = milliseconds(
        1, 1_000, "time between two heartbeats; less than the session timeout"
    )
    heartbeat_thread: bool = boolean(
        False,
        "run the membership in a thread with its own event loop, so that heartbeats continue while"
        " the application blocks its loop; records, commits and callbacks stay in the application's"
        " loop. Code that holds the interpreter lock stops the thread too; a token callback of"
        " `security` is called in both threads",
    )
    # `Any`: the type is of `runtime`, which this module must not import.
    membership: Any = option(
        "MemberFactory",
        None,
        "the group coordination, if not Kafka's: a `ZooKeeperMembership`"
        " ([ZooKeeper](zookeeper.md))",
        has_type=lambda value: hasattr(value, "create_member"),
        expected="a ZooKeeperMembership",
    )
    on_cluster_change: str = _on_cluster_change(
        "raise `ClusterChangedError` once a minute",
        "a member rejoins, and positions are looked up anew",
    )
    rebalance_timeout: float = milliseconds(
        1,
        300_000,
        "how long members may take to finish their work and rejoin in a rebalance",
    )
    leave_group_on_close: bool | None = boolean(
        None,
        "leave the group on close, so that it does not wait for the session timeout; `None`: static"
        " members stay, the others leave. `True` removes a static member, too (KIP-1092)",
    )
    rebalance_max_retries: int | None = integer(
        0,
        None,
        "how often in a row joining may be retried before the client fails with `JoinFailedError`;"
        " `None`: without limit",
        is_private=True,
    )
    rebalance_backoff: float = milliseconds(
        1,
        None,
        "backoff before the first retry of joining; `None`: `retry_backoff_ms`",
        otherwise="retry_backoff_ms",
        is_private=True,
    )

    def _check_instance_id(self) -> None:
        if self.group_instance_id == "":
            raise ConfigurationError(
                "group_instance_id is empty; give a name, or None for a dynamic member"
            )

    def _check_heartbeats(self) -> None:
        if self.heartbeat_interval >= self.session_timeout:
            session_ms = round(self.session_timeout * 1000)
            hint = (
                f"; both are in milliseconds: did you mean session_timeout_ms={session_ms * 1000}?"
                if session_ms < MIN_LIKELY_SESSION_MS
                else "; at most a third of it is recommended"
            )
            raise ConfigurationError(
                f"heartbeat_interval_ms={self.heartbeat_interval * 1000:.0f} must be less than"
                f" session_timeout_ms={session_ms}{hint}"
            )


@frozen(kw_only=True)
class GroupMemberOptions(_MembershipOptions):
    """The options of a `GroupMember`."""

    group_id: str = string(REQUIRED, "the group")

    def __attrs_post_init__(self) -> None:
        self._check_units()
        if not self.group_id:
            raise ConfigurationError("group_id is empty")
        self._check_instance_id()
        self._check_heartbeats()
        if self.membership is not None and self.group_instance_id is not None:
            raise ConfigurationError(
                "group_instance_id works only with Kafka's group coordinator, not with membership="
            )


@frozen(kw_only=True)
class ConsumerOptions(_MembershipOptions):
    """The options of a `Consumer`."""

    group_id: str | None = string(
        None,
        "the group; without one, the consumer reads all partitions of the topics and commits"
        " nothing",
    )
    pattern: str | re.Pattern[str] | None = option(
        "str | re.Pattern[str]",
        None,
        "instead of topics: a regular expression that whole topic names must match; a metadata"
        " refresh finds new topics",
        text_type=str,
        has_type=lambda value: isinstance(value, str) or hasattr(value, "fullmatch"),
        expected="a regular expression",
    )
    exclude_internal_topics: bool = boolean(
        True,
        "whether a pattern ignores internal topics; one that the broker matches (KIP-848) may have"
        " them all the same",
    )
    assignors: tuple[Assignor, ...] = option(
        "Sequence[Assignor]",
        None,
        "the assignors that this member supports, from `kafkagroup.assign`; `None`: range,"
        " cooperative-sticky, round-robin, so that it shares one with every common client",
        has_type=lambda value: isinstance(value, Sequence) and not isinstance(value, str),
        convert=tuple,
        expected="a list of assignors",
    )
    partition_loads: PartitionLoads | None = function(
        "PartitionLoads",
        None,
        "for `weighted_sticky`: a function or coroutine function that the leader calls for"
        " partition -> load; `LoadsFile` is one",
    )
    group_protocol: ConsumerProtocol = choice(
        {protocol.value: protocol for protocol in ConsumerProtocol},
        "classic",
        'who assigns partitions: `"classic"`, one of the members; `"consumer"`, the coordinator'
        ' (KIP-848; brokers 4.0 and later); `"auto"`, the coordinator if it supports KIP-848,'
        " can upgrade the group and accepts the pattern, else a member; always a member with"
        ' `assignors`, which `"consumer"` does not accept. With `"consumer"` the broker matches a'
        " `pattern` (RE2J), and looks for new topics at most every 10 s",
    )
    group_remote_assignor: str | None = string(
        None,
        "with `\"consumer\"` and `\"auto\"`: the coordinator's assignor, `'uniform'` or `'range'`;"
        " `None`: the broker's default",
    )
    auto_offset_reset: OffsetReset = option(
        "OffsetReset",
        "earliest",
        'where to start without a committed offset: `"earliest"`, `"latest"`, `"none"` (an error),'
        " or a `timedelta` back from now",
        text_type=str,
        # A timedelta, without importing datetime: that would take 2% of importing a consumer.
        has_type=lambda value: isinstance(value, str) or hasattr(value, "total_seconds"),
        is_valid=_is_valid_reset,
        expected="'earliest', 'latest', 'none' or a timedelta back from now",
    )
    auto_offset_reset_new_partitions: str = choice(
        {"earliest": "earliest", "policy": "policy"},
        "earliest",
        "where to start a partition without a committed offset that was created while this consumer"
        ' was subscribed to its topic: `"earliest"`, at its beginning, or `"policy"`, where'
        " `auto_offset_reset` says ([new partitions](delivery.md#new-partitions))",
    )
    enable_auto_commit: bool = boolean(
        True, "commit processed records periodically, before a revocation and on close"
    )
    auto_commit_interval: float = milliseconds(1, 5_000, "time between these commits")
    committed_offsets_max_age: float = milliseconds(
        1,
        60_000,
        "without a membership: how old the acknowledgement of a committed offset may get before an"
        " auto-commit, or a `commit()`, looks the offset up, and sends it again if the broker has"
        " deleted it ([Delivery](delivery.md#committed-offsets-that-expire))",
    )
    offsets_commit_max_retries: int | None = integer(
        0,
        None,
        "how often a commit is retried after a retriable error; `None`: until `request_timeout_ms`"
        " expires",
        is_private=True,
    )
    offsets_channel_backoff: float = milliseconds(
        1,
        None,
        "backoff before the first retry of a commit, or of reading committed offsets; `None`:"
        " `retry_backoff_ms`",
        otherwise="retry_backoff_ms",
        is_private=True,
    )
    session_timeout: float = milliseconds(
        1,
        None,
        "how long the coordinator waits for a heartbeat before it removes the member; `None`:"
        " 45,000. If the coordinator assigns (KIP-848), it waits for its own"
        " `group.consumer.session.timeout.ms`, and this is how long the member keeps its partitions"
        " without a response",
        otherwise=45_000,
    )
    heartbeat_interval: float = milliseconds(
        1,
        None,
        "time between two heartbeats; less than the session timeout; `None`: 1,000. If the"
        " coordinator assigns (KIP-848), an interval of the broker above 5 s takes precedence",
        otherwise=1_000,
    )
    max_poll_interval: float = milliseconds(
        1,
        300_000,
        "longest time between two calls for records while the consumer owns partitions. If it is"
        " exceeded, the member leaves the group, and rejoins at the next call",
    )
    rebalance_timeout: float = milliseconds(
        1,
        None,
        "how long members may take to finish their work and rejoin in a rebalance; `None`:"
        " `max_poll_interval_ms`",
        otherwise="max_poll_interval_ms",
    )
    fetch_min_bytes: int = integer(
        0,
        1,
        "minimum bytes of a fetch response; the broker waits for them at most `fetch_max_wait_ms`."
        " With more than 1, the first fetch after a seek, a resume or a new partition waits too,"
        " unless another fetch is pending at the broker: then this first fetch returns at once",
    )
    fetch_max_bytes: int = integer(1, 52_428_800, "limit of one fetch response")
    max_partition_fetch_bytes: int = integer(
        1, 1_048_576, "limit of one partition in a fetch response"
    )
    fetch_max_wait: float = milliseconds(
        0,
        500,
        "how long the broker may wait for `fetch_min_bytes`. With `fetch_min_bytes` of at most 1"
        " and a value of at least 500, the wait grows up to 5,000 while no records arrive. A seek,"
        " a resume or a new partition does not wait for a pending fetch",
    )
    num_consumer_fetchers: int = integer(
        1,
        1,
        "fetch connections to each broker; the partitions are distributed over them. One more is"
        " opened when a seek, a resume or a new partition needs it, and closed after a minute"
        " without use",
        is_private=True,
    )
    queued_max_records: int = integer(
        1,
        None,
        "do not fetch a partition with this many records buffered; `None`: only bytes count",
        otherwise=MAX_INT32,
        is_private=True,
    )
    isolation_level: int = choice(
        {"read_uncommitted": 0, "read_committed": 1},
        "read_uncommitted",
        '`"read_committed"`: deliver no records of open or aborted transactions',
    )
    """0 or 1, as on the wire."""
    check_crcs: bool = boolean(True, "check each batch's CRC-32C before its records are delivered")
    max_batch_bytes: int = integer(
        1, 134_217_728, "limit of one batch, decompressed; a larger one is an error"
    )
    max_frame_bytes: int = integer(
        "fetch_max_bytes",
        104_857_600,
        "limit of one response of a broker; a larger one closes the connection",
    )
    client_rack: str | None = string(
        None,
        "the rack of this client: brokers may name a nearby replica to fetch from (KIP-392)",
    )
    metadata_max_age: float = milliseconds(1, 300_000, "how old metadata may get")
    on_partitions_assigned: AssignedCallback | None = function(
        "AssignedCallback",
        None,
        "a function or coroutine function, called with the partitions, sorted. It may return a"
        " mapping of partitions to the offsets where they start",
    )
    on_partitions_revoked: PartitionsCallback | None = function(
        "PartitionsCallback",
        None,
        "called with the partitions that are revoked, after the auto-commit and before they are"
        " released",
    )
    on_partitions_lost: PartitionsCallback | None = function(
        "PartitionsCallback",
        None,
        "called with the partitions that the member has lost: another member may own them already,"
        " and their offsets cannot be committed",
    )
    views: bool = boolean(
        False,
        "keys and values are read-only memoryviews of the fetched batch instead of bytes. This"
        " saves copies, which pays for values of several KB; a record then keeps its whole batch"
        " in memory, and cannot be hashed or pickled",
    )
    key_deserializer: Deserializer[Any] | None = function(
        "Deserializer[K_co]",
        None,
        "a function or coroutine function, called with the bytes of each key that is not null; with"
        " `views`, with a memoryview",
    )
    value_deserializer: Deserializer[Any] | None = function(
        "Deserializer[V_co]",
        None,
        "a function or coroutine function, called with the bytes of each value that is not null;"
        " with `views`, with a memoryview",
    )
    on_deserialization_error: DeserializationErrorPolicy = option(
        "DeserializationErrorPolicy",
        "raise",
        'how to handle a record whose deserializer fails: `"raise"` the error at each call until'
        ' the application seeks past the record; `"skip"` it, with a warning, and count it in'
        " `metrics()`; or a function or coroutine function, called with the record and the error,"
        " that returns the record to deliver instead, or `None` to skip it",
        has_type=lambda value: isinstance(value, str) or callable(value),
        is_valid=lambda value: value in ("raise", "skip") or callable(value),
        expected="'raise', 'skip' or a function",
    )

    @classmethod
    def checked(cls, given: Given) -> Self:
        values = checked_values(cls, given)
        assignors = values["assignors"]
        _check_assignors(values["group_protocol"], values["group_remote_assignor"], assignors)
        if assignors is None:
            values["assignors"] = _DEFAULT_ASSIGNORS
        else:
            # Also instead of "auto": a coordinator does not run its members' assignors.
            values["group_protocol"] = ConsumerProtocol.CLASSIC
        return cls(**values)

    def __attrs_post_init__(self) -> None:
        self._check_units()
        if self.group_id is not None and not self.group_id:
            raise ConfigurationError("group_id is empty; give a name, or None for no group")
        self._check_instance_id()
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigurationError(
                f"group_instance_id={self.group_instance_id!r} needs a group_id"
            )
        self._check_heartbeats()
        self._check_deserializers()
        if self.membership is not None:
            self._check_coordination()

    def _check_deserializers(self) -> None:
        for name in ("key_deserializer", "value_deserializer"):
            if getattr(self, name) is str:
                # `str` never fails: without this check, no error would show the mistake.
                raise ConfigurationError(
                    f"{name}=str makes \"b'one'\" of b'one'; bytes.decode makes 'one' of it"
                )

    def _check_coordination(self) -> None:
        """Raise ConfigurationError for options that only Kafka's group coordinator supports."""
        if self.group_id is None:
            raise ConfigurationError("membership= needs a group_id")
        if self.group_instance_id is not None:
            raise ConfigurationError(
                "group_instance_id works only with Kafka's group coordinator, not with membership="
            )
        if self.group_protocol is not ConsumerProtocol.CLASSIC:
            raise ConfigurationError(
                "group_protocol works only with Kafka's group coordinator, not with membership="
            )
        if self.partition_loads is not None:
            raise ConfigurationError(
                "partition_loads needs a leader, and with membership= each member computes the"
                " assignment: members with different loads would never agree"
            )


def _check_assignors(
    protocol: ConsumerProtocol, remote: str | None, assignors: Sequence[Assignor] | None
) -> None:
    """Raise ConfigurationError if the options contradict each other on who assigns, or how, and
    for no assignor, or two of one name. `remote`: the `group_remote_assignor`."""
    if remote is not None and (protocol is ConsumerProtocol.CLASSIC or not remote):
        raise ConfigurationError(
            f"group_remote_assignor={remote!r} must name an assignor of the coordinator, such as"
            " 'uniform' or 'range', and needs group_protocol='consumer' or 'auto'"
        )
    if assignors is None:
        return
    if protocol is ConsumerProtocol.CONSUMER:
        raise ConfigurationError(
            "assignors run on members, but with group_protocol='consumer' the coordinator assigns;"
            " use group_remote_assignor"
        )
    if remote is not None:
        raise ConfigurationError("assignors and group_remote_assignor exclude each other; give one")
    names = [protocol_name(assignor) for assignor in assignors]
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"assignors are {names}; expected one or more, each once")


@frozen(kw_only=True)
class AdminOptions(CommonOptions):
    """The options of an `Admin`."""

    default_api_timeout: float = milliseconds(
        1, 60_000, "how long a call may take, including its retries"
    )


@frozen(kw_only=True)
class ProducerOptions(CommonOptions):
    """The options of a `Producer`."""

    key_serializer: Serializer[Any] | None = function(
        "Serializer[K_contra]",
        None,
        "a function or coroutine function from a key to its bytes, not called for a null key; keys"
        " are bytes without one",
    )
    value_serializer: Serializer[Any] | None = function(
        "Serializer[V_contra]",
        None,
        "a function or coroutine function from a value to its bytes, not called for a null value,"
        " which stays null; values are bytes without one",
    )
    partitioner: Partitioner | None = plain_function(
        "Partitioner",
        None,
        "a function (topic, key, number of partitions) that returns the number of a partition, or"
        " `None` for one that the producer chooses; without a function, as Java's producer: by the"
        " murmur2 hash of the key, and records without a key to one partition after the other, some"
        " kilobytes to each",
    )
    transactional_id: str | None = string(
        None,
        "makes the producer transactional: records are written in a `transaction()`. The id is that"
        " of one writer over its restarts: a producer that starts with it fences the ones before",
    )
    transaction_timeout: float | None = milliseconds(
        1,
        None,
        "how long a transaction may be open before the coordinator aborts it, such as one of a"
        " producer that died; until then `read_committed` readers of its partitions wait. After 0.8"
        " of that the client aborts it if records are not acknowledged, or if it is one of"
        " `transactions()`. `None`: 60,000, and 10,000 in `transactions()`",
    )
    acks: int = option(
        "Literal['all', 0, 1, -1]",
        "all",
        'which replicas must have a record: `"all"` that are in sync, `1`, the leader, or `0`,'
        " none, when the broker sends no response",
        has_type=lambda value: isinstance(value, int | str) and not isinstance(value, bool),
        is_valid=lambda value: value in ("all", -1, 0, 1, "-1", "0", "1"),
        convert=lambda value: -1 if value == "all" else int(value),
        text_type=str,
        expected="'all', 0 or 1",
    )
    enable_idempotence: bool = boolean(
        True,
        "whether brokers refuse what is sent twice, and what is out of order; needs `acks='all'`."
        " Without it a retry may write a record twice, and one batch of a partition is in flight",
    )
    compression_type: Codec = choice(
        {
            "none": Codec.NONE,
            "gzip": Codec.GZIP,
            "snappy": Codec.SNAPPY,
            "lz4": Codec.LZ4,
            "zstd": Codec.ZSTD,
        },
        "none",
        "how batches are compressed",
    )
    compression_level: int | None = option(
        "int",
        None,
        "how much work compression is: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22; `None`: the"
        " default of the codec",
        has_type=lambda value: isinstance(value, int) and not isinstance(value, bool),
        expected="a whole number",
        text_type=int,
    )
    linger: float = milliseconds(
        0,
        0,
        "how long a batch waits for further records before it is sent. With 0 it is sent as soon as"
        " the requests before it allow, with what has arrived until then. Less than"
        " `delivery_timeout_ms`",
    )
    batch_size: int = integer(
        1,
        1_000_000,
        "the limit of a batch in bytes, before compression; a larger record has a batch of its own",
    )
    max_request_size: int = integer(
        1,
        1_048_576,
        "the limit of a request, and so of a batch or record, in bytes, before compression",
    )
    buffer_memory: int = integer(
        1,
        33_554_432,
        "the limit of the bytes of records that are accepted and not acknowledged; beyond it `send`"
        " waits and `send_nowait` raises `BufferFullError`",
    )
    metadata_max_age: float = milliseconds(1, 300_000, "how old metadata may get")
    on_cluster_change: str = _on_cluster_change(
        "records wait for `delivery_timeout_ms`",
        "another producer id is requested. Not with a `transactional_id`",
    )
    delivery_timeout: float = milliseconds(
        1,
        120_000,
        "how long an accepted record may take until it is acknowledged, with all that it waits for",
    )

    def __attrs_post_init__(self) -> None:
        self._check_units()
        if self.enable_idempotence and self.acks != -1:
            raise ConfigurationError(
                f"acks={self.acks!r}: an idempotent producer needs acks='all'; set"
                " enable_idempotence=False if a record may be lost or written twice"
                if self.transactional_id is None
                else f"acks={self.acks!r}: transactions need acks='all'"
            )
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigurationError(
                "transactional_id needs an idempotent producer; leave out enable_idempotence=False"
            )
        if self.transactional_id == "":
            raise ConfigurationError("transactional_id is empty")
        if self.transactional_id is not None and self.on_cluster_change == "adopt":
            raise ConfigurationError(
                'on_cluster_change="adopt" does not go with a transactional_id: a transaction, and'
                " the epoch that fences earlier producers, are of one cluster; leave it out, and"
                " start a new producer after a failover"
            )
        if self.linger >= self.delivery_timeout:
            raise ConfigurationError(
                f"linger_ms={self.linger * 1000:g} must be less than"
                f" delivery_timeout_ms={self.delivery_timeout * 1000:g}: a batch that lingers would"
                " fail before it is sent"
            )
        level, limits = self.compression_level, LEVELS.get(self.compression_type)
        if level is not None and limits is None:
            raise ConfigurationError(
                f"compression_level={level}: {self.compression_type.name.lower()} has no levels"
            )
        if level is not None and limits is not None and not limits[0] <= level <= limits[1]:
            raise ConfigurationError(
                f"compression_level={level}; expected {limits[0]} to {limits[1]} with"
                f" compression_type={self.compression_type.name.lower()!r}"
            )

"""Error messages for attributes, keywords and imports that other Kafka clients have.

The message says what does their job here. This module is imported when a name was not found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from importlib import import_module
from types import FrameType

__all__ = ["unknown_attribute", "unknown_import", "unknown_keywords"]

_STOP = "await stop(), or use `async with`"
_CALLBACKS = "give Consumer() on_partitions_assigned, on_partitions_revoked, on_partitions_lost"
_COMMITS = "await commit(): it returns when the offsets are committed"
_AUTO_COMMITTED = "a processed record is committed by itself; await commit(offsets) for others"
_TRANSACTION = "async with producer.transaction() as tx"
_NOT_HERE = "Kafka's own tools do that; Admin has groups, their offsets, and topics"
_READ_ONLY = "a record cannot be changed; _replace() returns a changed copy"
_SIZE = "len() of key or value, if the record has one"
_CREDENTIALS = "sasl_oauthbearer_token of Security is called at each login"
_ADMIN_TOPICS = "await Admin.describe_topics(), or Admin.list_topics()"
_SEND = "await send(), or call send_nowait()"
_BATCHES = "records are batched by themselves: call send_nowait(), then await flush()"
_DELIVERED = "await the result"
_OUTCOME = "await it: it returns the RecordMetadata, or raises NotWrittenError"
_WRITTEN_TO = "await it: the RecordMetadata has it"
_FUTURE_CALLBACKS = "await it in a task; on asyncio, ensure_future() of it has callbacks"
_NOT_WITHDRAWN = "an accepted record is not withdrawn; delivery_timeout_ms is its limit"
_CLOSE_TIMEOUT = "give close_timeout to the constructor"
_NO_SHARE_GROUPS = "there are no share groups"

_ATTRIBUTES = {
    "Service": {
        "bootstrap_connected": "start() raises NoBrokersAvailableError",
        "close": _STOP,
        "cluster": "Admin has what the cluster has",
        "set_sasl_credentials": _CREDENTIALS,
    },
    "_CoordinatedMember": {"close": _STOP},
    "Broker": {"close": "await aclose(), or use `async with Broker.open()`"},
    "Consumer": {
        "bootstrap": "await start(), or use `async with`",
        "cluster_id": "it is Admin.cluster_id",
        "commit_async": "run commit() in a task",
        "commit_sync": "it is commit()",
        "consume": "await getmany(), or iterate over batches()",
        "consumer_group_metadata": "it is group_metadata()",
        "enforce_rebalance": "it is rejoin()",
        "get_watermark_offsets": "await beginning_offsets() and end_offsets()",
        "highwater": "await end_offsets(), or lag(); metrics().lag sends no request",
        "incremental_assign": "in a group nothing is to be done; without one, await assign()",
        "incremental_unassign": "in a group nothing is to be done; without one, await assign()",
        "last_poll_timestamp": "health() finds an application that does not ask for records",
        "last_stable_offset": "await end_offsets(), with isolation_level='read_committed'",
        "list_topics": "it is Admin.list_topics()",
        "member_id": "it is group_metadata().member_id",
        "memberid": "it is group_metadata().member_id",
        "partitions_for": _ADMIN_TOPICS,
        "partitions_for_topic": _ADMIN_TOPICS,
        "poll": "await getone() or getmany(), or iterate with `async for`",
        "seek_to_committed": "seek() to what committed() returns",
        "store_offsets": _AUTO_COMMITTED,
        "subscription": "it is what was passed to Consumer() or subscribe(); see assignment()",
        "topics": "it is Admin.list_topics()",
        "unassign": "it is unsubscribe()",
    },
    "Producer": {
        "abort_transaction": f"{_TRANSACTION}: an exception in the block aborts",
        "begin_transaction": _TRANSACTION,
        "commit_transaction": f"{_TRANSACTION}: the end of the block commits",
        "cluster_id": "it is Admin.cluster_id",
        "create_batch": _BATCHES,
        "init_transactions": "the start does it, with a transactional_id",
        "list_topics": "it is Admin.list_topics()",
        "max_usable_produce_magic": "batches have the format of Kafka 0.11 and later",
        "partitions_for": "await partition_count()",
        "poll": "nothing is to be polled: the loop sends",
        "produce": _SEND,
        "produce_batch": _BATCHES,
        "purge": _NOT_WITHDRAWN,
        "send_and_wait": "it is send()",
        "send_batch": _BATCHES,
        "send_offsets_to_transaction": f"{_TRANSACTION}: await tx.send_offsets(consumer)",
        "write": "await send() or send_many(), or send_nowait() and flush()",
    },
    "Transaction": {
        "abort": "an exception in the block aborts",
        "abort_transaction": "an exception in the block aborts",
        "commit": "the end of the block commits",
        "commit_transaction": "the end of the block commits",
        "flush": "the end of the block waits for all records",
        "produce": _SEND,
        "send_and_wait": "it is send()",
        "send_offsets_to_transaction": "await send_offsets(consumer)",
    },
    "Admin": {
        "alter_consumer_group_offsets": "it is alter_offsets()",
        "alter_group_offsets": "it is alter_offsets()",
        "create_partitions": "it is add_partitions()",
        "delete_consumer_groups": "it is delete_groups()",
        "delete_consumer_group_offsets": "it is delete_offsets()",
        "delete_group_offsets": "it is delete_offsets()",
        "describe_cluster": "see cluster_id, and Broker.request_metadata() for the brokers",
        "describe_consumer_groups": "it is describe_groups()",
        "describe_topic_partitions": "it is describe_topics()",
        "find_hanging_transactions": "open_transactions() tells which of them hang",
        "get_broker_version_data": "versions are negotiated with each broker",
        "list_consumer_group_offsets": "it is committed()",
        "list_consumer_groups": "it is list_groups()",
        "list_group_offsets": "it is committed()",
        "list_offsets": "Consumer has beginning_offsets(), end_offsets() and offsets_for_times()",
        "list_partition_offsets": "Consumer has beginning_offsets(), end_offsets() and"
        " offsets_for_times()",
        "poll": "nothing is to be polled: await each call",
        "remove_group_members": "it is remove_member()",
        "reset_group_offsets": "await plan_reset(), then apply()",
        "wait_for_topics": "await describe_topics()",
    }
    | dict.fromkeys(
        (  # unpacked tuples, so that a line has several names
            *("alter_configs", "alter_partition_reassignments"),
            *("alter_replica_log_dirs", "alter_user_scram_credentials", "api_versions"),
            *("create_acls", "delete_acls", "delete_records", "describe_acls", "describe_configs"),
            *("describe_features", "describe_log_dirs", "describe_metadata_quorum"),
            *("describe_user_scram_credentials", "elect_leaders", "incremental_alter_configs"),
            *("list_config_resources", "list_partition_reassignments"),
            *("reset_configs", "update_features"),
        ),
        _NOT_HERE,
    ),
    "Record": {
        "checksum": "a batch has the checksum, and check_crcs has it checked",
        "delivery_count": _NO_SHARE_GROUPS,
        "deserialized_key": "it is key, with key_deserializer",
        "deserialized_value": "it is value, with value_deserializer",
        "error": "errors are raised by the call that asks for records",
        "latency": "a record that was read has none",
        "serialized_header_size": _SIZE,
        "serialized_key_size": _SIZE,
        "serialized_value_size": _SIZE,
        "topic_partition": "it is TopicPartition(record.topic, record.partition)",
        "tp": "it is TopicPartition(record.topic, record.partition)",
    }
    | dict.fromkeys(("set_error", "set_headers", "set_key", "set_topic", "set_value"), _READ_ONLY),
    "RecordFuture": {
        "cancel": _NOT_WITHDRAWN,
        "cancelled": "it cannot be cancelled; done() tells whether it has ended",
        "get_loop": "it belongs to the loop of its producer",
        "is_done": "it is done()",
        "running": "done() tells whether it has ended",
    }
    | dict.fromkeys(
        (  # unpacked tuples, as above
            *("error", "exception", "failed", "get", "result", "retriable", "succeeded", "value"),
            *("failure", "set_exception", "set_result", "success", "wait"),
        ),
        _OUTCOME,
    )
    | dict.fromkeys(
        (
            *("add_both", "add_callback", "add_done_callback", "add_errback", "chain"),
            *("error_on_callbacks", "remove_done_callback"),
        ),
        _FUTURE_CALLBACKS,
    )
    | dict.fromkeys(("offset", "partition", "timestamp", "topic"), _WRITTEN_TO),
}
"""Class -> another client's attribute -> what to use instead. A class has those of its bases."""

_SEND_KEYWORDS = {
    "callback": _DELIVERED,
    "on_delivery": _DELIVERED,
    "timestamp_ms": "timestamp",
}

_KEYWORDS: dict[str, dict[str, str]] = {
    "abort_transaction": {"spec": "pass the partition, and where the transaction begins"},
    "commit": {
        "asynchronous": "to go on meanwhile, run commit() in a task",
        "callback": _COMMITS,
        "message": "pass {(record.topic, record.partition): record.offset + 1}",
    },
    "committed": {
        "metadata": "each result has offset and metadata",
        "partition": "partitions",
    },
    "create_topics": {
        "new_topics": "topics",
        "raise_errors": "the docstring says how errors are reported",
        "wait_for_metadata": "describe_topics() tells when a topic can be used",
    },
    "delete_groups": {"group_coordinator_id": "each group's coordinator is looked up"},
    "delete_topics": {"raise_errors": "the docstring says how errors are reported"},
    "describe_groups": {
        "group_coordinator_id": "each group's coordinator is looked up",
        "include_authorized_operations": "a call that is not allowed is an AuthorizationError",
    },
    "describe_producers": {"broker_id": "the leader of each partition is asked"},
    "find_coordinator": {"coordinator_type": "it is that of a group"},
    "getmany": {
        "num_messages": "max_records",
        "max_poll_records": "max_records",
        "partitions": "pause() the others",
    },
    "batches": {"timeout": "getmany() has timeout", "num_messages": "max_records"},
    "list_groups": {
        "broker_ids": "all brokers are asked",
        "states_filter": "states",
        "types_filter": "types",
    },
    "list_transactions": {
        "broker_ids": "all brokers are asked",
        "duration_filter_ms": "open_longer_than",
        "producer_id_filters": "producer_ids",
        "state_filters": "states",
        "transactional_id_pattern": "pattern",
    },
    "offsets_for_times": {"timestamps": "times"},
    "seek": {"timestamp": "await offsets_for_times() first"},
    "stop": dict.fromkeys(("timeout", "timeout_ms"), _CLOSE_TIMEOUT) | {"autocommit": "commit"},
    "send_offsets": dict.fromkeys(
        ("group_id", "group_metadata", "offsets", "positions"),
        "pass the consumer, which has its offsets and its group",
    ),
    "subscribe": {
        "listener": _CALLBACKS,
        "on_assign": _CALLBACKS,
        "on_lost": _CALLBACKS,
        "on_revoke": _CALLBACKS,
    },
    "send": _SEND_KEYWORDS,
    "send_nowait": _SEND_KEYWORDS,
    "send_many": {"key": "send() has key", "timestamp": "send() has timestamp"},
    "open": {
        "security": "options=kafkagroup.broker.ClientOptions(security=...)",
        "client_id": "options=kafkagroup.broker.ClientOptions(client_id=...)",
    },
}
"""Method -> another client's keyword -> the keyword here, or what to do instead."""

_REQUESTS = "kafkagroup.broker.Broker has the requests of a group client"
_DESERIALIZERS = "key_deserializer and value_deserializer take functions"
_SERIALIZERS = "key_serializer and value_serializer take functions"
_RAISED_BY_SERIALIZERS = "send() raises what a serializer raises"
_PARTITIONER = "partitioner of Producer takes a function"

_NAMES = {
    "AIOConsumer": "Consumer",
    "AIOKafkaAdminClient": "Admin",
    "AIOKafkaClient": _REQUESTS,
    "AIOKafkaConsumer": "Consumer",
    "AIOKafkaProducer": "Producer",
    "AIOProducer": "Producer",
    "AbstractTokenProvider": "Security(sasl_oauthbearer_token=...) takes a function",
    "AcknowledgeType": _NO_SHARE_GROUPS,
    "AdminClient": "Admin",
    "AsyncConsumerRebalanceListener": _CALLBACKS,
    "AsyncDeserializingConsumer": "Consumer",
    "AsyncSerializingProducer": "Producer",
    "AuthenticationFailedError": "AuthenticationError",
    "AuthenticationMethodNotSupported": "AuthenticationError",
    "BrokerConnection": "Broker",
    "BrokerMetadata": "Node",
    "BrokerResponseError": "BrokerError",
    "Cancelled": "a call is cancelled as the event loop does it",
    "ClusterMetadata": "Broker.request_metadata() returns it",
    "ConsumerClosedError": "ClosedError",
    "ConsumerGroupDescription": "kafkagroup.admin.GroupDescription",
    "ConsumerGroupListing": "kafkagroup.admin.GroupListing",
    "ConsumerGroupMetadata": "GroupMetadata",
    "ConsumerGroupState": "kafkagroup.admin.GroupState",
    "ConsumerGroupTopicPartitions": "Admin.committed() takes a group and returns a mapping",
    "ConsumerGroupType": "kafkagroup.admin.GroupType",
    "ConsumerRebalanceListener": _CALLBACKS,
    "ConsumerRecord": "Record",
    "ConsumerStoppedError": "ClosedError",
    "CooperativeStickyAssignor": "kafkagroup.assign.cooperative_sticky_assignor",
    "CorrelationIdError": "RemoteProtocolError",
    "CorruptRecordException": "CorruptRecordError",
    "DefaultPartitioner": _PARTITIONER,
    "DefaultSerializer": _SERIALIZERS,
    "DescribeClusterResult": "see Admin.cluster_id and Broker.request_metadata()",
    "Deserializer": _DESERIALIZERS,
    "DeserializingConsumer": "Consumer",
    "DeserializingShareConsumer": _NO_SHARE_GROUPS,
    "DoubleDeserializer": _DESERIALIZERS,
    "DoubleSerializer": _SERIALIZERS,
    "GroupCollector": "kafkagroup.exporters.prometheus.GroupCollector",
    "IllegalArgumentError": "ConfigurationError",
    "IllegalOperation": "IllegalStateError",
    "IllegalStateException": "IllegalStateError",
    "IncompatibleBrokerVersion": "UnsupportedVersionError",
    "IntegerDeserializer": _DESERIALIZERS,
    "IntegerSerializer": _SERIALIZERS,
    "InvalidConfigurationError": "ConfigurationError",
    "IsolationLevel": "isolation_level of Consumer takes 'read_committed'",
    "JsonSerializer": _SERIALIZERS,
    "KafkaAdminClient": "Admin",
    "KafkaClient": _REQUESTS,
    "KafkaConfigurationError": "ConfigurationError",
    "KafkaConnectionError": "ConnectionLostError",
    "KafkaConsumer": "Consumer",
    "KafkaError": "KafkaGroupError",
    "KafkaException": "KafkaGroupError",
    "KafkaProducer": "Producer",
    "KafkaProtocolError": "RemoteProtocolError",
    "KafkaTimeoutError": "RequestTimeoutError",
    "KafkaUnavailableError": "NoBrokersAvailableError",
    "KeyDeserializationError": "DeserializationError",
    "KeySerializationError": _RAISED_BY_SERIALIZERS,
    "ListConsumerGroupsResult": "kafkagroup.admin.GroupList",
    "MemberAssignment": "decode_assignment() returns it",
    "MemberState": "GroupMember has the state of a member",
    "MemberToRemove": "Admin.remove_member() takes a member id",
    "Message": "Record",
    "Messages": "Batch",
    "MetadataEmptyBrokerList": "NoBrokersAvailableError",
    "NewPartitions": "Admin.add_partitions() takes topic -> count",
    "NoBrokersAvailable": "NoBrokersAvailableError",
    "NoOffsetForPartitionError": "NoOffsetError",
    "OFFSET_BEGINNING": "await seek_to_beginning()",
    "OFFSET_END": "await seek_to_end()",
    "OFFSET_INVALID": "Consumer.committed() has None where nothing is committed",
    "OFFSET_STORED": "seek() to what committed() returns",
    "OffsetSpec": "Consumer has beginning_offsets(), end_offsets() and offsets_for_times()",
    "PartitionMetadata": "kafkagroup.admin.PartitionDescription",
    "Partitioner": _PARTITIONER,
    "ProduceError": "NotWrittenError",
    "ProducerClosed": "ClosedError",
    "RangePartitionAssignor": "kafkagroup.assign.range_assignor",
    "RecordTooLargeError": "NotWrittenError",
    "RoundRobinPartitionAssignor": "kafkagroup.assign.roundrobin_assignor",
    "round_robin_assignor": "kafkagroup.assign.roundrobin_assignor",
    "ScramMechanism": "sasl_mechanism of Security takes 'SCRAM-SHA-512'",
    "SerializationError": _RAISED_BY_SERIALIZERS,
    "Serializer": _SERIALIZERS,
    "SerializingProducer": "Producer",
    "ShareConsumer": _NO_SHARE_GROUPS,
    "StickyPartitionAssignor": "kafkagroup.assign.sticky_assignor",
    "StickyPartitioner": _PARTITIONER,
    "StringDeserializer": _DESERIALIZERS,
    "StringSerializer": _SERIALIZERS,
    "TIMESTAMP_CREATE_TIME": "kafkagroup.types.TimestampType.CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME": "kafkagroup.types.TimestampType.LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE": "a record without a timestamp has -1",
    "ThrottleEvent": "the client waits as long as the broker asks (KIP-219)",
    "TopicCollection": "Admin.describe_topics() takes names",
    "TopicMetadata": "kafkagroup.admin.TopicDescription",
    "TopicPartitionInfo": "kafkagroup.admin.PartitionDescription",
    "TransactionAbortableError": "TransactionAbortedError",
    "UnrecognizedBrokerVersion": "UnsupportedVersionError",
    "ValueDeserializationError": "DeserializationError",
    "ValueSerializationError": _RAISED_BY_SERIALIZERS,
} | dict.fromkeys(
    (  # unpacked tuples, as above
        *("ACL", "ACLFilter", "ACLOperation", "ACLPermissionType", "ACLResourcePatternType"),
        *("AbortTransactionSpec", "AclBinding", "AclBindingFilter", "AclOperation"),
        *("AclPermissionType", "AlterConfigOp", "AlterConfigOpType", "ConfigEntry"),
        *("ConfigResource", "ConfigResourceType", "ConfigSource", "ConfigSourceType"),
        *("ConfigType", "DeletedRecords", "ElectionType", "RecordsToDelete", "ResourcePattern"),
        *("ResourcePatternFilter", "ResourcePatternType", "ResourceType", "ScramCredentialInfo"),
        *("TransactionDescription", "TransactionListing", "TransactionState"),
        *("UpdateFeatureType", "UserScramCredentialAlteration", "UserScramCredentialDeletion"),
        *("UserScramCredentialUpsertion", "UserScramCredentialsDescription"),
    ),
    _NOT_HERE,
)
"""A name that another client or a module of this package exports -> the name here, or a sentence
that says what to do instead."""

_CODES = {
    "GroupCoordinatorNotAvailableError": "COORDINATOR_NOT_AVAILABLE",
    "GroupLoadInProgressError": "COORDINATOR_LOAD_IN_PROGRESS",
    "InvalidTopicError": "INVALID_TOPIC_EXCEPTION",
    "MessageSizeTooLargeError": "MESSAGE_TOO_LARGE",
    "NotCoordinatorForGroupError": "NOT_COORDINATOR",
    "NotLeaderForPartitionError": "NOT_LEADER_OR_FOLLOWER",
    "UnknownError": "UNKNOWN_SERVER_ERROR",
}
"""Another client's error -> the code of a `BrokerError`, if the code has another name."""

_CODES_OF_RECORDS = frozenset(
    (
        "DUPLICATE_SEQUENCE_NUMBER",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "MESSAGE_TOO_LARGE",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "RECORD_LIST_TOO_LARGE",
        "UNKNOWN_PRODUCER_ID",
    )
)
"""The codes with which brokers refuse records: the error of a producer has them in its `why`."""


def unknown_attribute(found_on: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have."""
    cls = type(found_on)
    message = f"{cls.__name__!r} object has no attribute {name!r}"
    for base in cls.__mro__:
        if answer := _ATTRIBUTES.get(base.__name__, {}).get(name):
            message += f"; {answer}"
            break
    # With both, Python appends the most similar name.
    return AttributeError(message, name=name, obj=found_on)


def unknown_keywords(
    method: str, unknown: Iterable[str], names: Collection[str], *, waits: bool
) -> TypeError:
    """Return the error for keywords that a method does not have. `method` is its qualified name;
    `names`: the parameters that it has; `waits`: whether it is a coroutine function."""
    given = list(unknown)
    answers = (_keyword(method.rpartition(".")[2], name, names, waits) for name in given)
    return TypeError(
        f"{method}() got an unexpected keyword argument{'s' * (len(given) > 1)}"
        f" {', '.join(map(repr, given))}"
        + "".join(f"; {answer}" for answer in dict.fromkeys(answers) if answer)
    )


def _keyword(method: str, name: str, names: Collection[str], waits: bool) -> str | None:
    """Return what to use instead of a keyword; None if there is nothing like it."""
    if answer := _KEYWORDS.get(method, {}).get(name):
        return f"{name} is {answer} here" if answer in names else f"{name}: {answer}"
    if name in names:
        return f"{name} is a positional argument"
    if name in ("timeout", "timeout_ms", "timeout_s", "request_timeout"):
        if "timeout" in names:
            return f"{name} is timeout here, in seconds"
        return f"{name}: call it within anyio.fail_after(seconds)" if waits else None
    from difflib import get_close_matches

    near = get_close_matches(name, names, 1, 0.7)
    return f"did you mean {near[0]}?" if near else None


def unknown_import(module: str, name: str) -> AttributeError | ImportError:
    """Return the error for a name that a module does not have, for its `__getattr__`.

    An import statement replaces an AttributeError by an ImportError of its own; it raises another
    error as it is.
    """
    answer = _replacement(name)
    # Two frames up is the code that uses the name: the frame between is the `__getattr__`.
    if answer is None or not _is_import(sys._getframe(2)):
        message = f"module {module!r} has no attribute {name!r}" + (f"; {answer}" if answer else "")
        return AttributeError(message, name=name, obj=sys.modules[module])
    return ImportError(f"cannot import name {name!r} from {module!r}; {answer}", name=module)


def _is_import(frame: FrameType) -> bool:
    """Return whether a frame executes `from ... import`."""
    from opcode import opmap

    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def _replacement(name: str) -> str | None:
    """Return what to use instead of a name; None if there is nothing like it."""
    ours = _NAMES.get(name, name)
    if " " in ours:  # a sentence
        return ours
    error = f"{name.removesuffix('Exception')}Error"  # the name here of XException and of X
    if found := ours if "." in ours else _path(ours) or _path(error):
        return f"it is {found}"
    # XYError and XYException -> X_Y, as error codes are written.
    words = re.sub("(?<!^)(?=[A-Z])", "_", re.sub("(Error|Exception)$", "", name)).upper()
    code = _CODES.get(name, words)
    if code in import_module("kafkagroup.errors").ErrorCode.__members__:
        if code in _CODES_OF_RECORDS:
            return f"catch NotWrittenError, and compare the code of its why with ErrorCode.{code}"
        return f"catch BrokerError, and compare its code with ErrorCode.{code}"
    return "kafkagroup.errors has all errors" if name.endswith(("Error", "Exception")) else None


_PUBLIC = (
    "admin",
    "assign",
    "broker",
    "coordination",
    "errors",
    "events",
    "testing",
    "types",
    "wire",
)
"""The modules with public names besides `kafkagroup` itself."""


def _path(name: str) -> str | None:
    """Return where users import a name of this package from; None if it is not public."""
    for module in ("kafkagroup", *(f"kafkagroup.{part}" for part in _PUBLIC)):
        if name in import_module(module).__all__:
            return f"{module}.{name}"
    return None

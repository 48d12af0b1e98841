"""Parse a line of a trace into a request. Omitted fields have harmless defaults.

    JoinGroup 9 member=a-1 instance=i protocols=range:m,sticky:n session=30 rebalance=30
    OffsetCommit 9 generation=1 member=a-1 t/0=5:epoch=2:metadata=x

Words are `name=value`; a word with a slash is about a partition, and its value has options after
colons. A word `config.name=value` is an option of topics. Names of topics, groups and members are
the trace's; `Names` maps them to the broker's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import attrs

from kafkagroup.wire.batch_format import (
    ATTRIBUTES_OFFSET,
    CONTROL,
    CRC_OFFSET,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    UINT32,
)
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.crc import crc32c
from kafkagroup.wire.messages import (
    acls,
    admin,
    alter_configs,
    configs,
    delete_records,
    fetch,
    group,
    incremental_alter_configs,
    metadata,
    offsets,
    produce,
    transaction_admin,
    transaction_list,
    transactions,
)
from kafkagroup.wire.schema import NO_ID, Request

__all__ = ["Names", "new_records", "request"]

_NO_PRODUCER = 2**40
"""A producer id that no producer has."""
NO_TOPIC_ID = UUID(int=4)
"""A topic id that no topic has."""

_PLACES = {"latest": -1, "earliest": -2, "max": -3, "local": -4, "tiered": -5, "upload": -6}


@attrs.define(eq=False)
class Names:
    """The names in the trace, and the names at the broker."""

    prefix: str
    """Of the names of this run's topics and groups: a broker is shared by many runs."""
    ids: dict[str, UUID] = attrs.field(factory=dict)
    """Topic, also as "t#1" for the first of that name -> its id."""
    members: dict[str, str] = attrs.field(factory=dict)
    """The trace's member id -> the broker's."""
    sessions: dict[str, int] = attrs.field(factory=dict)
    """The trace's name of a fetch session -> its id."""
    producers: dict[str, int] = attrs.field(factory=dict)
    """The trace's name of a producer id -> the broker's."""

    def topic_id(self, topic: str) -> UUID:
        return self.ids.get(topic, NO_TOPIC_ID)

    def made(self, topic: str, topic_id: UUID) -> None:
        """Record the id of a created topic."""
        count = sum(name.startswith(f"{topic}#") for name in self.ids)
        self.ids[topic] = self.ids[f"{topic}#{count + 1}"] = topic_id

    def member(self, name: str) -> str:
        return self.members.get(name, name)

    def name(self, given: str) -> str:
        """Return the broker's name of a topic or group; None for None."""
        return self.prefix + given if given else ""

    def met(self, member_id: str) -> str:
        """Return the trace's name of a member id, which may be new: client or instance, and a
        number."""
        for ours, theirs in self.members.items():
            if theirs == member_id:
                return ours
        if len(member_id) < 37 or member_id in ("", "?"):
            return member_id
        stem = member_id[:-37]
        count = sum(name.rpartition("-")[0] == stem for name in self.members)
        ours = f"{stem}-{count + 1}"
        self.members[ours] = member_id
        return ours

    def session(self, session_id: int) -> str:
        """Return the trace's name of a fetch session, which may be new."""
        return _named(self.sessions, "s", session_id) if session_id else "0"

    def producer(self, producer_id: int) -> str:
        """Return the trace's name of a producer id, which may be new."""
        return _named(self.producers, "p", producer_id) if producer_id >= 0 else "-1"


def _named(names: dict[str, int], stem: str, number: int) -> str:
    for ours, theirs in names.items():
        if theirs == number:
            return ours
    ours = f"{stem}{len(names) + 1}"
    names[ours] = number
    return ours


Words = dict[str, str]
Partitions = dict[str, dict[int, Words]]


def request(api: str, version: int, words: list[str], names: Names) -> Request[Any]:
    """Return the request of one line. Raises: KeyError for an unknown API."""
    return _MADE[api](_Line(version, words, names))


class _Line:
    """The words of one request."""

    def __init__(self, version: int, words: list[str], names: Names) -> None:
        self.version = version
        self.names = names
        self.words = dict(
            word.partition("=")[::2] for word in words if "/" not in word.split("=")[0]
        )
        self.partitions: Partitions = {}
        for word in words:
            place, _, value = word.partition("=")
            if "/" in place:
                topic, _, number = place.partition("/")
                main, *options = value.split(":")
                found = dict(option.partition("=")[::2] for option in options)
                self.partitions.setdefault(topic, {})[int(number)] = {"": main, **found}

    @property
    def configs(self) -> dict[str, str | None]:
        """The values of words such as `config.retention.ms=1`; `none` is null."""
        named = ((word.partition("."), value) for word, value in self.words.items())
        return {name: _none(value) for (kind, _, name), value in named if kind == "config"}

    def text(self, name: str, default: str = "") -> str:
        return self.words.get(name, default)

    def maybe(self, name: str) -> str | None:
        return self.words.get(name)

    def number(self, name: str, default: int = -1) -> int:
        return int(self.words.get(name, default))

    def ms(self, name: str, default: float = 30.0) -> int:
        return round(float(self.words.get(name, default)) * 1000)

    @property
    def group(self) -> str:
        return self.names.name(self.text("group", "g"))

    @property
    def member(self) -> str:
        return self.names.member(self.text("member"))

    @property
    def transactional_id(self) -> str:
        return self.names.name(self.text("id"))

    @property
    def identity(self) -> dict[str, int]:
        """The producer id and epoch."""
        name = self.text("producer")
        return {
            "producer_id": self.names.producers.get(name, _NO_PRODUCER) if name else -1,
            "producer_epoch": self.number("epoch"),
        }

    def listed(self, name: str) -> list[str]:
        text = self.words.get(name, "")
        return text.split(",") if text else []

    def topic(self, given: str, by_id_from: int) -> dict[str, Any]:
        """Return `name` or `topic_id` of a topic, whichever this version has."""
        if self.version >= by_id_from:
            return {"name": "", "topic_id": self.names.topic_id(given)}
        return {"name": self.names.name(given), "topic_id": NO_ID}


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    return int(options.get(name) or default)


# ---------------------------------------------------------------- membership


def _join(line: _Line) -> group.JoinGroupRequest:
    protocols = [p.partition(":")[::2] for p in line.text("protocols", "range:m").split(",") if p]
    return group.JoinGroupRequest(
        group_id=line.group,
        session_timeout_ms=line.ms("session"),
        rebalance_timeout_ms=line.ms("rebalance") if line.version else -1,
        member_id=line.member,
        group_instance_id=line.maybe("instance"),
        protocol_type=line.text("type", "consumer"),
        protocols=tuple(
            group.JoinGroupRequestProtocol(name=name, metadata=metadata.encode())
            for name, metadata in protocols
        ),
    )


def _sync(line: _Line) -> group.SyncGroupRequest:
    shares = [share.partition(":")[::2] for share in line.listed("assign")]
    new = line.version >= 5
    return group.SyncGroupRequest(
        group_id=line.group,
        generation_id=line.number("generation"),
        member_id=line.member,
        group_instance_id=line.maybe("instance"),
        protocol_type=_none(line.text("type", "consumer")) if new else None,
        protocol_name=_none(line.text("protocol", "range")) if new else None,
        assignments=tuple(
            group.SyncGroupRequestAssignment(
                member_id=line.names.member(member), assignment=share.encode()
            )
            for member, share in shares
        ),
    )


def _none(text: str) -> str | None:
    return None if text == "null" else text


def _heartbeat(line: _Line) -> group.HeartbeatRequest:
    return group.HeartbeatRequest(
        group_id=line.group,
        generation_id=line.number("generation"),
        member_id=line.member,
        group_instance_id=line.maybe("instance"),
    )


def _leave(line: _Line) -> group.LeaveGroupRequest:
    if line.version < 3:
        return group.LeaveGroupRequest(group_id=line.group, member_id=line.member)
    named = [one.partition(":") for one in line.listed("members")]
    return group.LeaveGroupRequest(
        group_id=line.group,
        members=tuple(
            group.MemberIdentity(
                member_id=line.names.member(member), group_instance_id=instance if colon else None
            )
            for member, colon, instance in named
        ),
    )


def _list(line: _Line) -> group.ListGroupsRequest:
    return group.ListGroupsRequest(
        states_filter=tuple(line.listed("states")), types_filter=tuple(line.listed("types"))
    )


def _groups(line: _Line) -> tuple[str, ...]:
    return tuple(line.names.name(name) for name in line.text("groups", "g").split(","))


# ---------------------------------------------------------------- offsets


def _commit(line: _Line) -> offsets.OffsetCommitRequest:
    return offsets.OffsetCommitRequest(
        group_id=line.group,
        generation_id_or_member_epoch=line.number("generation"),
        member_id=line.member,
        group_instance_id=line.maybe("instance"),
        topics=tuple(
            offsets.OffsetCommitRequestTopic(
                **line.topic(topic, 10),
                partitions=tuple(
                    offsets.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=int(options[""]),
                        committed_leader_epoch=_number(options, "epoch", -1),
                        committed_metadata=_none(options.get("metadata", "")),
                    )
                    for index, options in partitions.items()
                ),
            )
            for topic, partitions in line.partitions.items()
        ),
    )


def _offset_fetch(line: _Line) -> offsets.OffsetFetchRequest:
    everything = not line.partitions
    stable = line.text("stable") == "yes"
    if line.version < 8:
        return offsets.OffsetFetchRequest(
            group_id=line.group,
            topics=None
            if everything
            else tuple(
                offsets.OffsetFetchRequestTopic(
                    name=line.names.name(topic), partition_indexes=tuple(partitions)
                )
                for topic, partitions in line.partitions.items()
            ),
            require_stable=stable,
        )
    topics = tuple(
        offsets.OffsetFetchRequestTopics(
            **line.topic(topic, 10), partition_indexes=tuple(partitions)
        )
        for topic, partitions in line.partitions.items()
    )
    return offsets.OffsetFetchRequest(
        groups=tuple(
            offsets.OffsetFetchRequestGroup(
                group_id=name,
                member_id=line.names.member(line.words["member"])
                if "member" in line.words
                else None,
                member_epoch=line.number("epoch"),
                topics=None if everything else topics,
            )
            for name in _groups(line)
        ),
        require_stable=stable,
    )


def _list_offsets(line: _Line) -> offsets.ListOffsetsRequest:
    return offsets.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=line.number("isolation", 0),
        timeout_ms=5000,
        topics=tuple(
            offsets.ListOffsetsTopic(
                name=line.names.name(topic),
                partitions=tuple(
                    offsets.ListOffsetsPartition(
                        partition_index=index,
                        timestamp=_PLACES[o[""]] if o[""] in _PLACES else int(o[""]),
                        current_leader_epoch=_number(o, "epoch", -1),
                    )
                    for index, o in partitions.items()
                ),
            )
            for topic, partitions in line.partitions.items()
        ),
    )


def _epochs(line: _Line) -> offsets.OffsetForLeaderEpochRequest:
    return offsets.OffsetForLeaderEpochRequest(
        replica_id=-1 if line.version >= 3 else -2,
        topics=tuple(
            offsets.OffsetForLeaderTopic(
                topic=line.names.name(topic),
                partitions=tuple(
                    offsets.OffsetForLeaderPartition(
                        partition=index,
                        leader_epoch=int(o[""]),
                        current_leader_epoch=_number(o, "epoch", -1),
                    )
                    for index, o in partitions.items()
                ),
            )
            for topic, partitions in line.partitions.items()
        ),
    )


# ---------------------------------------------------------------- records


def _session(line: _Line) -> int:
    given = line.text("session", "0")
    return line.names.sessions[given] if given.startswith("s") else int(given)


def _fetch(line: _Line) -> fetch.FetchRequest:
    def topic(given: str) -> dict[str, Any]:
        made = line.topic(given, 13)
        return {"topic": made["name"], "topic_id": made["topic_id"]}

    forgotten: dict[str, list[int]] = {}
    for place in line.listed("forget"):
        name, _, number = place.rpartition("-")
        forgotten.setdefault(name, []).append(int(number))
    return fetch.FetchRequest(
        max_wait_ms=line.ms("wait", 0.0),
        min_bytes=line.number("min", 1),
        max_bytes=line.number("max", 1 << 20),
        isolation_level=line.number("isolation", 0),
        session_id=_session(line),
        session_epoch=line.number("turn", -1),
        topics=tuple(
            fetch.FetchTopic(
                **topic(name),
                partitions=tuple(
                    fetch.FetchPartition(
                        partition=index,
                        fetch_offset=int(o[""]),
                        current_leader_epoch=_number(o, "epoch", -1),
                        last_fetched_epoch=_number(o, "last", -1),
                        partition_max_bytes=_number(o, "max", 1 << 20),
                    )
                    for index, o in partitions.items()
                ),
            )
            for name, partitions in line.partitions.items()
        ),
        forgotten_topics_data=tuple(
            fetch.ForgottenTopic(**topic(name), partitions=tuple(numbers))
            for name, numbers in forgotten.items()
        ),
    )


def new_records(values: str, **options: Any) -> bytes:
    """Return a batch of values separated by commas; "k!a" has a key, "a@1500" a timestamp; other
    timestamps count from 1000 ms."""
    made = []
    for count, value in enumerate(values.split(",")):
        text, _, timestamp = value.partition("@")
        key, has_key, text = text.rpartition("!")
        made.append(
            NewRecord(
                key.encode() if has_key else None, text.encode(), int(timestamp or 1000 + count)
            )
        )
    return encode_batch(made, **options)


def _batch(options: Words, names: Names) -> bytes:
    """Return the batch that the options of a partition describe."""
    made: dict[str, Any] = {}
    if "codec" in options:
        made["codec"] = _CODECS[options["codec"]]
    if "producer" in options:
        made |= {
            "producer_id": names.producers.get(options["producer"], _NO_PRODUCER),
            "producer_epoch": _number(options, "epoch", 0),
            "base_sequence": _number(options, "seq", 0),
            "transactional": "txn" in options,
        }
    return _spoilt(options[""], options.get("spoilt", ""), **made)


_CODECS = {codec.name.lower(): codec for codec in Codec if codec is not Codec.NONE}
_FLAGS = {"appended": LOG_APPEND_TIME, "transactional": TRANSACTIONAL, "control": CONTROL}


def _spoilt(values: str, how: str, **options: Any) -> bytes:
    """Return a batch that is invalid in one way; a valid one if `how` is empty."""
    batch = bytearray(new_records(values, **options))
    if how == "twice":
        return bytes(batch) * 2
    if how in _CODECS:
        batch = bytearray(new_records(values, codec=_CODECS[how]))
        batch[HEADER_SIZE + 9 : HEADER_SIZE + 19] = b"\xff" * 10
        return _sealed(batch)
    if how in _FLAGS:
        batch[ATTRIBUTES_OFFSET + 1] |= _FLAGS[how]
        return _sealed(batch)
    match how:
        case "crc":
            batch[-1] ^= 1
        case "magic":
            batch[16] = 1
        case "short":
            del batch[-3:]
        case "count":
            batch[60] += 1
        case "fewer":
            batch[60] -= 1
            return _sealed(batch)
        case "less":
            batch[60] -= 1
            batch[26] -= 1
            return _sealed(batch)
        case "length":
            batch[HEADER_SIZE] = 0x7E
            return _sealed(batch)
        case "offset":
            batch[7] = 5
        case "huge":
            batch = bytearray(new_records("x" * 2_000_000))
        case "empty":
            batch.clear()
        case "":
            pass
        case _:
            raise KeyError(how)
    return bytes(batch)


def _sealed(batch: bytearray) -> bytes:
    """Return the batch with the CRC of its contents."""
    UINT32.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))
    return bytes(batch)


def _produce(line: _Line) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        transactional_id=line.transactional_id or None,
        acks=line.number("acks", -1),
        timeout_ms=5000,
        topic_data=tuple(
            produce.TopicProduceData(
                **line.topic(topic, 13),
                partition_data=tuple(
                    produce.PartitionProduceData(index=index, records=_batch(o, line.names))
                    for index, o in partitions.items()
                ),
            )
            for topic, partitions in line.partitions.items()
        ),
    )


# ---------------------------------------------------------------- transactions


def _init_producer_id(line: _Line) -> transactions.InitProducerIdRequest:
    return transactions.InitProducerIdRequest(
        transactional_id=line.transactional_id if "id" in line.words else None,
        transaction_timeout_ms=line.ms("timeout"),
        **line.identity,
    )


def _add_partitions(line: _Line) -> transactions.AddPartitionsToTxnRequest:
    topics = tuple(
        transactions.AddPartitionsToTxnTopic(
            name=line.names.name(topic), partitions=tuple(partitions)
        )
        for topic, partitions in line.partitions.items()
    )
    if line.version < 4:
        return transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=line.transactional_id,
            v3_and_below_producer_id=line.identity["producer_id"],
            v3_and_below_producer_epoch=line.identity["producer_epoch"],
            v3_and_below_topics=topics,
        )
    return transactions.AddPartitionsToTxnRequest(
        transactions=(
            transactions.AddPartitionsToTxnTransaction(
                transactional_id=line.transactional_id,
                verify_only=line.text("only") == "verify",
                topics=topics,
                **line.identity,
            ),
        )
    )


def _add_offsets(line: _Line) -> transactions.AddOffsetsToTxnRequest:
    return transactions.AddOffsetsToTxnRequest(
        transactional_id=line.transactional_id, group_id=line.group, **line.identity
    )


def _end(line: _Line) -> transactions.EndTxnRequest:
    return transactions.EndTxnRequest(
        transactional_id=line.transactional_id,
        committed=line.text("commit") == "yes",
        **line.identity,
    )


def _list_transactions(line: _Line) -> transaction_list.ListTransactionsRequest:
    pattern = line.maybe("pattern")
    producers = [line.names.producers.get(name, _NO_PRODUCER) for name in line.listed("producers")]
    return transaction_list.ListTransactionsRequest(
        state_filters=tuple(line.listed("states")),
        producer_id_filters=tuple(producers),
        duration_filter=line.ms("longer") if "longer" in line.words else -1,
        transactional_id_pattern=None if pattern is None else line.names.name(pattern),
    )


def _describe_transactions(line: _Line) -> transaction_admin.DescribeTransactionsRequest:
    ids = line.text("ids", "tx").split(",")
    return transaction_admin.DescribeTransactionsRequest(
        transactional_ids=tuple(line.names.name(one) if one else "" for one in ids)
    )


def _describe_producers(line: _Line) -> transaction_admin.DescribeProducersRequest:
    return transaction_admin.DescribeProducersRequest(
        topics=tuple(
            transaction_admin.TopicRequest(
                name=line.names.name(topic), partition_indexes=tuple(partitions)
            )
            for topic, partitions in line.partitions.items()
        )
    )


def _write_markers(line: _Line) -> transaction_admin.WriteTxnMarkersRequest:
    marker = transaction_admin.WritableTxnMarker(
        transaction_result=line.text("commit") == "yes",
        topics=tuple(
            transaction_admin.WritableTxnMarkerTopic(
                name=line.names.name(topic), partition_indexes=tuple(partitions)
            )
            for topic, partitions in line.partitions.items()
        ),
        coordinator_epoch=line.number("coordinator", 0),
        transaction_version=line.number("version", 0),
        **line.identity,
    )
    return transaction_admin.WriteTxnMarkersRequest(markers=(marker,))


def _commit_in_transaction(line: _Line) -> transactions.TxnOffsetCommitRequest:
    return transactions.TxnOffsetCommitRequest(
        transactional_id=line.transactional_id,
        group_id=line.group,
        generation_id=line.number("generation"),
        member_id=line.member,
        group_instance_id=line.maybe("instance"),
        topics=tuple(
            transactions.TxnOffsetCommitRequestTopic(
                name=line.names.name(topic),
                partitions=tuple(
                    transactions.TxnOffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=int(options[""]),
                        committed_leader_epoch=_number(options, "epoch", -1),
                        committed_metadata=_none(options.get("metadata", "")),
                    )
                    for index, options in partitions.items()
                ),
            )
            for topic, partitions in line.partitions.items()
        ),
        **line.identity,
    )


# ---------------------------------------------------------------- the cluster


def _metadata(line: _Line) -> metadata.MetadataRequest:
    names = [
        metadata.MetadataRequestTopic(name=line.names.name(name)) for name in line.listed("topics")
    ]
    ids = [
        metadata.MetadataRequestTopic(name=None, topic_id=line.names.topic_id(name))
        for name in line.listed("ids")
    ]
    return metadata.MetadataRequest(
        topics=(*names, *ids), allow_auto_topic_creation=line.version < 4
    )


def _find(line: _Line) -> metadata.FindCoordinatorRequest:
    kind = line.number("type", 0)
    if line.version < 4:
        return metadata.FindCoordinatorRequest(key=line.group, key_type=kind)
    return metadata.FindCoordinatorRequest(coordinator_keys=_groups(line), key_type=kind)


def _create(line: _Line) -> admin.CreateTopicsRequest:
    assigned = line.listed("assigned")
    return admin.CreateTopicsRequest(
        topics=tuple(
            admin.CreatableTopic(
                name=line.names.name(name),
                num_partitions=-1 if assigned else line.number("partitions", 1),
                replication_factor=-1 if assigned else line.number("copies", 1),
                assignments=tuple(
                    admin.CreatableReplicaAssignment(
                        partition_index=index, broker_ids=tuple(map(int, nodes.split("+")))
                    )
                    for index, nodes in enumerate(assigned)
                ),
                configs=tuple(
                    admin.CreatableTopicConfig(name=option, value=value)
                    for option, value in line.configs.items()
                ),
            )
            for name in line.listed("topics")
        ),
        validate_only=line.text("only") == "validate",
    )


def _delete(line: _Line) -> admin.DeleteTopicsRequest:
    if line.version < 6:
        named = tuple(line.names.name(name) for name in line.listed("topics"))
        return admin.DeleteTopicsRequest(topic_names=named, timeout_ms=5000)
    return admin.DeleteTopicsRequest(
        topics=(
            *(admin.DeleteTopicState(name=line.names.name(n)) for n in line.listed("topics")),
            *(
                admin.DeleteTopicState(name=None, topic_id=line.names.topic_id(n))
                for n in line.listed("ids")
            ),
        ),
        timeout_ms=5000,
    )


def _resources(line: _Line) -> list[tuple[int, str]]:
    """Return the resources whose options a request is about: type and name."""
    named = [(configs.TOPIC, line.names.name(name)) for name in line.listed("topics")]
    named += [(configs.BROKER, name) for name in line.listed("brokers")]
    return named + [(int(kind), "") for kind in line.listed("types")]


def _describe_configs(line: _Line) -> configs.DescribeConfigsRequest:
    return configs.DescribeConfigsRequest(
        resources=tuple(
            configs.DescribeConfigsResource(
                resource_type=kind,
                resource_name=name,
                configuration_keys=tuple(line.listed("keys")) if "keys" in line.words else None,
            )
            for kind, name in _resources(line)
        ),
        include_synonyms="synonyms" in line.words,
    )


def _alter_configs(line: _Line) -> alter_configs.AlterConfigsRequest:
    return alter_configs.AlterConfigsRequest(
        resources=tuple(
            alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    alter_configs.AlterableConfig(name=option, value=value)
                    for option, value in line.configs.items()
                ),
            )
            for kind, name in _resources(line)
        ),
        validate_only=line.text("only") == "validate",
    )


def _alter_incrementally(
    line: _Line,
) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    operations = {each.name.lower(): each for each in incremental_alter_configs.ConfigOperation}
    changes = tuple(
        incremental_alter_configs.AlterableConfig(
            name=word.partition(".")[2],
            config_operation=operations.get(word.partition(".")[0], 9),
            value=_none(value),
        )
        for word, value in line.words.items()
        if word.partition(".")[0] in {*operations, "unknown"}
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=tuple(
            incremental_alter_configs.AlterConfigsResource(
                resource_type=kind, resource_name=name, configs=changes
            )
            for kind, name in _resources(line)
        ),
        validate_only=line.text("only") == "validate",
    )


def _delete_records(line: _Line) -> delete_records.DeleteRecordsRequest:
    return delete_records.DeleteRecordsRequest(
        topics=tuple(
            delete_records.DeleteRecordsTopic(
                name=line.names.name(topic),
                partitions=tuple(
                    delete_records.DeleteRecordsPartition(
                        partition_index=index, offset=int(options[""])
                    )
                    for index, options in partitions.items()
                ),
            )
            for topic, partitions in line.partitions.items()
        ),
        timeout_ms=5000,
    )


_ANY = 1
"""The type of resource, pattern, operation or permission that means any."""


def _describe_acls(_: _Line) -> acls.DescribeAclsRequest:
    return acls.DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )


def _add_topic_partitions(line: _Line) -> admin.CreatePartitionsRequest:
    return admin.CreatePartitionsRequest(
        topics=tuple(
            admin.CreatePartitionsTopic(
                name=line.names.name(name), count=line.number("count"), assignments=None
            )
            for name in line.listed("topics")
        ),
        timeout_ms=5000,
        validate_only=line.text("only") == "validate",
    )


_MADE: Mapping[str, Callable[[_Line], Request[Any]]] = {
    "AddOffsetsToTxn": _add_offsets,
    "AddPartitionsToTxn": _add_partitions,
    "AlterConfigs": _alter_configs,
    "CreatePartitions": _add_topic_partitions,
    "CreateTopics": _create,
    "DeleteGroups": lambda line: group.DeleteGroupsRequest(groups_names=_groups(line)),
    "DeleteRecords": _delete_records,
    "DeleteTopics": _delete,
    "DescribeAcls": _describe_acls,
    "DescribeConfigs": _describe_configs,
    "DescribeGroups": lambda line: group.DescribeGroupsRequest(groups=_groups(line)),
    "DescribeProducers": _describe_producers,
    "DescribeTransactions": _describe_transactions,
    "EndTxn": _end,
    "Fetch": _fetch,
    "FindCoordinator": _find,
    "Heartbeat": _heartbeat,
    "IncrementalAlterConfigs": _alter_incrementally,
    "InitProducerId": _init_producer_id,
    "JoinGroup": _join,
    "LeaveGroup": _leave,
    "ListGroups": _list,
    "ListOffsets": _list_offsets,
    "ListTransactions": _list_transactions,
    "Metadata": _metadata,
    "OffsetCommit": _commit,
    "OffsetFetch": _offset_fetch,
    "OffsetForLeaderEpoch": _epochs,
    "Produce": _produce,
    "SyncGroup": _sync,
    "TxnOffsetCommit": _commit_in_transaction,
    "WriteTxnMarkers": _write_markers,
}

"""Lists and describes transactions and producers, and aborts a transaction that hangs (KIP-664).

A coordinator knows its transactional ids, and a partition its producer ids. A transaction hangs if
a partition has it open and no coordinator knows it, so that nothing ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from kafkagroup.admin.listing import list_everywhere, request_list
from kafkagroup.admin.spec import topics_metadata
from kafkagroup.admin.transaction_values import (
    OpenTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionList,
    TransactionListing,
    TransactionState,
)
from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    IllegalStateError,
    KafkaGroupError,
    RemoteProtocolError,
    broker_error,
)
from kafkagroup.runtime.client.calls import ChangeAttempts, RetriedCalls
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.coordinators import CoordinatorType
from kafkagroup.transport.metadata import ClusterMetadata, Node
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import ABSENT
from kafkagroup.wire.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ProducerState,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkagroup.wire.messages.transaction_list import ListTransactionsRequest

__all__ = [
    "abort",
    "describe",
    "describe_producers",
    "list_transactions",
    "open_transactions",
    "require_hanging",
]

_OPEN_STATES = tuple(state.value for state in TransactionState if state.is_open)


async def list_transactions(
    calls: RetriedCalls,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    open_longer_than: timedelta | None = None,
    pattern: str | None = None,
) -> TransactionList:
    """Implement `Admin.list_transactions`."""
    filters = tuple(states)
    if open_longer_than is not None:
        # Brokers compare only when the last transaction began, even if it has ended: ask for those
        # that are open.
        filters = tuple(state for state in _OPEN_STATES if not filters or state in filters)
        if not filters:
            return TransactionList(transactions=())
    duration_ms = -1 if open_longer_than is None else open_longer_than // timedelta(milliseconds=1)
    request = ListTransactionsRequest(
        state_filters=filters,
        producer_id_filters=tuple(producer_ids),
        duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )

    async def list_from(cluster: Cluster, node: Node) -> list[TransactionListing]:
        return await _list(cluster.broker(node), node, request)

    found, errors = await list_everywhere(calls, list_from, attrgetter("transactional_id"))
    return TransactionList(transactions=found, errors=errors)


async def _list(
    broker: BrokerClient, node: Node, request: ListTransactionsRequest
) -> list[TransactionListing]:
    # Filters by duration need Kafka 3.8 (KIP-994), those by pattern 4.1 (KIP-1152).
    response = await request_list(broker, request, "listing transactions")
    return [
        TransactionListing(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            state=TransactionState(one.transaction_state),
            coordinator=node,
        )
        for one in response.transaction_states
    ]


async def describe(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """Return the description of a transactional id. Raises: BrokerError; RemoteProtocolError;
    TransportError."""
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    async with cluster.coordinator(transactional_id, CoordinatorType.TRANSACTION) as broker:
        response = await broker.request(request)
        for one in response.transaction_states:
            if one.transactional_id != transactional_id:
                continue
            if one.error_code:
                what = f"describing transactional id {transactional_id!r}"
                raise broker_error(
                    one.error_code,
                    what,
                    operation="DESCRIBE",
                    transactional_id=transactional_id,
                )
            state = TransactionState(one.transaction_state)
            return TransactionDescription(
                transactional_id=transactional_id,
                state=state,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                timeout=one.transaction_timeout_ms / 1000,
                started_at=_moment(one.transaction_start_time_ms) if state.is_open else None,
                partitions=tuple(
                    sorted(
                        TopicPartition(topic.topic, partition)
                        for topic in one.topics
                        for partition in topic.partitions
                    )
                ),
                coordinator=Node(broker.node_id, broker.host, broker.port),
            )
    raise RemoteProtocolError(f"the coordinator did not answer for {transactional_id!r}")


async def describe_producers(
    calls: RetriedCalls, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaGroupError]:
    """Implement `Admin.describe_producers`."""
    wanted = tuple(partitions)

    async def read_metadata(cluster: Cluster, topic: str) -> ClusterMetadata:
        return await topics_metadata(cluster, [topic])

    read = await calls.each((tp.topic for tp in wanted), read_metadata)
    known = {name: one for name, one in read.items() if isinstance(one, ClusterMetadata)}

    async def describe_one(cluster: Cluster, tp: TopicPartition) -> tuple[ProducerDescription, ...]:
        # Keep the metadata for other partitions only if the request succeeds: after a failure the
        # leader may have moved, and the next attempt reads the metadata again.
        metadata = known.pop(tp.topic, None) or await topics_metadata(cluster, [tp.topic])
        producers = await _producers(cluster, tp, metadata)
        known[tp.topic] = metadata
        return producers

    return await calls.each(wanted, describe_one, final=ABSENT)


async def _producers(
    cluster: Cluster, tp: TopicPartition, metadata: ClusterMetadata
) -> tuple[ProducerDescription, ...]:
    """Return the producers that the leader of a partition knows, sorted by producer id. Raises:
    BrokerError; RemoteProtocolError; TransportError."""
    request = DescribeProducersRequest(
        topics=(TopicRequest(name=tp.topic, partition_indexes=(tp.partition,)),)
    )
    response = await _leader(cluster, tp, metadata).request(request)
    for topic in response.topics:
        for data in topic.partitions:
            if (topic.name, data.partition_index) == tp:
                what = data.error_message or f"describing the producers of {tp}"
                _raise_if_error(data.error_code, what, "READ", tp)
                return tuple(
                    sorted(map(_producer, data.active_producers), key=lambda one: one.producer_id)
                )
    raise RemoteProtocolError(f"the leader did not answer for {tp}")


def _producer(state: ProducerState) -> ProducerDescription:
    start = state.current_txn_start_offset
    return ProducerDescription(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_written_at=_moment(state.last_timestamp),
        coordinator_epoch=state.coordinator_epoch,
        transaction_start_offset=None if start < 0 else start,
    )


async def open_transactions(
    calls: RetriedCalls, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[OpenTransaction, ...] | KafkaGroupError]:
    """Implement `Admin.open_transactions`."""
    described = await describe_producers(calls, partitions)
    in_transaction = {
        tp: tuple(one for one in producers if one.transaction_start_offset is not None)
        for tp, producers in described.items()
        if not isinstance(producers, KafkaGroupError)
    }
    producer_ids = sorted({one.producer_id for found in in_transaction.values() for one in found})
    known = await _by_producer_id(calls, producer_ids) if producer_ids else {}

    def with_coordinator(tp: TopicPartition, one: ProducerDescription) -> OpenTransaction:
        assert one.transaction_start_offset is not None
        return OpenTransaction(
            partition=tp,
            producer=one,
            start_offset=one.transaction_start_offset,
            transaction=known.get(one.producer_id),
        )

    opened = {
        tp: [with_coordinator(tp, one) for one in producers]
        for tp, producers in in_transaction.items()
    }
    # Ask again about transactions that seem to hang. One that was ended between the requests does,
    # but is not open any more: an abort might hit the next transaction of its producer.
    doubted = [tp for tp, found in opened.items() if any(one.is_hanging for one in found)]
    again = await describe_producers(calls, doubted)
    still_open = {
        (tp, one.producer_id, one.transaction_start_offset)
        for tp, producers in again.items()
        if not isinstance(producers, KafkaGroupError)
        for one in producers
    }
    results: dict[TopicPartition, tuple[OpenTransaction, ...] | KafkaGroupError] = {}
    for tp, producers in (described | again).items():
        if isinstance(producers, KafkaGroupError):
            results[tp] = producers
        else:
            found = [
                one
                for one in opened[tp]
                if not one.is_hanging
                or (tp, one.producer.producer_id, one.start_offset) in still_open
            ]
            results[tp] = tuple(sorted(found, key=lambda one: one.start_offset))
    return results


async def _by_producer_id(
    calls: RetriedCalls, producer_ids: Sequence[int]
) -> dict[int, TransactionDescription]:
    """Return producer id -> the description of the transactional id that has it. Raises: the first
    error, because without the response of a coordinator its transactions would seem to hang."""
    listed = await list_transactions(calls, producer_ids=producer_ids)
    for error in listed.errors.values():
        raise error
    names = [one.transactional_id for one in listed.transactions]
    described = await calls.each(names, describe)
    found = {}
    for description in described.values():
        if not isinstance(description, KafkaGroupError):
            found[description.producer_id] = description
        # Only a BrokerError has a code. An id that is not found has expired since it was listed.
        elif getattr(description, "code", None) != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise description
    return found


def require_hanging(
    opened: Iterable[OpenTransaction], tp: TopicPartition, start_offset: int, *, force: bool
) -> OpenTransaction:
    """Return the open transaction of a partition that begins at this offset. Raises:
    IllegalStateError if there is none; without `force`, also if its coordinator will end it."""
    opened = tuple(opened)
    found = next((one for one in opened if one.start_offset == start_offset), None)
    if found is None:
        starts = ", ".join(str(one.start_offset) for one in opened)
        others = f"the open ones begin at {starts}" if starts else "it has no open transaction"
        raise IllegalStateError(f"{tp} has no transaction that begins at {start_offset}; {others}")
    if (known := found.transaction) is not None and not found.is_hanging and not force:
        raise IllegalStateError(
            f"the transaction at offset {start_offset} of {tp} does not hang: it is"
            f" {known.state.value} under transactional id {known.transactional_id!r}, and its"
            f" coordinator ends it within {known.timeout:g} s of its start. Aborted in one"
            " partition, it may still be committed in others; force=True aborts it all the same"
        )
    return found


async def abort(cluster: Cluster, opened: OpenTransaction, attempts: ChangeAttempts) -> None:
    """Write the marker that aborts a transaction in its partition. Raises: BrokerError;
    RemoteProtocolError; TransportError."""
    tp, producer = opened.partition, opened.producer
    metadata = await topics_metadata(cluster, [tp.topic])
    if attempts.is_lost:
        # If the lost attempt has written the marker, the transaction is not open any more, and the
        # producer may have begun another one.
        producers = await _producers(cluster, tp, metadata)
        if not any(
            (one.producer_id, one.transaction_start_offset)
            == (producer.producer_id, opened.start_offset)
            for one in producers
        ):
            return
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=tp.topic, partition_indexes=(tp.partition,)),),
        # Before its first marker the partition reports -1, which is no epoch. Epoch 0 is not above
        # that of any coordinator.
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    leader = _leader(cluster, tp, metadata)
    response = await attempts.send(leader, WriteTxnMarkersRequest(markers=(marker,)))
    for one in response.markers:
        for topic in one.topics:
            for result in topic.partitions:
                if (one.producer_id, topic.name, result.partition_index) == (
                    producer.producer_id,
                    *tp,
                ):
                    what = f"aborting the transaction at offset {opened.start_offset} of {tp}"
                    _raise_if_error(result.error_code, what, "ALTER", tp)
                    return
    raise RemoteProtocolError(f"the leader did not answer for {tp}")


def _leader(cluster: Cluster, tp: TopicPartition, metadata: ClusterMetadata) -> BrokerClient:
    """Return the client of a partition's leader. Raises: BrokerError."""
    if not 0 <= tp.partition < metadata.partition_counts([tp.topic]).get(tp.topic, 0):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")
    node = metadata.leader_node(tp)
    if node is None:
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
    return cluster.broker(node)


def _raise_if_error(code: int, what: str, operation: str, tp: TopicPartition) -> None:
    if code:
        raise broker_error(code, what, operation=operation, topic=tp.topic)


def _moment(timestamp_ms: int) -> datetime | None:
    """Return a time; None for -1, and for a time that `datetime` cannot represent."""
    try:
        return None if timestamp_ms < 0 else datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None

"""Read by type checkers and never run: the types that arrive in the application's loop.

`assert_type` states what passes. A line that must fail ends with `# error`; every other must not.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, assert_type

from kafkagroup import (
    Batch,
    Consumer,
    DeserializationError,
    OffsetAndMetadata,
    Record,
    TopicPartition,
)


@dataclass
class Order:
    total: int


def order(data: bytes) -> Order:
    return Order(**json.loads(data))


async def looked_up(data: bytes) -> Order:
    return order(data)


def order_or_none(data: bytes) -> Order | None:
    return order(data) if data else None


class Registry:
    async def __call__(self, data: bytes) -> Order:
        return order(data)

    async def decode(self, data: bytes) -> Order:
        return order(data)

    def plain(self, data: bytes) -> Order:
        return order(data)


async def looked_up_in(subject: str, data: bytes) -> Order:
    return order(data)


async def without_deserializers() -> None:
    async with Consumer("orders", group_id="billing") as consumer:
        assert_type(consumer, Consumer[bytes | None, bytes | None])
        async for record in consumer:
            assert_type(record.key, bytes | None)
            assert_type(record.value, bytes | None)
            record.value.decode()  # error
        async for batch in consumer.batches():
            assert_type(batch.records[0].value, bytes | None)


async def with_deserializers() -> None:
    consumer = Consumer("orders", key_deserializer=bytes.decode, value_deserializer=order)
    assert_type(consumer, Consumer[str, Order])
    async for record in consumer:
        assert_type(record, Record[str, Order])
        assert_type(record.key, str)
        assert_type(record.value, Order)
        assert_type(record.value.total, int)
        print(record.value.totl)  # error
        print(record.value + 1)  # error
    assert_type(await consumer.getone(), Record[str, Order])
    assert_type(await anext(consumer), Record[str, Order])
    assert_type(await consumer.getmany(), dict[TopicPartition, list[Record[str, Order]]])
    async for batch in consumer.batches(100):
        assert_type(batch, Batch[str, Order])
        assert_type(batch.records, tuple[Record[str, Order], ...])
        for record in batch:
            assert_type(record.value, Order)


def one_deserializer() -> None:
    assert_type(Consumer("t", value_deserializer=order), Consumer[bytes | None, Order])
    assert_type(Consumer("t", key_deserializer=int), Consumer[int, bytes | None])


def coroutine_functions() -> None:
    registry = Registry()
    assert_type(Consumer("t", value_deserializer=looked_up), Consumer[bytes | None, Order])
    assert_type(Consumer("t", value_deserializer=registry), Consumer[bytes | None, Order])
    assert_type(Consumer("t", value_deserializer=registry.decode), Consumer[bytes | None, Order])
    assert_type(Consumer("t", value_deserializer=registry.plain), Consumer[bytes | None, Order])
    in_subject = partial(looked_up_in, "orders-value")
    assert_type(Consumer("t", value_deserializer=in_subject), Consumer[bytes | None, Order])
    both = Consumer("t", key_deserializer=looked_up, value_deserializer=bytes.decode)
    assert_type(both, Consumer[Order, str])


def other_deserializers(given: Any, perhaps: Any | None) -> None:
    assert_type(Consumer("t", value_deserializer=json.loads), Consumer[bytes | None, Any])
    assert_type(
        Consumer("t", value_deserializer=order_or_none), Consumer[bytes | None, Order | None]
    )
    assert_type(
        Consumer("t", value_deserializer=lambda data: len(data)), Consumer[bytes | None, int]
    )
    Consumer("t", value_deserializer=given, key_deserializer=perhaps)


def of_text(data: str) -> Order:
    return Order(len(data))


def options() -> None:
    Consumer("t", grop_id="billing")  # error
    Consumer("t", max_poll_records=10)  # error
    Consumer("t", enable_auto_commit="false")  # error
    Consumer("t", value_deserializer=of_text)  # error
    Consumer("t", value_deserializer=3)  # error
    Consumer("t", auto_offset_reset="smallest")  # error
    wrong: Consumer[str, str] = Consumer("t", key_deserializer=int)  # error
    print(wrong)


async def shapes_of_calls(consumer: Consumer[str, Order], tp: TopicPartition) -> None:
    """One partition or topic, several, or a collection of them: each call takes all of these."""
    Consumer(["t"])
    Consumer("t", ["u", "v"])
    await consumer.subscribe("t", "u")
    await consumer.subscribe(["t", "u"])
    await consumer.assign([tp])
    await consumer.assign(tp)
    consumer.pause(tp)
    consumer.pause([tp])
    consumer.pause(("t", 0), tp)
    consumer.resume({tp})
    offsets = dict[TopicPartition, OffsetAndMetadata | None]
    assert_type(await consumer.committed(tp), offsets)
    assert_type(await consumer.committed([tp]), offsets)
    assert_type(await consumer.committed(), offsets)
    assert_type(await consumer.position(tp), int)
    consumer.seek(tp, 5)
    consumer.seek(("t", 0), 5)
    consumer.seek("t", 5)  # error
    consumer.seek("t", 0, 5)  # error
    consumer.pause(0)  # error
    Consumer(3)  # error


def general(
    record: Record[object, object], orders: Iterable[Record[str | None, Order | None]]
) -> None:
    """A record of something is one of anything more general: its key and value do not change."""


def handed_on(record: Record[str, Order], batch: Batch[str, Order]) -> None:
    general(record, batch)
    raw: Record = record  # error
    print(raw)


async def values(consumer: Consumer[str, Order]) -> AsyncIterator[Order]:
    async for record in consumer:
        yield record.value


# ---------------------------------------------------------------- callbacks


def with_list(partitions: list[TopicPartition]) -> None: ...


def with_sequence(partitions: Sequence[TopicPartition]) -> None: ...


def with_collection(partitions: Collection[TopicPartition]) -> None: ...


def with_iterable(partitions: Iterable[TopicPartition]) -> None: ...


async def where_to_start(partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
    return dict.fromkeys(partitions, 0)


def with_names(partitions: list[str]) -> None: ...


def callbacks() -> None:
    gone: list[object] = []
    Consumer("t", on_partitions_assigned=with_list, on_partitions_revoked=with_sequence)
    Consumer("t", on_partitions_assigned=with_collection, on_partitions_lost=with_iterable)
    Consumer("t", on_partitions_assigned=where_to_start, on_partitions_lost=gone.append)
    Consumer("t", on_partitions_assigned=lambda partitions: print(partitions[0].topic))
    Consumer("t", on_partitions_revoked=with_names)  # error


# ---------------------------------------------------------------- errors of deserializers


def aside(record: Record, error: DeserializationError) -> None:
    assert_type(record.value, bytes | None)
    assert_type(error.record.value, bytes | None)


async def empty(record: Record, error: DeserializationError) -> Record[Any, Order]:
    return record._replace(value=Order(0))


async def sometimes(record: Record, error: DeserializationError) -> Record[Any, Any] | None:
    return None


def short(record: Record) -> None: ...


policy: Literal["raise", "skip"] = "skip"


def error_policies() -> None:
    assert_type(
        Consumer("t", value_deserializer=order, on_deserialization_error=aside),
        Consumer[bytes | None, Order],
    )
    assert_type(
        Consumer("t", value_deserializer=looked_up, on_deserialization_error=empty),
        Consumer[bytes | None, Order],
    )
    Consumer("t", value_deserializer=order, on_deserialization_error=sometimes)
    Consumer("t", value_deserializer=order, on_deserialization_error=policy)
    Consumer("t", value_deserializer=order, on_deserialization_error="ignore")  # error
    Consumer("t", value_deserializer=order, on_deserialization_error=short)  # error

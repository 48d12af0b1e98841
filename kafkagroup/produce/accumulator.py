"""The records that a producer has accepted, until they end, in batches by partition. A record ends
when it is acknowledged, or has failed.

Compiled where possible, with the types in `accumulator.pxd`: `add` runs for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

from kafkagroup._timestamps import check_timestamp
from kafkagroup._topics import LEGAL_NAME_RULE, is_legal_name
from kafkagroup.callbacks import Partitioner
from kafkagroup.errors import BufferFullError, ConfigurationError, KafkaGroupError
from kafkagroup.produce.batch import ProduceBatch, UnplacedRecords
from kafkagroup.produce.identity import Identities
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.produce.topic_queues import TopicQueues
from kafkagroup.types import Headers, TopicPartition
from kafkagroup.wire.batch_format import HEADER_SIZE
from kafkagroup.wire.batch_writing import EncodedRecords

__all__ = ["Accumulator", "check_topic", "read_headers"]

_RECORD_OVERHEAD = 48
"""Bytes that count for each record besides its key, value and headers: encoding adds no more."""


class Accumulator:
    """All queues of one producer, and the memory that their records take."""

    def __init__(
        self,
        *,
        batch_size: int,
        max_request_size: int,
        buffer_memory: int,
        delivery_timeout: float,
        max_in_flight: int,
        identities: Identities | None,
        partitioner: Partitioner | None,
        clock: Callable[[], float],
        wall_clock_ns: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        """Sizes are in bytes, the timeout in seconds. `max_in_flight`: the limit of batches of one
        partition in flight. `identities`: None for a producer that is not idempotent.
        `partitioner`: None for that of Java's producer. `clock`: returns the loop's time;
        `wall_clock_ns`: the nanoseconds since 1970. `random`: returns a number from 0.0 to 1.0."""
        self.used = 0
        """The bytes of the records that have not ended."""
        self.limit = buffer_memory
        self.max_record = max_request_size
        """The limit of the bytes of one record together with the header of a batch."""
        self.topics: dict[str, TopicQueues] = {}
        self.on_unplaced: Callable[[TopicQueues], None] = lambda _: None
        """Called when the first record of a topic begins to wait for the number of partitions."""
        self.on_open: Callable[[PartitionQueue], None] = lambda _: None
        """Called when a queue begins a batch, and so has closed the one before."""
        self.on_begin: Callable[[], None] = lambda: None
        """Called before a record begins a batch, or begins to wait for the number of partitions. It
        may raise: then the record is not accepted."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when there is no room for records: by `add`, and by `place` if the records that it
        has placed leave none."""
        self._needed = _RECORD_OVERHEAD
        """The bytes of the last record or encoded batch that there was no room for."""
        self._batch_limit = min(batch_size, max_request_size - HEADER_SIZE)
        self._delivery_timeout = delivery_timeout
        self._max_in_flight = max_in_flight
        self._identities = identities
        self._partitioner = partitioner
        self.clock = clock
        """Returns the loop's time."""
        self._wall_clock_ns = wall_clock_ns
        self._random = random

    def add(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        headers: Headers,
        timestamp: int | None,
    ) -> ProduceBatch:
        """Accept a record; return its batch, of which it is the last one. `timestamp` in ms; None:
        now.

        Raises: BufferFullError; ConfigurationError for a topic, key, value, headers or timestamp
        that are not valid, a record that is too large, and a partition that does not exist; what
        the partitioner raises. While the number of partitions is not known, a partition that does
        not exist and the partitioner's error fail the record later, in `place`.
        """
        if timestamp is None:
            ns = self._wall_clock_ns()
            ms = ns // 1_000_000
        else:
            check_timestamp(timestamp)
            ms = timestamp
        if key is not None and type(key) is not bytes:
            key = _bytes("key", key)
        if value is not None and type(value) is not bytes:
            value = _bytes("value", value)
        size = _RECORD_OVERHEAD
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        # No check whether `headers` is empty: an array would raise.
        if headers if type(headers) is tuple else headers is not None:
            headers = read_headers(headers)
            for name, content in headers:
                # The name and the content each have a length of up to 5 bytes before them.
                size += len(name.encode(errors="surrogateescape")) + 10
                if content is not None:
                    size += len(content)
        if size + HEADER_SIZE > self.max_record:
            raise ConfigurationError(
                f"a record of {size + HEADER_SIZE} bytes, as it is sent, is larger than"
                f" max_request_size={self.max_record}"
            )
        if self.used + size > self.limit:
            if size > self.limit:
                raise ConfigurationError(
                    f"a record of {size} bytes is larger than buffer_memory={self.limit}"
                )
            self._needed = size
            self.on_full()
            raise BufferFullError(
                f"buffer_memory={self.limit} bytes are used up by records that were not"
                " acknowledged yet; await ready(), or send()"
            )
        if type(topic) is not str:
            check_topic(topic)  # before the look-up, which an unhashable object would fail
        queues = self.topics.get(topic)
        if queues is None:
            queues = self.topic(topic)
        batch: ProduceBatch
        if not queues.queues:
            batch = self._wait_for_partitions(queues, partition, key, value, headers, ms, size)
        else:
            queue = queues.choose(key, size) if partition is None else queues.queue(partition)
            batch = self._append(queue, key, value, headers, ms, size, -1.0)
        self.used += size
        return batch

    def add_encoded(self, topic: str, partition: int, encoded: EncodedRecords) -> None:
        """Accept records that are encoded already, as one batch: for `partition`, or if that is -1,
        for one that is drawn. The number of partitions must be known. A batch that is larger than
        the whole memory is accepted while all of the memory is free.

        Raises: BufferFullError; ConfigurationError for a topic name that is not valid, and a
        partition that does not exist.
        """
        size = len(encoded.data)
        if self.used and self.used + size > self.limit:
            self._needed = min(size, self.limit)  # no more can ever be free
            raise BufferFullError(f"buffer_memory={self.limit} bytes are used up")
        queues = self.topic(topic)
        queue = queues.queue(queues.draw() if partition < 0 else partition)
        queue.close_open()
        created_at = self.clock()
        deadline = created_at + self._delivery_timeout
        batch = ProduceBatch(queue.tp, created_at, deadline, encoded.base_timestamp)
        batch.fill(encoded)
        queue.open = batch
        self.used += size
        self.on_open(queue)

    def _append(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
        size: int,
        created_at: float,
    ) -> ProduceBatch:
        """Add a record to the open batch of a queue, or to a new one. `created_at`: for a record
        that has waited for the number of partitions, when the first that waited was accepted; -1
        for a record that is accepted now, so that the clock is read only for a new batch."""
        batch = queue.open
        is_new = batch is None or batch.size + size > self._batch_limit
        if is_new:
            if created_at < 0:
                self.on_begin()
                created_at = self.clock()
            queue.close_open()
            deadline = created_at + self._delivery_timeout
            batch = ProduceBatch(queue.tp, created_at, deadline, timestamp)
        assert batch is not None
        batch.append(key, value, timestamp, headers, size)
        if is_new:
            queue.open = batch
            self.on_open(queue)
        return batch

    def _wait_for_partitions(
        self,
        queues: TopicQueues,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
        size: int,
    ) -> ProduceBatch:
        """Keep a record until the number of partitions is known."""
        unplaced = queues.unplaced
        is_new = unplaced is None
        if unplaced is None:
            self.on_begin()
            now = self.clock()
            unplaced = UnplacedRecords(queues.name, now, now + self._delivery_timeout)
            queues.unplaced = unplaced
        unplaced.waiting.append((partition, key, value, headers, timestamp, size))
        unplaced.count += 1
        unplaced.size += size
        unplaced.last_timestamp = timestamp
        if is_new:
            self.on_unplaced(queues)
        return unplaced

    def topic(self, topic: str) -> TopicQueues:
        """Return the queues of a topic, which the first call creates. Raises: ConfigurationError if
        no topic can have this name."""
        check_topic(topic)
        if (known := self.topics.get(topic)) is not None:
            return known
        if not is_legal_name(topic):
            raise ConfigurationError(
                f"no topic can have the name {topic!r}: names have {LEGAL_NAME_RULE}"
            )
        queues = TopicQueues(topic, self._new_queue, self._random, self._partitioner, self.clock)
        self.topics[topic] = queues
        return queues

    def _new_queue(self, topic: str, number: int) -> PartitionQueue:
        return PartitionQueue(TopicPartition(topic, number), self._identities, self._max_in_flight)

    def place(self, queues: TopicQueues) -> None:
        """Move the records that have waited for the number of partitions to their queues, in their
        order. A record fails if its partition does not exist, or the partitioner raises for it."""
        unplaced, queues.unplaced = queues.unplaced, None
        if unplaced is None:
            return
        places: list[tuple[ProduceBatch, int]] = []
        for partition, key, value, headers, timestamp, size in unplaced.waiting:
            try:
                queue = queues.choose(key, size) if partition is None else queues.queue(partition)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # the partitioner may raise any, such as CancelledError
                places.append((self._failed(unplaced, error, size), 0))
            else:
                batch = self._append(
                    queue, key, value, headers, timestamp, size, unplaced.created_at
                )
                places.append((batch, batch.count - 1))
        unplaced.move(places)
        if self.is_full:
            self.on_full()  # they were in no queue when `add` called it

    def _failed(self, unplaced: ProduceBatch, error: BaseException, size: int) -> ProduceBatch:
        """Return a failed batch of one record: an unplaced one of `size` bytes, whose partition
        could not be chosen because of `error`."""
        batch = ProduceBatch(unplaced.tp, unplaced.created_at, unplaced.deadline, 0)
        batch.count, batch.size = 1, size
        if not isinstance(error, KafkaGroupError):
            error = ConfigurationError(f"the partitioner failed: {error!r}")
        batch.fail(error)
        return batch

    def release(self, batch: ProduceBatch) -> None:
        """Release the memory of a batch that has ended. Not to be called for a batch whose records
        have moved: that memory counts for the batches that have them now."""
        self.used -= batch.size
        batch.size = 0

    @property
    def is_full(self) -> bool:
        """Whether there is still no room for the last record or encoded batch that did not fit; or,
        if more than half of the memory is used, no room for a record of the largest size."""
        if self.used + self._needed > self.limit:
            return True
        return self.used > max(self.limit - self.max_record, self.limit // 2)

    def queues(self) -> Iterator[PartitionQueue]:
        """Yield the queues of all partitions."""
        for topic in self.topics.values():
            yield from topic.queues

    def not_in_flight(self) -> Sequence[ProduceBatch]:
        """Return the batches that have not ended, and that no request has."""
        in_flight = {batch for queue in self.queues() for batch in queue.in_flight}
        return [batch for batch in self.unfinished() if batch not in in_flight]

    def forget_ended(self) -> None:
        """Drop the batches that have ended, and that no request has, from their queues."""
        for topic in self.topics.values():
            if topic.unplaced is not None and topic.unplaced.has_ended:
                topic.unplaced = None
            for queue in topic.queues:
                queue.forget_ended()

    def unfinished(self) -> Sequence[ProduceBatch]:
        """Return the batches that have not ended."""
        found = [b for queue in self.queues() for b in queue.batches() if not b.has_ended]
        found += [t.unplaced for t in self.topics.values() if t.unplaced is not None]
        return found


def check_topic(topic: object) -> None:
    """Raises: ConfigurationError for what is no topic's name."""
    if not isinstance(topic, str) or not topic:
        raise ConfigurationError(f"topic={topic!r}; expected the name of a topic")


_NO_DATA = frozenset("OPuw")
"""The codes of objects, pointers and texts in the format of a buffer."""


def _bytes(what: str, data: object) -> bytes:
    """Return a key or value of the application as bytes. The error does not show it: it may be
    confidential."""
    try:
        return _content(data)
    except (TypeError, ValueError, BufferError):
        pass
    raise ConfigurationError(
        f"the {what} is of type {type(data).__name__}; expected bytes or None: encode it, or give"
        f" the producer a {what}_serializer that returns bytes"
    )


def _content(data: object) -> bytes:
    """Return the bytes of a buffer. Raises: TypeError if it is none, or its memory is no encoding
    of the data; ValueError; BufferError."""
    # A number or date of NumPy is a buffer, too, without a length; so are its arrays of texts, and
    # of objects, whose memory has pointers.
    view = memoryview(data)  # type: ignore[arg-type]
    if not isinstance(data, Sized) or not _NO_DATA.isdisjoint(view.format):
        raise TypeError("not a buffer of encoded data")
    return bytes(view)


def read_headers(headers: Headers) -> Headers:
    """Return the application's headers as pairs of text and bytes. They may be an iterator, so they
    are read once. Raises: ConfigurationError."""
    found: list[tuple[str, bytes | None]] = []
    try:
        for name, content in headers:
            name.encode(errors="surrogateescape")
            if content is not None and type(content) is not bytes:
                content = _content(content)
            found.append((name, content))
    except (TypeError, ValueError, AttributeError, BufferError):
        raise ConfigurationError(
            'the headers are not valid; expected [("name", b"value"), ...], with encoded values'
        ) from None
    return tuple(found)

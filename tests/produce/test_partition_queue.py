"""The batches of one partition against a broker that may lose, delay and refuse: what is
acknowledged is in the log once and in order, and what was "not written" is not there."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from uuid import UUID

import attrs
import pytest

from kafkagroup.errors import BrokerError, RequestTimeoutError
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.batch import NO_SEQUENCE, ProduceBatch
from kafkagroup.produce.identity import Identities, ProducerIdentity
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.produce.splitting import split
from kafkagroup.types import TopicPartition
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.record_decoding import decode_records

TP = TopicPartition("t", 0)
TIMEOUT = 20.0
_SEQUENCES = 2**31


@attrs.define
class Sent:
    """A batch as it is on the wire."""

    data: bytes
    values: list[bytes]
    epoch: int
    first: int

    @property
    def last(self) -> int:
        return (self.first + len(self.values) - 1) % _SEQUENCES


@attrs.define
class Log:
    """A partition's log, with the checks of Kafka 2.5 to 4.4."""

    values: list[bytes] = attrs.field(factory=list)
    epoch: int = -1
    recent: deque[tuple[int, int, int]] = attrs.field(factory=lambda: deque(maxlen=5))
    """First and last number, and offset, of the last batches of the epoch."""

    def append(self, sent: Sent) -> str | int:
        """Return the offset, or why not."""
        if sent.first == NO_SEQUENCE:
            self.values += sent.values
            return len(self.values) - len(sent.values)
        if sent.epoch < self.epoch:
            return "fenced"
        if sent.epoch > self.epoch and self.epoch >= 0 and sent.first != 0:
            return "out of order"
        if sent.epoch == self.epoch:
            for first, last, offset in self.recent:
                if (first, last) == (sent.first, sent.last):
                    return offset
            if self.recent and sent.first != (self.recent[-1][1] + 1) % _SEQUENCES:
                return "out of order"
        else:
            self.recent.clear()
        self.epoch = sent.epoch
        offset = len(self.values)
        self.values += sent.values
        self.recent.append((sent.first, sent.last, offset))
        return offset


class World:
    """A queue, a connection and a log."""

    def __init__(self, seed: int, *, idempotent: bool, transactional: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.log = Log()
        self.identities = Identities(is_coordinated=transactional) if idempotent else None
        self.is_aborting = False
        """Whether a record of the transaction has failed."""
        if self.identities is not None:
            self.identities.current = ProducerIdentity(7, 0)
        self.accumulator = Accumulator(
            batch_size=100,
            max_request_size=1_000,
            buffer_memory=100_000,
            delivery_timeout=TIMEOUT,
            max_in_flight=5,
            identities=self.identities,
            partitioner=None,
            clock=lambda: self.now,
            wall_clock_ns=lambda: 0,
            random=self.random.random,
        )
        self.accepted: list[tuple[ProduceBatch, int, bytes]] = []
        self.connection: deque[tuple[ProduceBatch, Sent]] = deque()
        self.leader = 1
        self.waiting: list[tuple[int, ProduceBatch]] = []
        """Taken for a leader, and not on its connection yet."""
        self.answered: deque[tuple[int, ProduceBatch, str | int]] = deque()
        """Sent to an earlier leader, with its response."""
        self.late: list[Sent] = []
        self.is_healed = False
        self.accumulator.add("t", 0, None, b"first", (), 0)
        topic = self.accumulator.topics["t"]
        topic.follow(TOPIC_ID, 1, [0])
        self.accumulator.place(topic)
        self.queue: PartitionQueue = topic.queues[0]
        self.queue.follow(1, TOPIC_ID)

    def add(self) -> None:
        if self.is_aborting:
            return
        value = b"%d" % len(self.accepted)
        batch = self.accumulator.add("t", 0, None, value, (), 0)
        self.accepted.append((batch, batch.count - 1, value))

    def taken(self) -> ProduceBatch:
        """Add a record, and take its batch."""
        self.add()
        self.queue.close_open()
        batch = self.queue.next(self.now)
        assert batch is not None
        self.queue.taken(batch)
        return batch

    def send(self) -> None:
        if not self.queue.closed:
            self.queue.close_open()
        if any(leader == self.leader for leader, _ in self.waiting):
            return
        batch = self.queue.next(self.now)
        if batch is None:
            return
        self.queue.taken(batch)
        if not self.is_healed and self.random.random() < 0.2:
            self.waiting.append((self.leader, batch))
            return
        self.write(batch)

    def connect(self) -> None:
        """The wait for a connection, or a throttle, ends."""
        if not self.waiting:
            return
        at = self.random.randrange(len(self.waiting))
        leader, batch = self.waiting.pop(at)
        if batch.has_ended or self.random.random() < 0.5:
            self.queue.put_back(batch, self.now)
            self.end_transaction()
        elif leader == self.leader:
            self.write(batch)
        else:
            batch.attempts += 1
            self.answered.append((leader, batch, "not leader"))

    def move(self) -> None:
        """Another broker leads. The one before has executed some requests, and refuses others."""
        executed = self.random.randint(0, len(self.connection))
        for n, (batch, sent) in enumerate(self.connection):
            outcome = self.log.append(sent) if n < executed else "not leader"
            self.answered.append((self.leader, batch, outcome))
        self.connection.clear()
        self.leader += 1
        self.queue.follow(self.leader, TOPIC_ID)

    def write(self, batch: ProduceBatch) -> None:
        data = batch.encode(Codec.NONE, None, False)
        batch.attempts += 1
        values = [record.value or b"" for record in decode_records(data, "t", 0)]
        sent = Sent(data, values, batch.producer_epoch, batch.base_sequence)
        assert batch.is_maybe_written is False or batch.attempts > 1
        self.connection.append((batch, sent))

    def respond(self) -> None:
        if self.connection:
            self.handle_response()
            self.end_transaction()

    def respond_late(self) -> None:
        """An earlier leader responds."""
        if self.answered:
            leader, batch, outcome = self.answered.popleft()
            self.handle_outcome(leader, batch, outcome)
            self.end_transaction()

    def end_transaction(self) -> None:
        """Give up what is not in flight after a failure; begin another transaction once nothing is,
        in another epoch only if the queue needs one."""
        queue, identities = self.queue, self.identities
        if identities is None or not identities.is_coordinated:
            return
        failed = any(batch.error is not None for batch, _, _ in self.accepted[self.begun :])
        self.is_aborting = self.is_aborting or failed
        if not self.is_aborting:
            return
        for batch in self.accumulator.not_in_flight():
            batch.fail(BrokerError(48))
        self.accumulator.forget_ended()
        if not queue.in_flight:
            self.begun, self.is_aborting = len(self.accepted), False
            if queue.needs_coordinator_epoch:
                producer_id, epoch = identities.current
                identities.current = ProducerIdentity(producer_id, epoch + 1)

    begun = 0
    """The number of the first record of the transaction."""

    def handle_response(self) -> None:
        kinds = ["append"] if self.is_healed else KINDS
        kind = self.random.choice(kinds)
        if kind == "lose":
            self.lose()
            return
        batch, sent = self.connection.popleft()
        if kind == "refused for a while":
            self.queue.retry(batch, self.now)
        elif kind == "refused for good":
            self.queue.failed(batch, BrokerError(87))
        elif kind == "too large" and batch.count > 1 and not batch.is_maybe_written:
            if batch.has_ended:
                self.queue.failed(batch, BrokerError(10))
            else:
                self.queue.split(batch, split(batch), self.now)
        elif kind == "not leader":
            self.handle_outcome(self.leader, batch, kind)
        else:
            found = self.log.append(sent)
            if kind == "appended, unknown" and isinstance(found, int):
                batch.is_maybe_written = True
                self.queue.retry(batch, self.now)
            else:
                self.handle_outcome(self.leader, batch, found)

    def handle_outcome(self, leader: int, batch: ProduceBatch, outcome: str | int) -> None:
        if isinstance(outcome, int):
            self.queue.acknowledged(batch, leader, outcome, -1, self.now)
        elif outcome == "not leader":
            batch.is_maybe_written = True
            self.queue.retry(batch, self.now)
        elif self.identities is not None and self.identities.is_coordinated:
            if self.queue.is_next(batch):
                self.queue.number_refused(batch, BrokerError(45))
            else:
                self.queue.out_of_order(batch, self.now)
        elif outcome == "fenced":
            self.queue.epoch_refused(batch, self.now)
        else:
            self.queue.out_of_order(batch, self.now)

    def lose(self) -> None:
        """The connection breaks: some requests were executed, some will be, the others not."""
        executed = self.random.randint(0, len(self.connection))
        arriving = self.random.randint(executed, len(self.connection))
        lost = list(self.connection)
        self.connection.clear()
        for n, (batch, sent) in enumerate(lost):
            if n < executed:
                self.log.append(sent)
            elif n < arriving:
                self.late.append(sent)
            batch.is_maybe_written = True
            self.queue.retry(batch, self.now)

    def arrive(self) -> None:
        if self.late:
            self.log.append(self.late.pop(0))

    def expire(self) -> None:
        self.now += self.random.random() * 3
        self.queue.expire(self.now, RequestTimeoutError("late"))
        self.end_transaction()

    def heal(self) -> None:
        self.is_healed = True
        while self.late:
            self.arrive()
        for _ in range(10_000):
            if self.queue.is_idle:
                return
            self.now += 0.01
            self.queue.expire(self.now, RequestTimeoutError("late"))
            self.end_transaction()
            self.connect()
            self.send()
            self.respond()
            self.respond_late()
        raise AssertionError("the queue does not become idle")

    def check(self) -> None:
        values = self.log.values
        assert len(set(values)) == len(values), "written twice"
        positions = [int(value) for value in values if value != b"first"]
        assert positions == sorted(positions), "out of order"
        for batch, index, value in self.accepted:
            while batch.moved is not None:
                batch, index = batch.moved[index]
            assert batch.has_ended
            if batch.error is None:
                if batch.base_offset >= 0:
                    assert values[batch.base_offset + index] == value
            elif not batch.is_maybe_written:
                assert value not in values, "it was said that it is not written"


TOPIC_ID = UUID(int=1)

KINDS = (
    *["append"] * 6,
    *["lose"] * 2,
    "appended, unknown",
    "refused for a while",
    "refused for good",
    "too large",
    "not leader",
)


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_any_order_of_events_writes_each_record_once(part: int, transactional: bool) -> None:
    for seed in range(100 * part, 100 * (part + 1)):
        world = World(seed, idempotent=True, transactional=transactional)
        steps: list[Callable[[], None]] = [
            *[world.add] * 4,
            *[world.send] * 5,
            *[world.respond] * 4,
            world.arrive,
            world.expire,
            *[world.connect] * 3,
            world.move,
            *[world.respond_late] * 2,
        ]
        for _ in range(world.random.randint(10, 300)):
            world.random.choice(steps)()
        world.heal()
        try:
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_a_refused_batch_of_a_transaction_needs_no_other_epoch() -> None:
    """Brokers before 2.5 give none to a producer that is running (KIP-360)."""
    world = World(1, idempotent=True, transactional=True)
    world.is_healed = True
    world.send()
    world.respond()
    for _ in range(3):
        for _ in range(3):
            world.add()
            world.send()
        refused, _ = world.connection.popleft()
        world.queue.failed(refused, BrokerError(87))
        world.end_transaction()
        world.heal()  # those behind it are out of order
        world.add()
        world.heal()
    assert world.identities is not None
    assert world.identities.current == (7, 0)
    world.check()
    assert world.log.values == [b"first", b"3", b"7", b"11"]


def test_a_batch_whose_outcome_is_unknown_needs_another_epoch() -> None:
    world = World(1, idempotent=True, transactional=True)
    world.is_healed = True
    world.send()
    world.respond()
    world.add()
    world.send()
    unknown, _ = world.connection.popleft()
    unknown.is_maybe_written = True
    world.queue.failed(unknown, BrokerError(87))
    assert world.queue.needs_coordinator_epoch
    world.end_transaction()
    assert world.identities is not None
    assert world.identities.current == (7, 1)


def test_numbers_begin_again_at_0_after_the_greatest() -> None:
    world = World(1, idempotent=True)
    world.is_healed = True
    world.send()
    world.respond()
    world.queue._next_sequence = _SEQUENCES - 2
    world.log.recent.clear()
    for _ in range(20):
        world.add()
        world.send()
        world.respond()
    world.heal()
    world.check()
    assert len(world.log.values) == 21


def confirmed() -> World:
    """A world whose leader has acknowledged a record."""
    world = World(1, idempotent=True)
    world.is_healed = True
    world.send()
    world.respond()
    return world


def test_a_batch_put_back_keeps_its_number_if_later_ones_are_in_use() -> None:
    """Two batches got one number, and the broker took the second one for the first."""
    world = confirmed()
    first, second = world.taken(), world.taken()
    world.queue.put_back(first, world.now)
    world.queue.acknowledged(second, 1, 2, -1, world.now)
    assert world.queue.next(world.now) is first
    world.queue.taken(first)
    assert [world.taken().base_sequence, first.base_sequence] == [3, 1]


def test_a_batch_that_ended_before_it_was_sent_leaves_a_gap_if_later_numbers_are_in_use() -> None:
    world = confirmed()
    first, second = world.taken(), world.taken()
    first.fail(RequestTimeoutError("late"))
    world.queue.put_back(first, world.now)
    world.queue.out_of_order(second, world.now)
    assert world.queue.next(world.now) is second
    assert (second.producer_epoch, second.base_sequence) == (1, 0)
    world.heal()
    assert second.base_offset == 1


def test_an_earlier_leader_does_not_confirm_the_present_one() -> None:
    """The present one takes any first number of a producer that it does not know."""
    world = confirmed()
    first, second = world.taken(), world.taken()
    world.queue.follow(2, TOPIC_ID)
    world.queue.acknowledged(first, 1, 1, -1, world.now)
    world.add()
    world.queue.close_open()
    assert world.queue.next(world.now) is None
    world.queue.acknowledged(second, 2, 2, -1, world.now)
    world.taken()
    world.taken()


def test_a_half_put_back_stays_ahead_of_its_sibling() -> None:
    world = confirmed()
    world.add()
    batch = world.taken()
    batch.encode(Codec.NONE, None, False)
    halves = split(batch)
    world.queue.split(batch, halves, world.now)
    for half, number in zip(halves, (1, 2), strict=True):
        for _ in range(2):
            assert world.queue.next(world.now) is half
            world.queue.taken(half)
            world.queue.put_back(half, world.now)
        world.queue.next(world.now)
        world.queue.taken(half)
        assert half.base_sequence == number
        world.queue.acknowledged(half, 1, number, -1, world.now)
    assert world.taken().base_sequence == 3


def test_without_numbers_the_order_is_kept() -> None:
    """Halves of halves, and what was sent again, went behind the other half."""
    world = World(1, idempotent=False)
    for _ in range(8):
        world.add()
    world.queue.close_open()
    written: list[bytes] = []
    while (batch := world.queue.next(world.now)) is not None:
        world.queue.taken(batch)
        data = batch.encode(Codec.NONE, None, False)
        batch.attempts += 1
        if batch.count > 1:
            world.queue.split(batch, split(batch), world.now)
        elif batch.attempts == 1:
            world.queue.retry(batch, world.now)
        else:
            written += [record.value or b"" for record in decode_records(data, "t", 0)]
            world.queue.acknowledged(batch, 1, 0, -1, world.now)
    assert written == [b"first", *(b"%d" % n for n in range(8))]


def test_behind_a_batch_that_was_not_written_none_is_sent_for_certainty() -> None:
    """It was refused for its number again and again, and the partition stood still."""
    world = confirmed()
    refused, behind, unknown = world.taken(), world.taken(), world.taken()
    world.queue.failed(refused, BrokerError(87))
    world.queue.out_of_order(behind, world.now)
    unknown.is_maybe_written = True
    world.queue.retry(unknown, world.now)
    assert world.queue.next(world.now) is behind
    assert (behind.producer_epoch, behind.base_sequence) == (1, 0)
    assert not unknown.is_maybe_written
    world.heal()
    assert (behind.base_offset, unknown.base_offset) == (1, 2)

"""Authorization errors name the resource to the application; other topics and groups still work."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest
from anyio.abc import TaskGroup

from kafkagroup import Consumer, TopicPartition
from kafkagroup.errors import AuthenticationError, AuthorizationError, ErrorCode
from kafkagroup.runtime.client.service import Service
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.schema import NO_ID

pytestmark = pytest.mark.anyio

SERVER = "kafka-1:9092"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def hidden(leader_of: Any, codes: list[int]) -> Any:
    """A broker that returns these errors for the topic before it leads a partition of it."""
    batch = encode_batch([NewRecord(None, b"x")])

    class Hidden(leader_of):
        def metadata(self, request: object) -> Any:
            response = super().metadata(request)
            if not codes:
                return response
            (topic,) = response.topics
            denied = attrs.evolve(topic, error_code=codes.pop(0), topic_id=NO_ID, partitions=())
            return attrs.evolve(response, topics=(denied,))

    return Hidden(lambda offset: batch if offset == 0 else b"")


@pytest.mark.parametrize("by_hand", [False, True], ids=["subscribed", "assigned"])
@pytest.mark.parametrize("before", [0, 6], ids=["at once", "later"])
async def test_a_topic_without_describe_permission_is_reported_once(
    network: Any, leader_of: Any, by_hand: bool, before: int
) -> None:
    """The error is the only sign of it; once the ACL exists, the topic is consumed."""
    network.handlers["b", 9092] = hidden(leader_of, [UNKNOWN] * before + [DENIED] * 6)
    async with network, Consumer(bootstrap_servers="b:9092") as consumer:
        if by_hand:
            await consumer.assign([TopicPartition("t", 0)])
        else:
            await consumer.subscribe("t")
        with pytest.raises(AuthorizationError, match=r"DESCRIBE on topic 't' is not allowed$") as e:
            await consumer.getone()
        assert (e.value.resource, e.value.operation) == ("topic 't'", "DESCRIBE")
        assert (await consumer.getone()).value == b"x"


async def test_a_group_without_permission_is_an_error(network: Any) -> None:
    async with EmbeddedKafka(listen=False) as kafka, network:
        network.serve_embedded(kafka)
        kafka.create_topic("t")
        kafka.fail(FindCoordinatorRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        async with Consumer("t", bootstrap_servers=SERVER, group_id="g") as consumer:
            with pytest.raises(AuthorizationError) as caught:
                await consumer.getone()
            assert (caught.value.resource, caught.value.operation) == ("group 'g'", "DESCRIBE")


async def test_concurrent_errors_are_raised_as_one_unwrapped_error() -> None:
    """Three brokers reject the credentials at the same time: users catch the error, not an
    exception group."""
    first, other = AuthenticationError("1"), AuthenticationError("2")

    class Failing(Service):
        crashed: Exception | None = None

        async def _open(self, tasks: TaskGroup) -> None:
            async def fail() -> None:
                raise ExceptionGroup("all", [ExceptionGroup("some", [first, other]), other])

            self._spawn(tasks, fail, "failing")

        async def _close(self) -> None: ...

        def _crashed(self, error: Exception) -> None:
            self.crashed = error

    async with Failing(1.0) as failing:
        await anyio.sleep(1)
        assert failing.crashed is first

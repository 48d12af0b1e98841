"""Topics listed, described, created, grown and deleted by `Admin`."""

import re

import anyio
import pytest
from brokers import until

from kafkagroup import ConfigurationError, Consumer, KafkaGroupError, TopicPartition
from kafkagroup.admin import Admin, NewTopic, PartitionDescription, TopicDescription
from kafkagroup.errors import BrokerError, ChangesRefusedError, ErrorCode

pytestmark = pytest.mark.anyio


async def codes(change):
    """Return name -> None for each change that was made, or the code of its error."""
    try:
        return dict.fromkeys(await change)
    except ChangesRefusedError as refused:
        errors = {name: error.code for name, error in refused.errors.items()}
        return {**dict.fromkeys(refused.done), **errors}


async def described(admin, name, partitions):
    """Return the topic once every broker knows it with this many partitions."""
    found = None

    async def look():
        nonlocal found
        found = (await admin.describe_topics([name]))[name]
        return isinstance(found, TopicDescription) and len(found.partitions) == partitions

    with anyio.fail_after(20):
        while not await look():
            await anyio.sleep(0.01)
    return found


async def test_topics_are_created_listed_grown_and_deleted(bootstrap, name):
    async with Admin(bootstrap_servers=bootstrap) as admin:
        new = NewTopic(name=name, partitions=2, replication_factor=1)
        assert await codes(admin.create_topics([new], validate_only=True)) == {name: None}
        missing = (await admin.describe_topics([name]))[name]
        assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert str(missing).startswith(f"UNKNOWN_TOPIC_OR_PARTITION (3): describing topic '{name}'")

        assert await codes(admin.create_topics([new])) == {name: None}
        topic = await described(admin, name, 2)
        (node,) = {one.leader.node_id for one in topic.partitions}
        assert topic == TopicDescription(
            name=name,
            topic_id=topic.topic_id,
            internal=False,
            partitions=tuple(
                PartitionDescription(
                    partition=number,
                    leader=topic.partitions[number].leader,
                    leader_epoch=topic.partitions[number].leader_epoch,
                    replicas=(node,),
                    in_sync_replicas=(node,),
                    offline_replicas=(),
                )
                for number in range(2)
            ),
        )
        assert topic.topic_id.int
        assert topic.replication_factor == 1
        assert topic in await admin.list_topics()

        assert await codes(admin.add_partitions({name: 3}, validate_only=True)) == {name: None}
        assert await codes(admin.add_partitions({name: 3})) == {name: None}
        grown = await described(admin, name, 3)
        assert (grown.topic_id, len(grown.partitions)) == (topic.topic_id, 3)

        assert await codes(admin.delete_topics([name])) == {name: None}
        with anyio.fail_after(20):
            while any(one.name == name for one in await admin.list_topics()):
                await anyio.sleep(0.01)


async def test_each_topic_has_its_own_error(bootstrap, name):
    """One error does not prevent the other changes."""
    other = f"{name}-other"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        one = NewTopic(name=name, partitions=2)
        assert await codes(admin.create_topics([one])) == {name: None}
        await described(admin, name, 2)
        with pytest.raises(ChangesRefusedError) as caught:
            await admin.create_topics(
                [
                    one,
                    NewTopic(name=other),
                    NewTopic(name="a topic"),
                    NewTopic(name=f"{name}-3", replication_factor=30),
                ]
            )
        refused = caught.value
        assert refused.done == (other,)
        assert {topic: error.code for topic, error in refused.errors.items()} == {
            name: ErrorCode.TOPIC_ALREADY_EXISTS,
            "a topic": ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name}-3": ErrorCode.INVALID_REPLICATION_FACTOR,
        }
        assert refused.exceptions == tuple(refused.errors.values())
        exists = f"creating topic '{name}': Topic '{name}' already exists"
        assert exists in str(refused.errors[name])
        assert str(refused).startswith(f"creating topics failed for 3 of 4: {name}: TOPIC_ALREADY")
        with pytest.raises(ChangesRefusedError, match="1 would not be an increase") as caught:
            await admin.add_partitions({name: 1, f"{name}-3": 4})
        assert {topic: error.code for topic, error in caught.value.errors.items()} == {
            name: ErrorCode.INVALID_PARTITIONS,
            f"{name}-3": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await codes(admin.delete_topics([f"{name}-3", other])) == {
            f"{name}-3": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            other: None,
        }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"partitions": 0}, "partitions=0; expected a whole number from 1 to 2147483647"),
        ({"partitions": True}, "partitions=True; expected a whole number from 1 to 2147483647"),
        ({"partitions": 2**31}, "partitions=2147483648; expected a whole number from 1 to"),
        ({"replication_factor": 2**15}, "replication_factor=32768; expected a whole number from 1"),
    ],
)
async def test_counts_that_a_request_cannot_carry_are_refused(embedded, wrong, message):
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(ChangesRefusedError) as caught:
            await admin.create_topics([NewTopic(name="t", **wrong)])
        (error,) = caught.value.exceptions
        assert isinstance(error, ConfigurationError)
        assert f"topic 't': {message}" in str(error)
        total = "topic 't': the total of partitions=2147483648; expected a whole number"
        with pytest.raises(ChangesRefusedError, match=total):
            await admin.add_partitions({"t": 2**31})


async def test_settings_of_a_new_topic(kafka, name):
    """Only a real broker checks them."""
    async with Admin(bootstrap_servers=kafka) as admin:
        wrong = NewTopic(name=name, configs={"retention.ms": "an hour"})
        with pytest.raises(ChangesRefusedError, match=re.escape("retention.ms")) as caught:
            await admin.create_topics([wrong])
        assert caught.value.errors[name].code == ErrorCode.INVALID_CONFIG
        compacted = NewTopic(name=name, configs={"cleanup.policy": "compact"})
        assert await codes(admin.create_topics([compacted])) == {name: None}


async def test_internal_topics_are_marked(bootstrap, name, fill):
    await fill(1, 1)
    options = {"bootstrap_servers": bootstrap, "group_id": name}
    async with Consumer(name, **options) as consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await consumer.getone()
        await consumer.commit()
        topics = {topic.name: topic.internal for topic in await admin.list_topics()}
    assert topics[name] is False
    assert topics.get("__consumer_offsets", True) is True


async def test_added_partitions_are_assigned_to_a_consumer(bootstrap, name, fill):
    await fill(1)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "metadata_max_age_ms": 100}
    async with Consumer(name, **options) as consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await consumer.wait_assignment()
        assert await codes(admin.add_partitions({name: 2})) == {name: None}
        await until(lambda: TopicPartition(name, 1) in consumer.assignment())


async def test_a_refusal_is_caught_as_a_group_and_as_an_error_of_the_library(embedded, name):
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(KafkaGroupError):
            await admin.delete_topics([name])
        caught = []
        try:
            await admin.delete_topics([name])
        except* BrokerError as some:
            caught += some.exceptions
        assert [error.code for error in caught] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_string_is_refused_as_a_collection_of_names(embedded):
    async with Admin(bootstrap_servers=embedded) as admin:
        with pytest.raises(ConfigurationError, match="expected several topics, not 'orders' alone"):
            await admin.delete_topics("orders")

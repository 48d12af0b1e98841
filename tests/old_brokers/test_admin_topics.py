"""Topics created, described, grown and deleted by `Admin`, on old brokers."""

import anyio
import pytest

from kafkagroup.admin import Admin, NewTopic, TopicDescription
from kafkagroup.errors import ErrorCode

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]


async def test_topics_are_created_described_grown_and_deleted(old, name):
    """2.4 gives topics no ids, and its controller is elected by ZooKeeper."""

    def codes(answers):
        return {at: None if error is None else error.code for at, error in answers.items()}

    async def described(partitions):
        with anyio.fail_after(20):
            while True:
                found = (await admin.describe_topics([name]))[name]
                if isinstance(found, TopicDescription) and len(found.partitions) == partitions:
                    return found
                await anyio.sleep(0.05)

    async with Admin(bootstrap_servers=old.bootstrap_servers) as admin:
        new = NewTopic(name=name, partitions=2, configs={"cleanup.policy": "compact"})
        assert codes(await admin.create_topics([new], validate_only=True)) == {name: None}
        missing = (await admin.describe_topics([name]))[name]
        assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes(await admin.create_topics([new])) == {name: None}
        topic = await described(2)
        assert (topic.replication_factor, topic.internal) == (1, False)
        assert topic in await admin.list_topics()
        answers = await admin.create_topics([new, NewTopic(name="a topic")])
        assert codes(answers) == {
            name: ErrorCode.TOPIC_ALREADY_EXISTS,
            "a topic": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert codes(await admin.add_partitions({name: 3}, validate_only=True)) == {name: None}
        assert codes(await admin.add_partitions({name: 3})) == {name: None}
        await described(3)
        assert codes(await admin.add_partitions({name: 1})) == {name: ErrorCode.INVALID_PARTITIONS}
        assert codes(await admin.delete_topics([name])) == {name: None}
        with anyio.fail_after(20):
            while any(one.name == name for one in await admin.list_topics()):
                await anyio.sleep(0.05)
        assert codes(await admin.delete_topics([name])) == {
            name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

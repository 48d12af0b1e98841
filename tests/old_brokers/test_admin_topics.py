"""Topics created, described, grown and deleted by `Admin`, on old brokers."""

import anyio
import pytest

from kafkagroup.admin import Admin, NewTopic, TopicDescription
from kafkagroup.errors import ChangesRefusedError, ErrorCode

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]


async def codes(change):
    """Return name -> None for each change that was made, or the code of its error."""
    try:
        return dict.fromkeys(await change)
    except ChangesRefusedError as refused:
        errors = {name: error.code for name, error in refused.errors.items()}
        return {**dict.fromkeys(refused.done), **errors}


async def test_topics_are_created_described_grown_and_deleted(old, name):
    """2.4 gives topics no ids, and its controller is elected by ZooKeeper."""

    async def described(partitions):
        with anyio.fail_after(20):
            while True:
                found = (await admin.describe_topics([name]))[name]
                if isinstance(found, TopicDescription) and len(found.partitions) == partitions:
                    return found
                await anyio.sleep(0.05)

    async with Admin(bootstrap_servers=old.bootstrap_servers) as admin:
        new = NewTopic(name=name, partitions=2, configs={"cleanup.policy": "compact"})
        assert await codes(admin.create_topics([new], validate_only=True)) == {name: None}
        missing = (await admin.describe_topics([name]))[name]
        assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await codes(admin.create_topics([new])) == {name: None}
        topic = await described(2)
        assert (topic.replication_factor, topic.internal) == (1, False)
        assert topic in await admin.list_topics()
        assert await codes(admin.create_topics([new, NewTopic(name="a topic")])) == {
            name: ErrorCode.TOPIC_ALREADY_EXISTS,
            "a topic": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert await codes(admin.add_partitions({name: 3}, validate_only=True)) == {name: None}
        assert await codes(admin.add_partitions({name: 3})) == {name: None}
        await described(3)
        assert await codes(admin.add_partitions({name: 1})) == {name: ErrorCode.INVALID_PARTITIONS}
        assert await codes(admin.delete_topics([name])) == {name: None}
        with anyio.fail_after(20):
            while any(one.name == name for one in await admin.list_topics()):
                await anyio.sleep(0.05)
        assert await codes(admin.delete_topics([name])) == {
            name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

"""Transactions at brokers that cannot describe them, or not by all filters."""

import pytest
from anyio.to_thread import run_sync
from confluent_kafka import Producer

from kafkagroup import Admin, TopicPartition
from kafkagroup.admin import NewTopic, TransactionState
from kafkagroup.admin.doctor import Status, examine
from kafkagroup.errors import UnsupportedVersionError

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]


async def test_an_open_transaction(old, name):
    tp = TopicPartition(name, 0)
    servers = old.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0})
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topics([NewTopic(name=name, partitions=1, replication_factor=1)])
        await run_sync(producer.init_transactions, 30)
        producer.begin_transaction()
        producer.produce(name, "value", partition=0)
        assert await run_sync(producer.flush, 20) == 0
        by_pattern = await admin.list_transactions(pattern=f"{name}.*")
        assert {type(error) for error in by_pattern.errors.values()} == {UnsupportedVersionError}
        results = await admin.open_transactions(tp)
        findings = [one async for one in examine(servers, topics=[name])]
        (stable,) = (one for one in findings if one.check == "last stable offset")
        if old.version == "2.4.1":
            assert isinstance(results[tp], UnsupportedVersionError)
            assert stable.status is Status.NOT_CHECKED
            assert stable.text == "brokers describe transactions from Kafka 3.0 on"
            with pytest.raises(UnsupportedVersionError):
                await admin.describe_transaction(name)
            with pytest.raises(UnsupportedVersionError):
                await admin.abort_transaction(tp, 0, force=True)
        else:
            (opened,) = results[tp]
            assert opened.transaction.state is TransactionState.ONGOING
            assert not opened.is_hanging
            assert (stable.status, stable.subject) == (Status.OK, name)
            await admin.abort_transaction(tp, 0, force=True)
            assert (await admin.open_transactions(tp))[tp] == ()

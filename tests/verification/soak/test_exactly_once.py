"""The short form of the exactly-once pipeline, and what judges it. `exactly_once.py` runs the long
one."""

import uuid

import pytest
from anyio.to_thread import run_sync
from exactly_once import Topic, judge, options_of, run

from kafkagroup import Admin, Producer
from kafkagroup.admin import NewTopic
from kafkagroup.testing.local import LocalKafkaUnavailable


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_judge_counts_what_is_lost_duplicated_disordered_and_open(kafka):
    name = f"judged-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=kafka) as admin:
        await admin.create_topics([NewTopic(name=name, partitions=2, replication_factor=1)])

    def write(tx, *numbers):
        for number in numbers:
            key = b"%d" % (number % 2)
            tx.send_nowait(name, b"%d and more" % number, key=key, partition=number % 2)

    async with Producer(bootstrap_servers=kafka, transactional_id=name) as producer:
        async with producer.transaction() as tx:
            write(tx, 0, 2, 1, 8, 6, 8)
        with pytest.raises(InterruptedError):
            async with producer.transaction() as tx:
                write(tx, 4)
                raise InterruptedError
        async with producer.transaction() as tx:
            await tx.send(name, b"5 and more", partition=1)
            try:
                (found,) = await run_sync(lambda: judge(kafka, 10, [name], seconds=0))
            except LocalKafkaUnavailable as error:
                pytest.skip(f"Kafka's consumer is NOT TRIED: {error}")
    assert found == Topic(
        name=name,
        records=6,
        lost=5,
        duplicated=1,
        disordered=1,
        open=1,
        examples="3,4,5,7,8,9",
    )


@pytest.mark.long
@pytest.mark.serial  # members and brokers are away for times that are compared with timeouts
def test_each_record_passes_three_stages_exactly_once_while_members_and_brokers_are_killed():
    # Not frozen: a member whose block takes longer than a transaction may rightly end.
    faults = "--member-kills 6 --broker-kills 2 --freezes 0"
    arguments = f"--records 5000 --seed 3 {faults} --seconds 40 --limit 240"
    try:
        outcome = run(options_of(arguments.split()))
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    assert outcome.clean, outcome
    assert [topic.records for topic in outcome.topics] == [5_000] * 4
    assert (outcome.member_kills, outcome.broker_kills, outcome.ended) == (6, 2, {}), outcome
    assert outcome.transactions > 50

"""Commands as processes, on the embedded broker and on real Kafka alike."""

from __future__ import annotations

import json
import signal
import subprocess

import anyio
import pytest
from cli.programs import TIMEOUT, Program, run, running
from confluent_kafka import Consumer as PeerConsumer
from confluent_kafka import Producer as PeerProducer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkagroup.admin import Admin

ALL = ("--from-beginning", "--exit-at-end")


def create(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    new = NewTopic(topic, partitions, 1, config=config)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[topic].result(20)


def produce(
    bootstrap: str, topic: str, given: bytes, *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    return run("produce", topic, "--bootstrap-servers", bootstrap, *arguments, given=given)


def consume(bootstrap: str, topic: str, *arguments: str) -> bytes:
    done = run("consume", topic, "--bootstrap-servers", bootstrap, *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_produced_records_are_consumed_and_produced_again(bootstrap: str, name: str) -> None:
    copy = f"{name}-copy"
    for topic in (name, copy):
        create(bootstrap, topic, 3)
    given = b"".join(b"key-%d\t%d\xff\n" % (n, n) for n in range(100))
    done = produce(bootstrap, name, given, "--key-separator", "\t", "--compression", "zstd")
    assert done.returncode == 0
    assert done.stderr.decode() == f"kafkagroup: 100 records written to {name}\n"
    lines = consume(bootstrap, name, *ALL, "--json")
    # By their keys they come into the same partitions again.
    assert produce(bootstrap, copy, lines, "--json").returncode == 0
    copied = consume(bootstrap, copy, *ALL, "--json")

    def by_place(text: bytes) -> list[dict[str, object]]:
        records = [json.loads(line) | {"topic": ""} for line in text.splitlines()]
        return sorted(records, key=lambda one: (one["partition"], one["offset"]))

    assert by_place(copied) == by_place(lines)
    assert len(by_place(lines)) == 100


def test_librdkafka_writes_to_the_same_partitions_and_reads_our_records(
    bootstrap: str, name: str
) -> None:
    create(bootstrap, name, 5)
    theirs = PeerProducer({"bootstrap.servers": bootstrap, "partitioner": "murmur2"})
    keys = [f"key-{n}" for n in range(40)]
    for key in keys:
        theirs.produce(name, "theirs", key)
    theirs.flush(20)
    given = "".join(f"{key}=ours\n" for key in keys).encode()
    assert produce(bootstrap, name, given, "--key-separator", "=").returncode == 0
    reader = PeerConsumer(
        {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    )
    reader.subscribe([name])
    places: dict[bytes, dict[bytes, int]] = {b"ours": {}, b"theirs": {}}
    while sum(map(len, places.values())) < 2 * len(keys):
        record = reader.poll(20)
        assert record is not None
        assert record.error() is None
        places[record.value()][record.key()] = record.partition()
    reader.close()
    assert places[b"ours"] == places[b"theirs"]


def test_a_group_resumes_at_its_committed_offsets(bootstrap: str, name: str) -> None:
    create(bootstrap, name, 1)
    produce(bootstrap, name, b"a\nb\nc\n")
    group = ("--group", name, "--from-beginning")
    assert consume(bootstrap, name, *group, "--max-records", "2") == b"a\nb\n"
    assert consume(bootstrap, name, *group, "--exit-at-end") == b"c\n"
    assert consume(bootstrap, name, *group, "--timeout", "1") == b""


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_a_refused_record_is_reported_with_its_line(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if str(admin.list_topics(timeout=20).cluster_id).startswith("kafkagroup-embedded"):
        pytest.skip("the embedded broker compacts nothing")
    create(bootstrap, name, 1, **{"cleanup.policy": "compact"})
    given = b'{"value": "", "key": "a"}\n' * 3 + b'{"value": "no key"}\n'
    done = produce(bootstrap, name, given, "--json")
    assert done.returncode == 1
    assert done.stderr.startswith(b"kafkagroup: line 4: INVALID_RECORD (87): ")


def elected(process: Program) -> tuple[int, int]:
    """Return the fencing token and the process id of the leader."""
    token, number = process.stdout.readline().split()
    return int(token), int(number)


def test_one_of_two_candidates_leads_and_the_other_takes_over(bootstrap: str, name: str) -> None:
    script = "echo $KAFKAGROUP_FENCING_TOKEN $$; exec sleep 60"
    command = ("elect", name, "--bootstrap-servers", bootstrap, "--", "sh", "-c", script)
    with running(*command) as one:
        first = elected(one)
        with running(*command) as two:
            wait_members(bootstrap, name, 2)
            one.send_signal(signal.SIGTERM)
            assert one.wait(TIMEOUT) == 128 + signal.SIGTERM
            assert one.stdout.read() == b""
            assert elected(two) > first
            two.send_signal(signal.SIGTERM)
            assert two.wait(TIMEOUT) == 128 + signal.SIGTERM


def wait_members(bootstrap: str, group: str, count: int) -> None:
    async def there() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            with anyio.fail_after(TIMEOUT):
                while True:
                    found = await admin.describe_group(group)
                    if (found.state, len(found.members)) == ("Stable", count):
                        return
                    await anyio.sleep(0.05)

    anyio.run(there)

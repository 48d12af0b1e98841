"""The responses of Apache Kafka 3.9.1 that differ from 4.3.1, in the traces of
`tests/verification/model`.

2.4.1 is not included: the traces use newer versions. `test_old_brokers` covers a member there in
every version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from verification.model.replay import play, settings_of
from verification.model.test_model import RealBrokers, all_traces

from kafkagroup.testing.local import LocalKafkaUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]

NEWER = "the trace speaks versions that 3.9.1 does not know"
SHARES = "3.9.1 shows no assignments of a group that is not stable"

DIFFERENT = {
    "administration": NEWER,
    "commit": "in OffsetCommit 9 3.9.1 calls an unknown group's generation illegal",
    "commit_topics": NEWER,
    "fetch": NEWER,
    "fetch_epochs": NEWER,
    "join_old_static": SHARES,
    "leave": "3.9.1 does not rebalance when an id is given back that was never used",
    "list_offsets": NEWER,
    "offset_fetch": NEWER,
    "other_node": NEWER,
    "pending": SHARES,
    "produce": NEWER,
    "restart": NEWER,
    "sessions": SHARES,
    "static_first": SHARES,
    "topic_max_message_bytes": NEWER,
    "topic_option_limits": "3.9.1 allows segments of less than 1 MiB",
    "topic_options": "3.9.1 has other options of topics, and other defaults",
    "topics": NEWER,
    "transaction_2": NEWER,
    "transaction_admin": NEWER,
    "transaction_offsets": NEWER,
    "transaction_refused": NEWER,
    "transaction_timeout": NEWER,
    "versions_of_topics": NEWER,
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def brokers() -> Iterator[RealBrokers]:
    with ExitStack() as running:
        yield RealBrokers("3.9.1", running)


@all_traces
async def test_an_older_kafka_gives_the_same_responses(
    path: Path, recorded: str, brokers: RealBrokers
) -> None:
    if DIFFERENT.get(path.stem) is NEWER:
        pytest.skip(NEWER)
    try:
        broker = await brokers.get(settings_of(recorded))
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no Kafka 3.9.1 on this machine: {error}")
    answered = await play(recorded, broker)
    assert (answered != recorded) == (path.stem in DIFFERENT), DIFFERENT.get(path.stem)

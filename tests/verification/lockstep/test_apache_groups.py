"""Apache's coordinator, in virtual time, answers as a broker of Apache Kafka did.

`tests/verification/model/traces` holds the responses of Kafka 4.3.1 in real time. Each trace about
groups or committed offsets is played on an embedded broker whose groups Apache's coordinator
serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from verification.lockstep.apache import ApacheCoordinator
from verification.lockstep.apache_groups import ApacheGroups
from verification.model.replay import play, settings_of
from verification.model.test_model import TRACES, embedded_broker

from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.testing.embedded import server

pytestmark = pytest.mark.anyio

_REQUESTS_TO_COORDINATORS = re.compile(
    r"^> .*(Group|Heartbeat|OffsetCommit|OffsetFetch)", re.MULTILINE
)

_LEFT_OUT = {
    "other_node": "one coordinator serves all nodes, and checks requests before their group",
    "transaction_offsets": "a transaction's offsets are not passed on to Apache's coordinator",
}
_RECORDED = {
    path.stem: text
    for path in TRACES
    if path.stem not in _LEFT_OUT
    and _REQUESTS_TO_COORDINATORS.search(text := path.read_text("utf-8"))
}

_AS_RECORDED = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
}
"""The settings of the broker that the traces come from, unless a trace names others."""


@pytest.fixture(scope="module")
def jvm() -> Iterator[ApacheCoordinator]:
    try:
        coordinator = ApacheCoordinator()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"Apache's coordinator is NOT COMPARED with recorded exchanges: {error}")
    with coordinator:
        yield coordinator


@pytest.mark.parametrize("name", _RECORDED)
async def test_recorded_responses_of_kafka(
    name: str, jvm: ApacheCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = _RECORDED[name]
    settings = settings_of(recorded)
    jvm.settings = _AS_RECORDED | settings
    groups = ApacheGroups(jvm)
    monkeypatch.setattr(server, "handle", groups.handle)
    async with embedded_broker(settings) as broker:
        assert await play(recorded, broker) == recorded

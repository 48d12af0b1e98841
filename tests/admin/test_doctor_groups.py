"""`doctor` on groups that this library cannot describe."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from memory_network import network

from kafkagroup.admin import describing
from kafkagroup.admin.doctor import Finding, Status
from kafkagroup.admin.doctor.groups import examine_group
from kafkagroup.errors import ErrorCode, IllegalStateError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.messages.offsets import OffsetFetchRequest

__all__ = ["network"]

pytestmark = pytest.mark.anyio


async def test_a_group_of_another_type_is_not_a_failure(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of Kafka Streams, which the embedded broker does not have."""
    text = "group 'g' is of type 'streams'; only classic, consumer and share groups are described"

    async def describe(*_: object) -> None:
        raise IllegalStateError(text)

    monkeypatch.setattr(describing, "describe", describe)
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    async with network, kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(10_000):
            found = await examine_group([("kafka-1", 9092)], ClientOptions(), "g")
    assert found == [
        Finding(
            check="coordinator", subject="g", status=Status.OK, text="broker 1 at kafka-1:9092"
        ),
        Finding(check="group", subject="g", status=Status.NOT_CHECKED, text=text),
        Finding(
            check="committed offsets",
            subject="g",
            status=Status.OK,
            text="can be read; there are 0",
        ),
        Finding(check="joining", subject="g", status=Status.OK, text="is allowed"),
    ]


async def test_pending_offsets_are_those_of_a_transaction(network: Any) -> None:
    """The advice was to look into the coordinator's log, which knows nothing of a transaction that
    hangs."""
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    kafka.fail(OffsetFetchRequest, ErrorCode.UNSTABLE_OFFSET_COMMIT, times=None)
    async with network, kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(10_000):
            found = await examine_group([("kafka-1", 9092)], ClientOptions(), "g")
    (pending,) = (one for one in found if one.status is Status.FAILED)
    assert pending.check == "committed offsets"
    assert "Admin.open_transactions() of __consumer_offsets" in pending.advice

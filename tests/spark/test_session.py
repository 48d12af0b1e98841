"""Calls of code without an event loop, several at the same time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from kafkagroup.errors import ErrorCode, KafkaGroupError, RequestTimeoutError, broker_error

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark.cluster import Session
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import SourceOptions
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Delay, Late
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.offsets import OffsetCommitRequest


@pytest.mark.anyio
async def test_a_call_that_expires_raises_its_own_last_error() -> None:
    """It raised that of whichever call had failed last."""
    session = Session(SimpleNamespace(topics=()))  # type: ignore[arg-type]
    refusal = broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fetching t/0")
    raised: dict[str, KafkaGroupError] = {}

    async def refused() -> None:
        session._note_failure(refusal)
        await anyio.sleep_forever()

    async def call(name: str, work: Any) -> None:
        try:
            await session._bounded(work, 5.0)
        except KafkaGroupError as error:
            raised[name] = error

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "silent", anyio.sleep_forever)
        tasks.start_soon(call, "refused", refused)
    assert raised["refused"] is refusal
    assert isinstance(raised["silent"], RequestTimeoutError)


def test_a_commit_after_a_call_without_a_response_is_not_undone() -> None:
    """The coordinator executed the commit of the earlier call last, and the offset went back."""
    tp = TopicPartition("a", 0)
    with EmbeddedKafka({"a": 1}) as broker:
        options = SourceOptions(bootstrap_servers=broker.bootstrap_servers, subscribe=("a",))
        with Logs(options) as session:
            session.commit("g", {tp: OffsetAndMetadata(1)})
            broker.fail(OffsetCommitRequest, Late(1.0))
            with pytest.raises(KafkaGroupError):
                session.commit("g", {tp: OffsetAndMetadata(2)}, timeout=0.05)
            broker.fail(OffsetCommitRequest, Delay(2.0))
            session.commit("g", {tp: OffsetAndMetadata(3)})
            assert session.committed("g", [tp]) == {tp: OffsetAndMetadata(3)}

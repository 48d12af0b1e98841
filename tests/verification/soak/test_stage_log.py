"""The log of a pipeline member is read as it was written."""

import anyio
import pytest
from stage_log import StageLog, delivered, read
from verification.sim.events import Delivered, Lost, Processed

from kafkagroup import Batch, Record, TopicPartition
from kafkagroup.types import TimestampType

TP = TopicPartition("t", 3)


def batch(*records):
    """Return offsets and sequence numbers."""
    return Batch(
        *TP,
        tuple(
            Record(
                topic=TP.topic,
                partition=TP.partition,
                offset=offset,
                timestamp=0,
                timestamp_type=TimestampType.CREATE_TIME,
                headers=(),
                leader_epoch=0,
                key=None,
                value=sequence.to_bytes(8, "big") + b"padding",
            )
            for offset, sequence in records
        ),
    )


@pytest.mark.anyio
async def test_events_and_batches_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "1a"
    log = StageLog(str(path), "1a")
    began = anyio.current_time()
    log.record_delivered(batch((7, 70), (9, 1 << 40)))
    await anyio.sleep(1.0)
    log.record_processed(batch((7, 70), (9, 1 << 40)))
    log.record_event(Lost, partitions=(TP,))
    assert list(read(path)) == [
        Delivered(time=began, member="1a", partition=TP, offset=7, sequence=70),
        Delivered(time=began, member="1a", partition=TP, offset=9, sequence=1 << 40),
        Processed(time=began + 1.0, member="1a", partition=TP, offset=7),
        Processed(time=began + 1.0, member="1a", partition=TP, offset=9),
        Lost(time=began + 1.0, member="1a", partitions=(TP,)),
    ]


@pytest.mark.anyio
async def test_an_incomplete_last_line_is_ignored(tmp_path):
    path = tmp_path / "1a"
    log = StageLog(str(path), "1a")
    log.record_delivered(batch((0, 5), (1, 6)))
    log.record_processed(batch((0, 5), (1, 6)))
    whole = path.read_bytes()
    log.record_delivered(batch((2, 7)))
    data = path.read_bytes()
    assert delivered(data) == (len(data), [5, 6, 7])
    for length in range(len(whole), len(data)):
        path.write_bytes(data[:length])
        assert delivered(data[:length]) == (len(whole), [5, 6])
        assert [event.offset for event in read(path)] == [0, 1, 0, 1]

"""Names of other clients: explained at run time, and still errors for type checkers."""

# ruff: noqa: B018, F401, I001

from __future__ import annotations

import kafkagroup
import kafkagroup.spark
from kafkagroup import AIOKafkaConsumer  # error
from kafkagroup import Admin, Consumer, Record, Security
from kafkagroup.assign import RangePartitionAssignor  # error
from kafkagroup.errors import KafkaError  # error
from kafkagroup.spark import nothing  # error


async def use(consumer: Consumer[bytes, bytes], record: Record[bytes, bytes], admin: Admin) -> None:
    consumer.highwater  # error
    record.checksum  # error
    admin.create_partitions  # error
    await consumer.getmany(timeout_ms=3)  # error
    await consumer.subscribe("t", listener=None)  # error
    Security(sasl_plain_username="me")  # error
    kafkagroup.poll  # error
    await consumer.getmany(timeout=3)
    len(record.value)

"""One member of a stage of the exactly-once pipeline: reads a topic in a group, and writes what it
reads to the next topic, in transactions with the offsets.

python exactly_once_stage.py BOOTSTRAP SOURCE SINK TRANSACTIONAL_ID GROUP --seed N
    [--protocol consumer]    until SIGTERM

Prints a line for each transaction. SIGUSR1 prints where its tasks are.
"""

import argparse
import asyncio
import logging
import random
import signal
import time
from collections.abc import AsyncIterator

import anyio

from kafkagroup import Consumer, Producer, open_signal_receiver

SESSION = 6.0
"""Seconds until a group expires a killed member: the least that a broker accepts by itself."""

_HEARTBEAT = 1.0
_MAX_RECORDS = (50, 200, 1_000)
_MAX_INTERVALS = (0.05, 0.3, 1.0)
_WORK = 0.5
"""Seconds that the block of a transaction takes at most: kills have to meet open transactions."""


class Stage:
    """A consumer and a producer."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._sink = arguments.sink
        self._random = random.Random(arguments.seed)
        # The brokers' configuration has the session timeout of the consumer protocol.
        classic = (
            {}
            if arguments.protocol == "consumer"
            else {
                "session_timeout_ms": round(SESSION * 1000),
                "heartbeat_interval_ms": round(_HEARTBEAT * 1000),
            }
        )
        self._producer = Producer(
            bootstrap_servers=arguments.bootstrap,
            client_id=arguments.transactional_id,
            transactional_id=arguments.transactional_id,
            transaction_timeout_ms=10_000,
        )
        self._consumer = Consumer(
            arguments.source,
            bootstrap_servers=arguments.bootstrap,
            client_id=arguments.transactional_id,
            group_id=arguments.group,
            group_protocol=arguments.protocol,
            enable_auto_commit=False,
            isolation_level="read_committed",
            **classic,
        )

    async def run(self) -> None:
        signal.signal(signal.SIGUSR1, _print_tasks)
        with open_signal_receiver() as signals:
            async with self._producer, self._consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_on, signals)
                await self._work()
                tasks.cancel_scope.cancel()
        _print("stopped")

    async def _work(self) -> None:
        transactions = self._producer.transactions(
            self._consumer,
            max_records=self._random.choice(_MAX_RECORDS),
            max_interval=self._random.choice(_MAX_INTERVALS),
        )
        async for tx in transactions:
            began = anyio.current_time()
            async with tx as records:
                for record in records:
                    # Another key than the record's, so that it goes to another partition.
                    tx.send_nowait(self._sink, record.value, key=b"%b+" % record.key)
                await anyio.sleep(self._random.uniform(0.0, _WORK))
            _print(f"ended {len(records)} in {anyio.current_time() - began:.2f} s")

    async def _stop_on(self, signals: AsyncIterator[signal.Signals]) -> None:
        await anext(signals)
        await self._consumer.stop()


def _print(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def _print_tasks(number: int, frame: object) -> None:
    for task in asyncio.all_tasks():
        task.print_stack()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "sink", "transactional_id", "group"):
        parser.add_argument(name)
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    anyio.run(Stage(arguments).run)


if __name__ == "__main__":
    main()

"""Reading a backlog: records per second and CPU per record, one member with default settings.

python -m tests.bench.consuming [--bootstrap HOST:PORT] [--records N] [--rounds N] [--json FILE]

Each client reads the same records of 100 bytes in a process of its own, one after the other, round
by round; `readers` is what runs there, and says what the clock covers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import anyio

from kafkagroup import TopicPartition
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import NewRecord, encode_batch

from . import broker, trial
from .command import Settings, main
from .figures import Figure
from .readers import CHUNK, VALUE_BYTES

__all__ = ["measure"]

PARTITIONS = 8
BATCH = 1_000
"""Records of one produced batch: about 100 KB before compression."""

CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)

CLIENTS: Mapping[str, Mapping[str, str]] = {
    "one by one": {
        "kafkagroup async for": "kafkagroup_one",
        "aiokafka async for": "aiokafka_one",
        "confluent poll": "confluent_one",
    },
    "many at once": {
        "kafkagroup batches()": "kafkagroup_many",
        f"aiokafka getmany({CHUNK})": "aiokafka_many",
        f"confluent consume({CHUNK})": "confluent_many",
    },
}
"""How records are asked for -> client -> its reader. Ours is set against its own kind."""


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """The figures of all clients."""
    figures: list[Figure] = []
    for codec in CODECS:
        with broker.topic(bootstrap, PARTITIONS) as topic:
            records = anyio.run(_fill, bootstrap, topic, codec, settings.records // BATCH)
            found: dict[tuple[str, str], list[dict[str, float]]] = {}
            for _ in range(settings.rounds):
                for how, clients in CLIENTS.items():
                    for client, reader in clients.items():
                        one = trial.run(
                            "readers",
                            reader=reader,
                            bootstrap=bootstrap,
                            topic=topic,
                            records=records,
                        )
                        found.setdefault((how, client), []).append(one)
        figures += [
            Figure(
                what=f"{codec.name.lower()}, {how}: {unit}",
                client=client,
                values=tuple(one[unit] for one in rounds),
                note="no CRC check" if client.startswith("confluent") else "",
            )
            for unit in ("records/s", "CPU us/record")
            for (how, client), rounds in found.items()
        ]
    return figures


async def _fill(bootstrap: str, topic: str, codec: Codec, batches: int) -> int:
    """Append whole batches to all partitions in turn; answer how many records they are."""
    records = [NewRecord(None, value, 1_700_000_000_000) for value in _values()]
    batch = encode_batch(records, codec=codec)
    async with broker.connected(bootstrap) as node:
        for n in range(batches):
            await broker.produce(node, {TopicPartition(topic, n % PARTITIONS): batch})
    return batches * BATCH


def _values() -> Iterator[bytes]:
    """Values that compress about as business JSON does, three to one."""
    chance = random.Random(1)
    for n in range(BATCH):
        head = f'{{"id":{n},"customer":"{chance.getrandbits(64):016x}","status":"shipped","total":'
        yield f"{head}{chance.randrange(10**6)}}}".ljust(VALUE_BYTES).encode()


if __name__ == "__main__":
    main(__doc__, {"consuming": measure})

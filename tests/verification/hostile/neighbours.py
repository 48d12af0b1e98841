"""One consumer, two brokers: the attacks of the first must not stop records of the second.

Both nodes are at one address; each has its own connections. Node 1 leads t/0 and is hostile, node 2
leads t/1 and is correct.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs

from kafkagroup.wire.compression import Codec
from kafkagroup.wire.messages import metadata
from kafkagroup.wire.messages.fetch import FetchRequest

from .frames import frame_size, pouring
from .honest import Raw, cluster_of, fetched, one_record, serving, topic_of
from .records import batch, zeros
from .server import Conversation, Wire
from .trial import MEBIBYTE, Attack

__all__ = ["ATTACKS"]

Ill = Callable[[FetchRequest, Wire], object]


def _cluster(wire: Wire) -> metadata.MetadataResponse:
    host, port = wire.socket.getsockname()
    topic = topic_of()
    (first,) = topic.partitions
    second = attrs.evolve(first, partition_index=1, leader_id=2)
    # Two names: a throttle applies to all brokers at one address.
    nodes = (
        metadata.MetadataResponseBroker(node_id=number, host=name, port=port)
        for number, name in ((1, host), (2, "localhost"))
    )
    return cluster_of(
        wire, brokers=tuple(nodes), topics=(attrs.evolve(topic, partitions=(first, second)),)
    )


def _fetch(ill: Ill) -> Ill:
    struck = threading.Event()

    def respond(request: FetchRequest, wire: Wire) -> object:
        asked = request.topics[0].partitions[0]
        if asked.partition == 0:
            struck.set()
            return ill(request, wire)
        if asked.fetch_offset == 10:
            # The rest comes while, or after, the other node does harm.
            struck.wait()
        return one_record(request)

    return respond


def _beside(name: str, ill: Ill, error: str = "", **more: Any) -> Attack:
    def does() -> Conversation:
        return serving(
            {metadata.MetadataRequest: lambda _, wire: _cluster(wire), FetchRequest: _fetch(ill)}
        )

    return Attack(
        name=name,
        family="neighbours",
        does=does,
        client="consume_both",
        job={"errors": bool(error)},
        ends="; ".join(filter(None, ("t/1 goes on", error))),
        **more,
    )


ATTACKS = (
    _beside("beside a fetch that is never answered", lambda _, __: None),
    _beside("beside a fetch of 2 GiB", pouring(frame_size(2**31 - 1), bytes(MEBIBYTE))),
    _beside("beside a fetch that trickles", pouring(frame_size(50 * MEBIBYTE), b"\0", 0.001)),
    _beside("beside garbage", lambda _, __: b"\xff" * 50),
    _beside("beside wrong correlation ids", lambda _, __: Raw(frame_size(8) + b"\x7f" * 8)),
    _beside("beside a fetch that is hung up on", lambda _, wire: wire.close()),
    _beside(
        "beside a throttle time of 2^31-1",
        lambda _, __: attrs.evolve(fetched(b""), throttle_time_ms=2**31 - 1),
    ),
    _beside(
        "beside a wrong CRC",
        lambda _, __: fetched(batch(b"\x0c" + bytes(6), crc=0)),
        "CorruptRecordError: t/0 at offset 0: CRC-32C mismatch",
    ),
    _beside(
        "beside a bomb",
        lambda _, __: fetched(batch(zeros(Codec.ZSTD, 256), codec=Codec.ZSTD)),
        "LimitExceededError: t/0 at offset 0: batch inflates beyond 134217728"
        " bytes (max_batch_bytes)",
        mebibytes=200,
        # The other node is fetched from all the time that a thread inflates.
        requests=100_000,
    ),
)

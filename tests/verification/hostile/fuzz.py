"""Run damaged bytes through every decoder: each returns, or raises its own error.

    python tests/verification/hostile/fuzz.py [--cases 20000] [--seed N] [--jobs 2]

A case is one valid input of one decoder, and 100 mutations of it. The decoders: every message in
every version, requests too; record batches in every codec, and messages of the old formats;
fragmented frames; the metadata of group members; a SCRAM server's messages. A failure prints the
command that replays it, and the line for `corpus.txt`, which every test run checks. Of some cases
the memory is measured too.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import os
import pkgutil
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs

import kafkagroup.wire.messages as families
from kafkagroup.assign.cooperative_sticky import generation_in
from kafkagroup.assign.weighted import capacity_in
from kafkagroup.errors import AuthenticationError, DecodeError, RemoteProtocolError
from kafkagroup.transport.sasl.scram import Conversation
from kafkagroup.transport.sasl.secret import Secret
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.compression import Codec, compress, decompress
from kafkagroup.wire.connection import Connection
from kafkagroup.wire.embedded_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafkagroup.wire.records import read_batches
from kafkagroup.wire.schema import Array, Field, Kind, Scalar, Versions

sys.path.insert(0, str(Path(__file__).parents[2]))  # as pytest does, for what tests share

import old_messages

MUTATIONS = 100
"""Of each valid input."""

CHUNK = 100
"""Cases that a process takes at a time."""

MOST_FAILURES = 20
"""Failed cases after which a run ends early."""

MOST_BYTES = 2**20
"""Limit of a batch: mutated claims below it are met, and cost time."""

MEASURED = 25
"""One case of so many is measured: that takes several times as long."""

MOST_MEMORY = 4
"""Times the input, beside twice MOST_BYTES, which a codec and its caller may both hold: what a
decoder may take at its peak."""

CORPUS = Path(__file__).with_name("corpus.txt")
"""Lines of a decoder's name, ": " and bytes in hex: what once broke one, here or in a peer."""

HOSTILE = (
    b"\x00",
    b"\xff",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\x01",
    b"\xff" * 11,
    b"\xc3\x28",
    b"\xed\xa0\x80",
)
"""Lengths, counts and texts that decoders get wrong."""

Make = Callable[[random.Random], bytes]
Take = Callable[[bytes], object]


@attrs.frozen
class Target:
    """One decoder."""

    name: str
    make: Make
    """Valid bytes."""
    take: Take
    """The decoder, and what must hold of whatever it returns."""
    errors: type[Exception] = DecodeError
    """All that it may raise."""


# ---------------------------------------------------------------- messages


def declared() -> dict[str, Any]:
    """Return every message class of the library, by name."""
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"{families.__name__}.{info.name}")
        for name, value in vars(module).items():
            here = getattr(value, "__module__", "") == module.__name__
            if here and isinstance(getattr(value, "versions", None), Versions):
                found[name] = value
    return dict(sorted(found.items()))


_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "t", "orders", "\u00e9", "\U0001f600", "a" * 200)


def value(rng: random.Random, kind: Kind, version: int) -> Any:
    """Return a valid value of a type."""
    if isinstance(kind, Array):
        return tuple(value(rng, kind.element, version) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    if isinstance(kind, type):
        return message(rng, kind, version)
    if kind.name in _BITS:
        half = 2 ** (_BITS[kind.name] - 1)
        return rng.choice((0, 1, -1, half - 1, -half, rng.randrange(-half, half)))
    if kind.name == "uint16":
        return rng.randrange(2**16)
    if kind.name == "bool":
        return rng.random() < 0.5
    if kind.name == "uuid":
        return UUID(int=rng.getrandbits(128))
    if kind.name == "string":
        return rng.choice(_TEXTS)
    return rng.randbytes(rng.choice((0, 1, 8, 200)))


def message(rng: random.Random, cls: Any, version: int) -> Any:
    """Return a valid message with only fields of the version."""
    parts = {}
    for attribute in attrs.fields(cls):
        spec: Field = attribute.metadata[Field]
        if version in spec.versions:
            null = version in spec.nullable and rng.random() < 0.2
            parts[attribute.name] = None if null else value(rng, spec.kind, version)
        elif attribute.default is attrs.NOTHING:
            parts[attribute.name] = _nothing(spec.kind)
    return cls(**parts)


def _nothing(kind: Kind) -> Any:
    if isinstance(kind, Array):
        return ()
    if isinstance(kind, Scalar):
        blank: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False}
        return UUID(int=0) if kind.name == "uuid" else blank.get(kind.name, 0)
    parts = {a.name: _nothing(a.metadata[Field].kind) for a in attrs.fields(kind)}
    return kind(**parts)


def _message_target(name: str, cls: Any, version: int) -> Target:
    def take(data: bytes) -> None:
        taken = decode(cls, version, data)
        # What was taken is a whole value: it can be sent on, and means the same.
        if decode(cls, version, encode(taken, version)) != taken:
            raise AssertionError("encoded again it is another message")

    return Target(
        f"{name} v{version}", lambda rng: encode(message(rng, cls, version), version), take
    )


# ---------------------------------------------------------------- records


def _records(rng: random.Random) -> list[NewRecord]:
    def some() -> bytes | None:
        return rng.choice((None, b"", b"k", b"v" * 100, rng.randbytes(20)))

    headers = [(rng.choice(_TEXTS), some()) for _ in range(rng.choice((0, 0, 1, 3)))]
    return [
        NewRecord(some(), some(), rng.choice((-1, 0, 2**40)), tuple(headers))
        for _ in range(rng.choice((1, 2, 200)))
    ]


def _batches(rng: random.Random, codec: Codec) -> bytes:
    """Return some batches, including transactional and control batches."""
    return b"".join(
        encode_batch(
            _records(rng),
            codec=codec,
            base_offset=rng.choice((0, 5, 2**62)),
            transactional=rng.random() < 0.3,
            control=rng.random() < 0.3,
        )
        for _ in range(rng.choice((1, 1, 3)))
    )


def _messages(rng: random.Random, codec: Codec, magic: int) -> bytes:
    """Return some message sets of an old format, and maybe a batch of the new one."""
    base, found = rng.choice((0, 5, 2**62)), []
    for _ in range(rng.choice((1, 1, 3))):
        values = [rng.choice((None, b"", b"v" * 100, rng.randbytes(20)))] * rng.choice((1, 2, 200))
        found.append(old_messages.stored(magic, codec, base, values))
        base += len(values)
    if rng.random() < 0.3:
        found.append(encode_batch(_records(rng), base_offset=base))
    return b"".join(found)


def _read(data: bytes, *, check_crcs: bool) -> None:
    batches = read_batches(
        data, topic="t", partition=0, check_crcs=check_crcs, max_batch_bytes=MOST_BYTES
    )
    for batch in batches:
        batch.control_type()
        offsets = [record.offset for record in batch.records()]
        if offsets != sorted(set(offsets)) or not all(
            batch.base_offset <= offset <= batch.last_offset for offset in offsets
        ):
            raise AssertionError("offsets out of order, or outside the batch")


def _inflated(codec: Codec, data: bytes) -> None:
    if len(decompress(codec, data, MOST_BYTES)) > MOST_BYTES:
        raise AssertionError("more came out than the limit")


def _compressed(rng: random.Random, codec: Codec) -> bytes:
    piece = rng.randbytes(rng.choice((0, 1, 100))) * rng.choice((1, 50, 5000))
    return b"".join(compress(codec, piece) for _ in range(rng.choice((1, 1, 3))))


# ---------------------------------------------------------------- frames, members, servers


_BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def _frames(rng: random.Random) -> bytes:
    """Return the broker's side of a handshake and two heartbeats."""
    keys = ApiVersionsResponse(error_code=0, api_keys=())
    bodies = [encode(keys, 3), *(b"\0" + encode(HeartbeatResponse(error_code=0), 4),) * 2]
    return b"".join(
        struct.pack(">ii", 4 + len(body), number) + body for number, body in enumerate(bodies)
    )


def _receive(data: bytes) -> None:
    connection = Connection("fuzz")
    connection.send(ApiVersionsRequest(), 3)
    connection.send(_BEAT, 4)
    connection.send(_BEAT, 4)
    left = memoryview(data)
    while left:
        with connection.room() as room:
            count = min(len(room), len(left), 7)
            room[:count] = left[:count]
        left = left[count:]
        connection.received(count)
        if connection.failure is not None:
            raise connection.failure


def _partitions(rng: random.Random) -> list[TopicPartition]:
    found = {TopicPartition(rng.choice(_TEXTS), rng.randrange(9)) for _ in range(rng.randrange(9))}
    return sorted(found)


def _subscription(rng: random.Random) -> bytes:
    subscription = Subscription(
        topics=tuple(set(rng.choices(_TEXTS, k=3))),
        user_data=rng.choice((None, b"", rng.randbytes(8))),
        owned=tuple(_partitions(rng)),
        generation=rng.randrange(-1, 9),
        rack=rng.choice((None, "r")),
    )
    return encode_subscription(subscription, rng.randrange(4))


def _user_data(rng: random.Random) -> bytes:
    """Return user data of Java's sticky assignor: partitions and a generation."""
    return encode_assignment(_partitions(rng))[2:-4] + struct.pack(">i", rng.randrange(9))


_NONCE = "nonce"


_CHALLENGE = b"r=nonceserver,s=c2FsdA==,i=4096"


def _challenged(data: bytes) -> Conversation:
    talk = Conversation("sha256", "alice", Secret("password"), _NONCE)
    _, iterations = talk.take_challenge(data)
    if not 4_096 <= iterations <= 1_000_000:
        raise AssertionError(f"{iterations} iterations")
    return talk


def _judged(data: bytes) -> None:
    talk = _challenged(_CHALLENGE)
    talk.final(Secret("00" * 32))
    talk.check(data)
    raise AssertionError("a forged signature was accepted")


@cache
def targets() -> tuple[Target, ...]:
    """Return every decoder; those that are no messages several times, as there are many
    messages."""
    messages = [
        _message_target(name, cls, version)
        for name, cls in declared().items()
        for version in cls.versions
    ]
    others = [
        Target(f"frames in pieces, {n}", _frames, _receive, RemoteProtocolError) for n in (1, 2, 3)
    ]
    for codec in Codec:
        name = codec.name.lower()
        make = partial(_batches, codec=codec)
        others += [
            Target(f"batches of {name}", make, partial(_read, check_crcs=False)),
            Target(f"batches of {name} by CRC", make, partial(_read, check_crcs=True)),
            Target(f"{name} alone", partial(_compressed, codec=codec), partial(_inflated, codec)),
        ]
    for codec, magic in itertools.product(tuple(Codec)[:4], (0, 1)):
        name = f"{codec.name.lower()} in format {magic}"
        make = partial(_messages, codec=codec, magic=magic)
        others += [
            Target(f"messages of {name}", make, partial(_read, check_crcs=False)),
            Target(f"messages of {name} by CRC", make, partial(_read, check_crcs=True)),
        ]
    others += [
        Target("subscription", _subscription, decode_subscription),
        Target("assignment", lambda rng: encode_assignment(_partitions(rng)), decode_assignment),
        Target("generation", _user_data, generation_in),
        Target("capacity", lambda rng: rng.randbytes(12), capacity_in),
        Target("SCRAM's challenge", lambda _: _CHALLENGE, _challenged, AuthenticationError),
        Target("SCRAM's signature", lambda _: b"v=c2FsdA==", _judged, AuthenticationError),
    ]
    return (*messages, *others * 4)


# ---------------------------------------------------------------- damage


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with one to three damages, accidental or malicious."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        where = rng.randrange(len(out) + 1)
        damage = rng.randrange(7)
        if damage == 0:
            del out[where:]
        elif damage == 1 and where < len(out):
            out[where] ^= 1 << rng.randrange(8)
        elif damage == 2 and where < len(out):
            out[where] = rng.randrange(256)
        elif damage == 3:
            hostile = rng.choice(HOSTILE)
            out[where : where + len(hostile)] = hostile
        elif damage == 4:
            out[where:where] = rng.choice(HOSTILE)
        elif damage == 5:
            del out[where : where + rng.randrange(1, 9)]
        else:
            end = min(len(out), where + rng.randrange(1, 40))
            out[where:where] = out[where:end]
    return bytes(out)


def trouble(target: Target, data: bytes) -> str | None:
    """Return what is wrong with the decoder's result for these bytes."""
    try:
        target.take(data)
    except target.errors:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def appetite(target: Target, data: bytes) -> str | None:
    """Return what is wrong with the decoder's memory for these bytes; tracing must be on."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    wrong = trouble(target, data)
    _, peak = tracemalloc.get_traced_memory()
    if wrong is None and peak - before > MOST_MEMORY * len(data) + 2 * MOST_BYTES:
        return f"{peak - before:,} bytes of memory for an input of {len(data):,}"
    return wrong


def corpus() -> Iterator[tuple[Target, bytes]]:
    """Return the inputs that broke a decoder."""
    named = {target.name: target for target in targets()}
    for line in CORPUS.read_text("ascii").splitlines():
        if line and not line.startswith("#"):
            name, _, data = line.rpartition(": ")
            yield named[name], bytes.fromhex(data)


def failures_of(seed: int, case: int, among: tuple[Target, ...] | None = None) -> Iterator[str]:
    """Return the failures of one case, with their bytes."""
    rng = random.Random(f"{seed}/{case}")
    chosen = among or targets()
    target = chosen[case % len(chosen)]
    valid = target.make(rng)
    inputs = (valid, *(mutated(rng, valid) for _ in range(MUTATIONS)))
    check = trouble
    if case % MEASURED == 0:
        tracemalloc.start()
        check = appetite
    try:
        for data in inputs:
            if (wrong := check(target, data)) is not None:
                yield f"{wrong}; for the corpus:\n  {target.name}: {data.hex()}"
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- many of them


def _chunk(work: tuple[int, range]) -> tuple[int, dict[int, list[str]]]:
    seed, cases = work
    found = {case: list(failures_of(seed, case)) for case in cases}
    return len(cases), {case: lines for case, lines in found.items() if lines}


def run(seed: int, cases: int, jobs: int) -> int:
    """Return the exit code: 0 without failures."""
    chunks = [(seed, range(at, min(at + CHUNK, cases))) for at in range(0, cases, CHUNK)]
    print(f"{cases:,} cases, {len(targets())} decoders, seed {seed}, {jobs} at a time", flush=True)
    started, done, failed = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for size, found in pool.imap_unordered(_chunk, chunks):
            before, done = done, done + size
            for case, lines in found.items():
                failed += 1
                print(f"\ncase {case}:", *(line[:1_000] for line in lines[:3]), sep="\n  ")
                print(
                    f"again: python tests/verification/hostile/fuzz.py --seed {seed} --case {case}",
                    flush=True,
                )
            if failed >= MOST_FAILURES:
                break
            if done * 20 // cases > before * 20 // cases:
                print(f"{done:,} of {cases:,}", flush=True)
    took = time.monotonic() - started
    print(
        f"{done * MUTATIONS:,} mutations in {took:.0f} s, {done * MUTATIONS / took:,.0f} a second;"
        f" {failed} cases failed"
    )
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, help="any number; by default another each time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", type=int, help="replay this one alone")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if options.case is not None:
        lines = list(failures_of(seed, options.case))
        print(*lines or ["nothing is wrong"], sep="\n")
        return 1 if lines else 0
    return run(seed, options.cases, options.jobs)


if __name__ == "__main__":
    sys.exit(main())

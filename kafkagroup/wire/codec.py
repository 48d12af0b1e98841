"""Encode messages to bytes, and decode them.

`schema` declares the fields of a message in each version; `codec_compiler` compiles the encoder and
the decoder of one message in one version on first use, and this module caches them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kafkagroup.errors import DecodeError

if TYPE_CHECKING:
    from kafkagroup.wire.codec_compiler import Decoder

__all__ = ["decode", "decode_prefix", "encode", "encode_into"]

T = TypeVar("T")


def encode(message: object, version: int) -> bytes:
    """Encode a message in one version.

    Raises: LocalProtocolError if there is no such version, a value does not fit its type, or a
    field is set that the version does not have, unless the field is ignorable.
    """
    out = bytearray()
    encode_into(out, message, version)
    return bytes(out)


def encode_into(out: bytearray, message: object, version: int) -> None:
    """Append an encoded message to `out`. Raises: as `encode`; `out` may then end with a part of
    the message."""
    # The cast, as in `decode_prefix`: mypy does not take a class for hashable, as `cache` needs it.
    _encoder(cast(Any, type(message)), version)(out, message)


def decode(
    cls: type[T],
    version: int,
    data: bytes | bytearray,
    offset: int = 0,
    *,
    max_elements: int | None = None,
) -> T:
    """Decode the message in `data` from `offset` to its end.

    Unknown tagged fields are skipped. Raises: DecodeError, also for bytes after the message;
    LocalProtocolError if there is no such version; LimitExceededError if all arrays together have
    more elements than `max_elements` (None: `codec_compiler.MAX_ELEMENTS`), before the elements of
    the array that exceeds it are decoded. 16 numbers count as one element, and so does each tagged
    field.
    """
    value, end = decode_prefix(cls, version, data, offset, max_elements=max_elements)
    if end != len(data):
        raise DecodeError(f"{cls.__name__} v{version}: {len(data) - end} bytes left over")
    return value


def decode_prefix(
    cls: type[T],
    version: int,
    data: bytes | bytearray,
    offset: int = 0,
    *,
    max_elements: int | None = None,
) -> tuple[T, int]:
    """Decode the message that begins at `offset`; return it, and the offset of its end.

    The bytes after it are not read, and are no error. Otherwise this raises what `decode` raises.
    """
    decoder, default_limit = _decoder(cast(Any, cls), version)
    limit = default_limit if max_elements is None else max_elements
    return cast("tuple[T, int]", decoder(data, offset, limit))


# Imported in these functions: the compiler takes longer to import than all message declarations,
# and is needed only when the first message is encoded or decoded.


@cache
def _encoder(cls: type, version: int) -> Callable[[bytearray, object], None]:
    from kafkagroup.wire.codec_compiler import compile_encoder

    return compile_encoder(cls, version)


@cache
def _decoder(cls: type, version: int) -> tuple[Decoder, int]:
    """Return the decoder, and its limit of elements where the caller gives none."""
    from kafkagroup.wire.codec_compiler import MAX_ELEMENTS, compile_decoder

    return compile_decoder(cls, version), MAX_ELEMENTS

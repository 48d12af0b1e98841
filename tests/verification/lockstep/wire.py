"""Requests to bytes, and responses from bytes, with their headers."""

from __future__ import annotations

import struct
from typing import Any

from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.schema import Request

__all__ = ["decode_response", "encode_request"]


def encode_request(
    request: Request[Any], version: int, client_id: str, correlation_id: int = 0
) -> bytes:
    """Encode a request with its header, without the length."""
    name = client_id.encode()
    head = struct.pack(">hhih", request.api_key, version, correlation_id, len(name)) + name
    return head + b"\0" * (version in request.flexible) + encode(request, version)


def decode_response(request: Request[Any], version: int, data: bytes) -> Any:
    """Decode the response to this request in this version."""
    # The header is a correlation id, and tagged fields in flexible versions: none are sent.
    return decode(request.response, version, data, 4 + (version in request.flexible))

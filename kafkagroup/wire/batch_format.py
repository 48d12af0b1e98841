"""The layout of a record batch of format v2 (magic 2), shared by `records` (reading) and
`batch_writing`.

All fields are big-endian. The field `length` is the number of bytes after it; `crc` is the CRC-32C
of the bytes after it. The number before a field is its offset in the batch:

    0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 | 17 crc u32
    21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64
    43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32 | 57 count i32 | 61 records

Attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 the base timestamp is a
delete horizon (which changes nothing for a reader). Source: KIP-98, KIP-534.
"""

from __future__ import annotations

from struct import Struct

__all__ = [
    "ATTRIBUTES_OFFSET",
    "CODEC_MASK",
    "CONTROL",
    "CRC_OFFSET",
    "HEADER",
    "HEADER_SIZE",
    "INT32",
    "INT64",
    "LAST_OFFSET_DELTA_OFFSET",
    "LEADER_EPOCH_OFFSET",
    "LOG_APPEND_TIME",
    "PREFIX",
    "TRANSACTIONAL",
    "UINT32",
]

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
PREFIX = Struct(">qi4xB")
"""Base offset, length and magic, which is at this place in every format."""
LEADER_EPOCH_OFFSET = 12  # the length counts the bytes from here on
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21  # the CRC covers the bytes from here on
LAST_OFFSET_DELTA_OFFSET = 23
INT32 = Struct(">i")
UINT32 = Struct(">I")
INT64 = Struct(">q")

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

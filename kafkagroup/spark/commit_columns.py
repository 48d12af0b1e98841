"""Committed offsets of `__consumer_offsets` as columns, without an object for each record. Pure.

Most records of the topic are commits, and most commits have a key that occurred before. Each
distinct key is decoded once. The fields of a value have fixed positions, so NumPy decodes one field
of all values in one operation. Records of any other form (old, malformed, with long metadata in
version 4, or with other tagged fields) are left to `events.event_of`, which defines what a row is.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkagroup.wire.schema import NO_ID

__all__ = ["CommitColumns", "decode_commits"]

_KEY_VERSION = b"\0\1"
"""Version 1 of OffsetCommitKey. `events.event_of` decodes version 0, which old brokers wrote."""
_VALUE_V3, _VALUE_V4 = 3, 4
_METADATA_AT = 14
"""The position of the metadata's length in both versions, after version, offset and epoch."""
_TOPIC_ID_HEADER = bytes((1, 0, 16))
"""The tagged fields of a value of version 4 with a topic id, before the id: one field, its tag 0,
its size 16."""
_ID_BYTES = 16

_Array = Any
"""`numpy.ndarray`."""


@attrs.frozen
class CommitColumns:
    """The commits among some records that `decode_commits` can decode, as columns."""

    rows: pa.Array
    """Indices of the records."""
    group_id: pa.Array
    removed: pa.Array
    """Whether the record is a tombstone."""
    commit: pa.Array
    """The decoded commit as a struct; of a tombstone only topic and partition are set."""


def decode_commits(
    keys: pa.Array, values: pa.Array, commit_type: pa.DataType, last_millisecond: int
) -> CommitColumns:
    """Decode the commits among these records, except those that are left to `events.event_of`.
    `commit_type` is the type of `CommitColumns.commit`. A later time than `last_millisecond`, in
    milliseconds since the epoch, is replaced by that one."""
    key_index, distinct_keys = _keys(keys)
    # A value has version (2 bytes), offset (8), leader epoch (4), metadata with its length, commit
    # time (8), and in version 4 tagged fields.
    starts, lengths, data = _bytes(values)
    is_tombstone = np.asarray(values.is_null())
    version = _number(data, starts, 0, ">i2", lengths >= 2)
    is_known = ((version == _VALUE_V3) | (version == _VALUE_V4)) & (lengths > _METADATA_AT + 2)
    # The size of the metadata, and below, that of all after the commit time: the tagged fields.
    size, metadata_at = _metadata(data, starts, lengths, version, is_known)
    time_at = metadata_at + size
    tags_size = lengths - time_at - 8
    tagged = np.where(is_known & (version == _VALUE_V4) & (tags_size > 0), tags_size, 0)
    has_id = (tagged == len(_TOPIC_ID_HEADER) + _ID_BYTES) & _begins(
        data, starts + time_at + 8, _TOPIC_ID_HEADER, tagged
    )
    has_no_tags = (tagged == 1) & (_number(data, starts, time_at + 8, "u1", tagged == 1) == 0)
    is_whole = np.where(version == _VALUE_V3, tags_size == 0, has_id | has_no_tags)
    rows = np.flatnonzero((key_index >= 0) & (is_tombstone | (is_known & (size >= 0) & is_whole)))
    texts, is_text = _texts(data, starts + metadata_at, np.where(is_tombstone, 0, size), rows)
    rows, texts = rows[is_text], texts.filter(pa.array(is_text))
    # From here on, all arrays have an element for each of `rows` only.
    removed, value_starts, time_at = is_tombstone[rows], starts[rows], time_at[rows]
    has_value = ~removed
    row_keys = distinct_keys.take(pa.array(key_index[rows]))
    epoch = _number(data, value_starts, 10, ">i4", has_value)
    time = _number(data, value_starts, time_at, ">i8", has_value)
    columns = {
        "topic": row_keys.field("topic"),
        "topic_id": _ids(
            data, value_starts + time_at + 8 + len(_TOPIC_ID_HEADER), has_id[rows] & has_value
        ),
        "partition": row_keys.field("partition"),
        "offset": pa.array(_number(data, value_starts, 2, ">i8", has_value), mask=removed),
        "leader_epoch": pa.array(epoch, mask=removed | (epoch < 0)),
        "metadata": pc.if_else(pa.array(has_value), texts, None),
        # Milliseconds to microseconds, Arrow's unit here; the limit prevents an overflow.
        "commit_time": pa.array(
            np.minimum(time, last_millisecond) * 1000, mask=removed | (time < 0)
        ),
        "expire_time": pa.nulls(len(rows)),
    }
    arrays = [columns[field.name].cast(field.type) for field in commit_type]
    return CommitColumns(
        pa.array(rows),
        row_keys.field("group"),
        pa.array(removed),
        pa.StructArray.from_arrays(arrays, fields=[*commit_type]),
    )


def _keys(keys: pa.Array) -> tuple[_Array, pa.StructArray]:
    """Return for each record the index of its key among the distinct keys, -1 if the record is no
    commit; and the distinct keys of commits."""
    encoded = keys.dictionary_encode()
    found = [_key(key) for key in encoded.dictionary.to_pylist()]
    kept = [n for n, key in enumerate(found) if key is not None]
    # The last element is for records without a key.
    index_of_key = np.full(len(found) + 1, -1, np.int64)
    index_of_key[kept] = np.arange(len(kept))
    index = index_of_key[np.asarray(encoded.indices.fill_null(len(found)))]
    group, topic, partition = zip(*(found[n] for n in kept), strict=True) if kept else ((), (), ())
    arrays = [
        pa.array(group, pa.string()),
        pa.array(topic, pa.string()),
        pa.array(partition, pa.int32()),
    ]
    return index, pa.StructArray.from_arrays(arrays, ["group", "topic", "partition"])


def _key(data: bytes | None) -> tuple[str, str, int] | None:
    """Return group, topic and partition of an OffsetCommitKey; None for a key of another type. It
    has version (2 bytes), group and topic, each after its length (2), and partition (4)."""
    if data is None or data[:2] != _KEY_VERSION:
        return None
    topic_at = 4 + int.from_bytes(data[2:4], "big", signed=True)
    topic_size = int.from_bytes(data[topic_at : topic_at + 2], "big", signed=True)
    partition_at = topic_at + 2 + topic_size
    if topic_at < 4 or topic_size < 0 or len(data) != partition_at + 4:
        return None
    try:
        return (
            data[4:topic_at].decode(),
            data[topic_at + 2 : partition_at].decode(),
            int.from_bytes(data[partition_at:], "big", signed=True),
        )
    except UnicodeDecodeError:
        return None


def _bytes(values: pa.Array) -> tuple[_Array, _Array, _Array]:
    """Return the start and the length of each value, and the bytes of all values. The length of
    null is 0."""
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(b"" if data is None else data, np.uint8)
    return bounds[:-1], np.where(values.is_null(), 0, np.diff(bounds)), content


def _number(data: _Array, starts: _Array, at: Any, kind: str, where: _Array) -> _Array:
    """Return the number of NumPy type `kind` at position `at` of each value, which is one position
    for all or an array with that of each; 0 where `where` is false."""
    size = np.dtype(kind).itemsize
    numbers = np.zeros(len(starts), np.int64)
    places = (starts + at)[where]
    numbers[where] = data[places[:, None] + np.arange(size)].view(kind)[:, 0]
    return numbers


def _begins(data: _Array, starts: _Array, prefix: bytes, lengths: _Array) -> _Array:
    """Return for each start whether `prefix` is there; `lengths`: how many bytes each start has."""
    enough = lengths >= len(prefix)
    found = np.zeros(len(starts), bool)
    places = starts[enough][:, None] + np.arange(len(prefix))
    found[enough] = (data[places] == np.frombuffer(prefix, np.uint8)).all(axis=1)
    return found


def _metadata(
    data: _Array, starts: _Array, lengths: _Array, version: _Array, is_known: _Array
) -> tuple[_Array, _Array]:
    """Return the length of each value's metadata, and its position in the value. The length is -1
    if the metadata is null, longer than 126 bytes in version 4, or not within the value."""
    plain = _number(data, starts, _METADATA_AT, ">i2", is_known & (version == _VALUE_V3))
    # A compact string begins with its length + 1 as a varint, which is one byte up to length 126.
    compact = _number(data, starts, _METADATA_AT, "u1", is_known & (version == _VALUE_V4))
    compact = np.where(compact < 128, compact - 1, -1)
    size = np.where(version == _VALUE_V3, plain, compact)
    at = np.where(version == _VALUE_V3, _METADATA_AT + 2, _METADATA_AT + 1)
    return np.where(at + size + 8 <= lengths, size, -1), at


def _texts(data: _Array, starts: _Array, sizes: _Array, rows: _Array) -> tuple[pa.Array, _Array]:
    """Return the text of each row, and whether its bytes are UTF-8. `starts` and `sizes` have an
    element for each record, `rows` the indices of the records to decode."""
    found: list[str] = [""] * len(rows)
    is_text = np.ones(len(rows), bool)
    for n in np.flatnonzero(sizes[rows] > 0):
        start = starts[rows[n]]
        try:
            found[n] = data[start : start + sizes[rows[n]]].tobytes().decode()
        except UnicodeDecodeError:
            is_text[n] = False
    return pa.array(found, pa.string()), is_text


def _ids(data: _Array, starts: _Array, where: _Array) -> pa.Array:
    """Return the topic id at each start as text; null where `where` is false, and for the zero
    id."""
    content = data[starts[where][:, None] + np.arange(_ID_BYTES)].tobytes()
    encoded = pa.Array.from_buffers(
        pa.binary(_ID_BYTES), int(where.sum()), [None, pa.py_buffer(content)]
    ).dictionary_encode()
    ids = [UUID(bytes=found) for found in encoded.dictionary.to_pylist()]
    texts = [None if topic_id == NO_ID else str(topic_id) for topic_id in ids]
    index = np.zeros(len(starts), np.int64)
    index[where] = np.asarray(encoded.indices)
    return pa.array(texts, pa.string()).take(pa.array(index, mask=~where))

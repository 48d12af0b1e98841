"""`Record`: the class of the records that the application gets.

If a compiler is available, this module is compiled, with the types in `_record.pxd`. Type checkers
read the declaration in `kafkagroup.types`, with type parameters for key and value; at run time
`kafkagroup.types.Record` is this class.
"""

from __future__ import annotations

from enum import IntEnum
from types import GenericAlias
from typing import Any, NoReturn, Protocol

from kafkagroup._public import public

try:
    import cython
except ImportError:  # Cython is needed to compile, not to run: users do not have it
    from kafkagroup import _uncompiled as cython

__all__ = ["Headers", "Record", "TimestampType"]

Headers = tuple[tuple[str, bytes | None], ...]
"""The headers of a record: names and values, in the order in which they were written. Bytes of a
name that are not UTF-8 are `surrogateescape`d, as in names of files, and are written unchanged."""


class TimestampType(IntEnum):
    """The origin of a record's timestamp."""

    __module__ = "kafkagroup.types"  # where users import it

    CREATE_TIME = 0
    """The producer set it when it created the record."""
    LOG_APPEND_TIME = 1
    """The broker set it when it appended the batch."""


class _Unread(Protocol):
    """Headers that are not decoded yet."""

    def read(self) -> Headers: ...


# Compiled, up to 128 freed records are reused for new ones.
@cython.freelist(128)
@cython.cclass
class Record:
    """One record as the application sees it: frozen, and compared by its values."""

    # The public properties cannot be set, so a record is frozen, but `wire.records` can still
    # assign to these slots. In the compiled form they are C fields.
    __slots__ = (
        "_headers",
        "_key",
        "_leader_epoch",
        "_offset",
        "_partition",
        "_timestamp",
        "_timestamp_type",
        "_topic",
        "_value",
    )
    __match_args__ = (
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "key",
        "value",
        "headers",
        "leader_epoch",
    )
    _fields = __match_args__  # `_fields`, `_replace` and `_asdict` work as those of a named tuple

    _topic: str
    _partition: int
    _offset: int
    _timestamp: int
    _timestamp_type: TimestampType
    _key: object
    _value: object
    _headers: Headers | _Unread
    _leader_epoch: int

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: TimestampType,
        key: object,
        value: object,
        headers: Headers,
        leader_epoch: int,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._timestamp = timestamp
        self._timestamp_type = timestamp_type
        self._key = key
        self._value = value
        self._headers = headers
        self._leader_epoch = leader_epoch

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._partition

    @property
    def offset(self) -> int:
        """The record's offset in the partition."""
        return self._offset

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch; -1 when the record has none."""
        return self._timestamp

    @property
    def timestamp_type(self) -> TimestampType:
        """The origin of the timestamp."""
        return self._timestamp_type

    @property
    def key(self) -> object:
        """Bytes (with `views`, a memoryview) or None, or the result of `key_deserializer`."""
        return self._key

    @property
    def value(self) -> object:
        """Bytes (with `views`, a memoryview) or None (a tombstone), or the result of
        `value_deserializer`."""
        return self._value

    @property
    def headers(self) -> Headers:
        """Names and values, in the order in which they were written; decoded on first access."""
        headers = self._headers
        if isinstance(headers, tuple):
            return headers
        decoded = self._headers = headers.read()
        return decoded

    @property
    def leader_epoch(self) -> int:
        """Epoch of the leader that wrote the batch; -1 when unknown."""
        return self._leader_epoch

    @classmethod
    def __class_getitem__(cls, parts: Any) -> GenericAlias:
        """Allow `Record[str, Order]` in annotations: the types of key and value."""
        return GenericAlias(cls, parts)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError for a name that a record does not have. If it is the name in
        another Kafka client, the error says what to use here."""
        from kafkagroup._foreign_names import unknown_attribute

        raise unknown_attribute(self, name)

    def _replace(self, **changes: object) -> Any:
        """Return a copy with some values changed."""
        return type(self)(**self._asdict() | changes)

    __replace__ = _replace

    def _asdict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return dict(zip(self._fields, self._values(), strict=True))

    def _values(self) -> tuple[Any, ...]:
        return (
            self._topic,
            self._partition,
            self._offset,
            self._timestamp,
            self._timestamp_type,
            self._key,
            self._value,
            self.headers,
            self._leader_epoch,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        # The same in the compiled and the uncompiled form, so that each reads the other's pickles.
        return Record, self._values()


if cython.compiled:
    # `public` cannot set the module of a C class: it is part of the type's name.
    cython.cast("PyTypeObject *", Record).tp_name = b"kafkagroup.Record"
else:
    public(Record)
    # In Python code `__getattr__` would double the time that each property takes: Python's own
    # AttributeError is enough there.
    del Record.__getattr__

"""Declarations of messages: one frozen class each, with its wire format as metadata of the fields.

`codec` turns messages into bytes and back. Source: the message format of KIP-482 (flexible
versions, tagged fields) and the schemas that ship with Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform
from uuid import UUID

from kafkagroup._values import REQUIRED, Attribute, fields, frozen

__all__ = [
    "BOOL",
    "BYTES",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "NO_ID",
    "RECORDS",
    "REQUIRED",
    "STRING",
    "UINT16",
    "UUID_",
    "Array",
    "Field",
    "Request",
    "Scalar",
    "Versions",
    "array",
    "defaults_of",
    "field",
    "fields_of",
    "message",
    "struct",
]

T = TypeVar("T")
R = TypeVar("R")

NO_ID = UUID(int=0)
"""The topic id that stands for none."""


@frozen
class Scalar:
    """A type of the protocol that is not built from others."""

    name: str
    """Its name in Kafka's schemas."""
    code: str = ""
    """Its `struct` code, for those of fixed width."""


INT8 = Scalar("int8", "b")
INT16 = Scalar("int16", "h")
UINT16 = Scalar("uint16", "H")
INT32 = Scalar("int32", "i")
INT64 = Scalar("int64", "q")
BOOL = Scalar("bool", "?")
UUID_ = Scalar("uuid", "16s")
STRING = Scalar("string")
BYTES = Scalar("bytes")
RECORDS = Scalar("records")
"""Bytes that are not copied out of the frame: a memoryview on decoding."""


@frozen
class Array:
    """Zero or more of one type; a tuple in Python."""

    element: Scalar | type
    as_rows: bool = False
    """Whether it is decoded to `wire.rows.Rows`."""


def array(element: Scalar | type, *, as_rows: bool = False) -> Array:
    """The type of an array of `element`, a scalar or a class made with `@struct`. `as_rows`: of
    such a class without arrays of others, where an answer may have more of them than the collector
    can look through at once."""
    return Array(element, as_rows)


Kind = Scalar | Array | type


@frozen
class Versions:
    """An inclusive range of versions, written as Kafka's schemas do: "0+", "2-4", "7", "none"."""

    low: int
    high: int

    @classmethod
    @cache
    def parse(cls, text: str) -> Versions:
        if text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), 32767)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))


@frozen
class Field:
    """What one field of a message is on the wire."""

    kind: Kind
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    """Dropped without a word in versions that lack it; otherwise a value there is an error."""


def field(
    kind: Kind,
    versions: str = "0+",
    *,
    default: Any = REQUIRED,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    ignorable: bool = False,
) -> Any:
    """Declare a field: its type, the versions that have it, those that allow null, its tag."""
    parse = Versions.parse
    spec = Field(kind, parse(versions), parse(nullable), tag, parse(tagged), ignorable)
    return Attribute(default, metadata={Field: spec})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def struct(cls: type[T]) -> type[T]:
    """Make `cls` a part of messages: frozen, its fields given by keyword."""
    return frozen(kw_only=True)(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def message(api_key: int, versions: str, flexible: str = "none") -> Callable[[type[T]], type[T]]:
    """Make `cls` a message: which API it is of, its versions, those with tagged fields."""

    def make(cls: type[T]) -> type[T]:
        made = cast(Any, frozen(kw_only=True)(cls))
        made.api_key = api_key
        made.versions = Versions.parse(versions)
        made.flexible = Versions.parse(flexible)
        return cast("type[T]", made)

    return make


class Request(Generic[R]):
    """Base of the requests; `R` is the class of the answer."""

    __slots__ = ()

    api_key: ClassVar[int]
    versions: ClassVar[Versions]
    flexible: ClassVar[Versions]
    response: ClassVar[type[Any]]


def fields_of(cls: type) -> dict[str, Field]:
    """The wire fields of a message or struct, in the order of the wire."""
    return {name: of.metadata[Field] for name, of in fields(cls).items()}


def defaults_of(cls: type) -> dict[str, Any]:
    """The default of each field; REQUIRED where there is none."""
    return {name: of.default for name, of in fields(cls).items()}

"""Declarations of messages: a frozen class each, with the wire format in the fields' metadata.

`codec` encodes and decodes messages. Source: the message format of KIP-482 (flexible versions,
tagged fields) and the schemas that ship with Apache Kafka.
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
    "LookUp",
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
"""The topic id that means "none"."""


@frozen
class Scalar:
    """A primitive type of the protocol."""

    name: str
    """Its name in Kafka's schemas."""
    code: str = ""
    """Its code in Python's module `struct`; "" for a type of variable length."""


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
"""Bytes that are not copied out of the frame: decoded to a memoryview, or b"" if there are none."""


@frozen
class Array:
    """Zero or more elements of one type; a tuple in Python."""

    element: Scalar | type
    as_rows: bool = False
    """Whether it is decoded to `wire.rows.Rows`."""


def array(element: Scalar | type, *, as_rows: bool = False) -> Array:
    """Return the type of an array of `element`: a scalar, or a class made with `@struct`.

    `as_rows` is for a struct without arrays of structs, if a response may have so many of them that
    the garbage collector would stop all threads for long.
    """
    return Array(element, as_rows)


Kind = Scalar | Array | type


@frozen
class Versions:
    """An inclusive range of versions, written as Kafka's schemas do: "0+", "2-4", "7", "none"."""

    low: int
    high: int

    @classmethod
    @cache  # below `classmethod`, whose objects cannot be called
    def parse(cls, text: str) -> Versions:
        """Return the range that a text denotes."""
        if text == "none":
            return cls(1, 0)  # contains no version
        if text.endswith("+"):
            return cls(int(text[:-1]), 32767)  # versions have 16 bits
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))


@frozen
class Field:
    """The wire format of one field."""

    kind: Kind
    versions: Versions
    """The versions that have the field."""
    nullable: Versions
    """The versions in which it may be null."""
    tag: int | None
    """Its tag in the `tagged` versions; None if there are none."""
    tagged: Versions
    """The versions in which it is a tagged field."""
    ignorable: bool
    """Whether a version without the field drops its value silently; if not, a value is an error."""


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
    """Declare a field by the values of its `Field`. Without a `default`, each message must be given
    a value. The result has type Any, as the annotation of the field is the type of its values."""
    parse = Versions.parse
    spec = Field(kind, parse(versions), parse(nullable), tag, parse(tagged), ignorable)
    return Attribute(default, metadata={Field: spec})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def struct(cls: type[T]) -> type[T]:
    """Make `cls` a part of messages: a frozen class with keyword arguments only."""
    return frozen(kw_only=True)(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def message(api_key: int, versions: str, flexible: str = "none") -> Callable[[type[T]], type[T]]:
    """Make `cls` a message: its API key, its versions, and those that are flexible (KIP-482). A key
    or value of `__consumer_offsets` has its type number in place of the API key; other messages
    that are neither a request nor a response have -1."""

    def make(cls: type[T]) -> type[T]:
        made = cast(Any, frozen(kw_only=True)(cls))
        made.api_key = api_key
        made.versions = Versions.parse(versions)
        made.flexible = Versions.parse(flexible)
        return cast("type[T]", made)

    return make


class Request(Generic[R]):
    """Base class of requests; `R` is the class of the response."""

    __slots__ = ()

    api_key: ClassVar[int]
    versions: ClassVar[Versions]
    flexible: ClassVar[Versions]
    response: ClassVar[type[Any]]


class LookUp(Request[R]):
    """Base class of requests that change nothing at the broker: if the response is lost, the
    request may be repeated."""

    __slots__ = ()


def fields_of(cls: type) -> dict[str, Field]:
    """Return name -> wire format of a message's or struct's fields, in the order of the wire."""
    return {name: attribute.metadata[Field] for name, attribute in fields(cls).items()}


def defaults_of(cls: type) -> dict[str, Any]:
    """Return name -> default of each field; `kafkagroup._values.REQUIRED` if it has none."""
    return {name: attribute.default for name, attribute in fields(cls).items()}

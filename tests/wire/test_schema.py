"""The codec compiler, on a message with a field of every kind."""

from __future__ import annotations

import struct as packer
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import attrs
import pytest

from kafkagroup.errors import DecodeError, LimitExceededError, LocalProtocolError
from kafkagroup.wire.codec import decode, decode_prefix, encode
from kafkagroup.wire.codec_compiler import MAX_ELEMENTS, MAX_NUMBERS
from kafkagroup.wire.primitives import encode_uvarint
from kafkagroup.wire.schema import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    RECORDS,
    STRING,
    UINT16,
    UUID_,
    Array,
    Field,
    Versions,
    array,
    field,
    fields_of,
    message,
    struct,
)

SOME_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


@struct
class Part:
    number: int = field(INT32)
    label: str = field(STRING, "1+", default="")


@struct
class Extra:
    epoch: int = field(INT64, default=-1)


@message(99, "0-3", flexible="2+")
class Everything:
    small: int = field(INT8)
    port: int = field(UINT16)
    flag: bool = field(BOOL)
    ident: UUID = field(UUID_)
    name: str | None = field(STRING, nullable="1+")
    blob: bytes | None = field(BYTES, nullable="1+")
    numbers: tuple[int, ...] | None = field(array(INT16), nullable="1+")
    idents: tuple[UUID, ...] = field(array(UUID_))
    names: tuple[str, ...] = field(array(STRING))
    parts: tuple[Part, ...] | None = field(array(Part), nullable="1+")
    late: int = field(INT32, "1+", default=-1)
    hint: str = field(STRING, "1+", default="none", ignorable=True)
    extra: Extra | None = field(Extra, "3+", default=None, nullable="3+")
    tagged_text: str | None = field(
        STRING, "2+", default=None, nullable="2+", tag=1, tagged="2+", ignorable=True
    )
    tagged_part: Extra = field(Extra, "2+", default=Extra(), tag=0, tagged="2+")
    records: bytes | memoryview = field(RECORDS, "3+", default=b"", ignorable=True)


PLAIN = Everything(
    small=-2,
    port=65535,
    flag=True,
    ident=SOME_ID,
    name="né",
    blob=b"\x00\x01",
    numbers=(1, -1),
    idents=(SOME_ID, NO_ID),
    names=("a", ""),
    parts=(Part(number=7), Part(number=-7)),
)
FIXED = "fe ffff 01" + SOME_ID.hex
BYTES_OF_V0 = bytes.fromhex(
    FIXED
    + "0003 6ec3a9"  # name
    + "00000002 0001"  # blob
    + "00000002 0001 ffff"  # numbers
    + f"00000002 {SOME_ID.hex} {NO_ID.hex}"  # idents
    + "00000002 0001 61 0000"  # names
    + "00000002 00000007 fffffff9"  # parts
)
FULL = attrs.evolve(
    PLAIN,
    parts=(Part(number=7, label="x"), Part(number=-7)),
    late=5,
    hint="h",
    extra=Extra(epoch=2),
    tagged_text="t",
    tagged_part=Extra(epoch=3),
    records=b"rec",
)
INLINE_OF_V3 = bytes.fromhex(
    FIXED
    + "04 6ec3a9"  # name
    + "03 0001"  # blob
    + "03 0001 ffff"  # numbers
    + f"03 {SOME_ID.hex} {NO_ID.hex}"  # idents
    + "03 02 61 01"  # names
    + "03 00000007 02 78 00 fffffff9 01 00"  # parts, each with its own empty tags
    + "00000005 02 68"  # late, hint
    + "01 0000000000000002 00"  # extra: present, then the struct
    + "04 726563"  # records
)
TAG_0 = bytes.fromhex("00 09 0000000000000003 00")
TAG_1 = bytes.fromhex("01 02 02 74")
BYTES_OF_V3 = INLINE_OF_V3 + b"\x02" + TAG_0 + TAG_1


@message(-1, "0")
class Names:
    names: tuple[str, ...] = field(array(STRING))


@message(-1, "0")
class Numbers:
    numbers: tuple[int, ...] = field(array(INT32))


@message(-1, "0")
class NumberLists:
    lists: tuple[Numbers, ...] = field(array(Numbers))


def refusal(kind: type[Exception], call: Callable[..., object], *args: object) -> str:
    with pytest.raises(kind) as caught:
        call(*args)
    assert type(caught.value) is kind
    return str(caught.value)


# ---------------------------------------------------------------- the shape on the wire


def test_version_0_byte_for_byte() -> None:
    assert encode(PLAIN, 0) == BYTES_OF_V0
    assert decode(Everything, 0, BYTES_OF_V0) == PLAIN


def test_a_flexible_version_byte_for_byte() -> None:
    assert encode(FULL, 3) == BYTES_OF_V3
    assert decode(Everything, 3, BYTES_OF_V3) == FULL


def test_a_null_length_is_minus_one_or_zero_in_flexible_versions() -> None:
    nothing = attrs.evolve(PLAIN, name=None, blob=None, numbers=None, parts=None, hint="")
    before = bytes.fromhex(FIXED)
    idents = bytes.fromhex(f"00000002 {SOME_ID.hex} {NO_ID.hex}")
    names = bytes.fromhex("00000002 0001 61 0000")
    late = bytes.fromhex("ffffffff 0000")
    v1 = before + b"\xff" * 10 + idents + names + b"\xff" * 4 + late
    assert encode(nothing, 1) == v1
    assert decode(Everything, 1, v1) == nothing

    idents, names = idents[3:].replace(b"\x02", b"\x03", 1), bytes.fromhex("03 02 61 01")
    late = bytes.fromhex("ffffffff 01")
    v3 = before + bytes(3) + idents + names + bytes(1) + late + b"\xff" + b"\x01" + b"\x00"
    assert encode(nothing, 3) == v3
    assert decode(Everything, 3, v3) == nothing


def test_records_are_not_copied_out_of_the_frame() -> None:
    found = decode(Everything, 3, BYTES_OF_V3).records
    assert isinstance(found, memoryview)
    assert found.obj is BYTES_OF_V3


def test_empty_records_are_no_object_tracked_by_the_garbage_collector() -> None:
    data = encode(attrs.evolve(FULL, records=b""), 3)
    assert type(decode(Everything, 3, data).records) is bytes


def test_fields_missing_in_a_version_decode_to_their_default() -> None:
    found = decode(Everything, 2, encode(attrs.evolve(FULL, extra=None), 2))
    assert found == attrs.evolve(FULL, extra=None, records=b"")


def test_required_fields_have_no_default() -> None:
    with pytest.raises(TypeError, match="ident"):
        Everything(**{n: getattr(PLAIN, n) for n in fields_of(Everything) if n != "ident"})


def test_a_missing_required_field_of_a_default_struct_decodes_to_zero() -> None:
    @struct
    class Inner:
        text: str = field(STRING)
        number: int = field(INT8)
        flag: bool = field(BOOL)
        ident: UUID = field(UUID_)
        blob: bytes = field(BYTES)
        several: tuple[int, ...] = field(array(INT8))

    @message(98, "0-1")
    class Outer:
        old: int = field(INT8)
        inner: Inner = field(Inner, "1+")

    zero = Inner(text="", number=0, flag=False, ident=NO_ID, blob=b"", several=())
    assert decode(Outer, 0, b"\x05") == Outer(old=5, inner=zero)


def test_prefix_and_offset() -> None:
    data = b"??" + BYTES_OF_V3 + b"rest"
    assert decode_prefix(Everything, 3, data, 2) == (FULL, 2 + len(BYTES_OF_V3))
    assert decode(Everything, 3, data[:-4], 2) == FULL


def test_versions_and_fields() -> None:
    assert Versions.parse("none") == Versions(1, 0)
    assert [Versions.parse(t) for t in ("3", "3-5", "3+")] == [
        Versions(3, 3),
        Versions(3, 5),
        Versions(3, 32767),
    ]
    assert list(Versions(3, 5)) == [3, 4, 5]
    assert [v in Versions(3, 5) for v in (2, 3, 5, 6)] == [False, True, True, False]
    assert fields_of(Part) == {
        "number": Field(INT32, Versions(0, 32767), Versions(1, 0), None, Versions(1, 0), False),
        "label": Field(STRING, Versions(1, 32767), Versions(1, 0), None, Versions(1, 0), False),
    }
    assert fields_of(Everything)["parts"].kind == Array(Part)


@pytest.mark.parametrize("version", [-1, 4])
def test_an_unsupported_version_of_a_message_is_an_error(version: int) -> None:
    expected = f"Everything has no version {version}"
    assert refusal(LocalProtocolError, encode, PLAIN, version) == expected
    assert refusal(LocalProtocolError, decode, Everything, version, b"") == expected


# ---------------------------------------------------------------- tagged fields


def with_tags(*tags: bytes, count: bytes = b"") -> bytes:
    return INLINE_OF_V3 + (count or encode_uvarint(len(tags))) + b"".join(tags)


def test_tagged_fields_at_their_default_are_not_written() -> None:
    bare = attrs.evolve(FULL, tagged_text=None, tagged_part=Extra())
    assert encode(bare, 3) == with_tags()
    assert encode(attrs.evolve(bare, tagged_text=""), 3) == with_tags(b"\x01\x01\x01")


def test_unknown_tags_are_skipped_at_any_position() -> None:
    unknown = b"\x07\x03abc"
    wide = encode_uvarint(2**31) + encode_uvarint(300) + bytes(300)
    assert decode(Everything, 3, with_tags(TAG_0, unknown, TAG_1, wide)) == FULL
    assert decode(Everything, 3, with_tags(unknown, TAG_0, TAG_1, b"\x08\x00")) == FULL
    # Also in a struct without tagged fields of its own: here the first element of `parts`.
    where = INLINE_OF_V3.index(bytes.fromhex("00000007 02 78 00")) + 6
    inside = BYTES_OF_V3[:where] + b"\x01" + unknown + BYTES_OF_V3[where + 1 :]
    assert decode(Everything, 3, inside) == FULL


def test_tags_are_decoded_in_any_order_and_may_be_null() -> None:
    assert decode(Everything, 3, with_tags(TAG_1, TAG_0)) == FULL
    null = attrs.evolve(FULL, tagged_text=None)
    assert decode(Everything, 3, with_tags(TAG_0, b"\x01\x01\x00")) == null


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_tags(b"\x01\x03\x02t\x00"), "tagged field tagged_text is not of its stated size"),
        (with_tags(b"\x01\x01\x02t"), "tagged field tagged_text is not of its stated size"),
        (with_tags(b"\x01\x03\x02t"), "tagged field claims 3, but only 2 bytes are left"),
        (with_tags(b"\x07\x05abc"), "tagged field claims 5, but only 3 bytes are left"),
        (with_tags(b"\x07\xff\xff\xff\xff\x0f"), "tagged field claims 4294967295, but only 0"),
        (with_tags(TAG_0, count=b"\x02"), "input ends inside an unsigned varint"),
        (with_tags(TAG_0, count=b"\xff\xff\xff\xff\x0f"), "tagged fields claims 4294967295, but"),
        (with_tags(count=b"\xff\xff\xff\xff\x1f"), "unsigned varint exceeds 32 bits"),
        (with_tags(count=b"\x80\x80\x80\x80\x80\x01"), "unsigned varint is longer than 5 bytes"),
        (with_tags(TAG_0, count=b"\x00"), f"{len(TAG_0)} bytes left over"),
    ],
)
def test_malformed_tags_are_an_error(data: bytes, message: str) -> None:
    found = refusal(DecodeError, decode, Everything, 3, data)
    assert found.startswith(f"Everything v3: {message}")


def test_a_tag_count_of_four_billion_is_an_error() -> None:
    """Each tag takes at least two bytes: no tag is decoded."""
    for tags in (b"\x07\x00" * 10, b"\x07\x00" * 1000):
        hostile = with_tags(tags, count=b"\xff\xff\xff\xff\x0f")
        claims = "tagged fields claims 4294967295, but only"
        assert claims in refusal(DecodeError, decode, Everything, 3, hostile)
        where = INLINE_OF_V3.index(bytes.fromhex("00000007 02 78 00")) + 6
        inside = INLINE_OF_V3[:where] + b"\xff\xff\xff\xff\x0f" + tags
        assert claims in refusal(DecodeError, decode, Everything, 3, inside)


# ---------------------------------------------------------------- bad input


@message(97, "0-2", flexible="2+")
class Lengths:
    text: str | None = field(STRING, nullable="1+")
    blob: bytes | None = field(BYTES, nullable="1+")
    several: tuple[int, ...] | None = field(array(INT64), nullable="1+")
    parts: tuple[Part, ...] | None = field(array(Part), nullable="1+")


@pytest.mark.parametrize(
    ("size", "prefix"), [(0, "01"), (126, "7f"), (127, "8001"), (128, "8101"), (16383, "808001")]
)
def test_compact_lengths_around_each_varint_size(size: int, prefix: str) -> None:
    value = Lengths(text="x" * size, blob=b"y" * size, several=(7,) * size, parts=())
    head = bytes.fromhex(prefix)
    data = head + b"x" * size + head + b"y" * size + head + packer.pack(">q", 7) * size
    data += b"\x01\x00"
    assert encode(value, 2) == data
    assert decode(Lengths, 2, data) == value


def test_a_skipped_tag_longer_than_the_bytes_is_an_error() -> None:
    """In a message without tagged fields, the check for trailing bytes must catch this."""
    bare = bytes.fromhex("01 01 01 01")
    assert decode_prefix(Lengths, 2, bare + b"\x01\x07\x03abc??")[1] == len(bare) + 6
    for tags in (b"\x01\x07\x04abc", b"\x01\x07\xff\xff\xff\xff\x0f"):
        message = refusal(DecodeError, decode_prefix, Lengths, 2, bare + tags)
        assert message.startswith("Lengths v2: tagged field claims ")


EMPTY_V0 = b"\x00\x00" + b"\x00" * 12
CLAIMS: list[tuple[str, int, int, int]] = [("text", 0, 2, 1), ("blob", 2, 4, 1)]
CLAIMS += [("several", 6, 4, 8), ("parts", 10, 4, 4)]


@pytest.mark.parametrize(("name", "where", "width", "_smallest"), CLAIMS)
@pytest.mark.parametrize("version", [0, 1])
def test_a_negative_length_other_than_an_allowed_null_is_an_error(
    name: str, where: int, width: int, _smallest: int, version: int
) -> None:
    def claiming(length: int) -> bytes:
        claim = length.to_bytes(width, "big", signed=True)
        return EMPTY_V0[:where] + claim + EMPTY_V0[where + width :]

    left = len(EMPTY_V0) - where - width
    empty = Lengths(text="", blob=b"", several=(), parts=())
    if version == 1:
        assert decode(Lengths, 1, claiming(-1)) == attrs.evolve(empty, **{name: None})
    else:
        message = refusal(DecodeError, decode, Lengths, 0, claiming(-1))
        assert message == f"Lengths v0: {name} is null, which this version does not allow"
    for length in (-2, -(2 ** (8 * width - 1))):
        message = refusal(DecodeError, decode, Lengths, version, claiming(length))
        assert message == (
            f"Lengths v{version}: {name} claims {length}, but only {left} bytes are left"
        )


@pytest.mark.parametrize(("name", "where", "width", "smallest"), CLAIMS)
def test_a_length_beyond_the_bytes_is_an_error_before_any_allocation(
    name: str, where: int, width: int, smallest: int
) -> None:
    tail = bytes(1000)
    decode(Lengths, 0, EMPTY_V0)  # compiled before memory is measured
    for length in (1000 // smallest + 1, 2 ** (8 * width - 1) - 1):
        data = EMPTY_V0[:where] + length.to_bytes(width, "big") + tail
        tracemalloc.start()
        try:
            message = refusal(DecodeError, decode, Lengths, 0, data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert message == f"Lengths v0: {name} claims {length}, but only 1000 bytes are left"
        assert peak < 20_000


def test_a_compact_length_beyond_the_bytes_is_an_error() -> None:
    for before, name in (("", "text"), ("01", "blob"), ("0101", "several"), ("010101", "parts")):
        data = bytes.fromhex(before) + b"\xff\xff\xff\xff\x0f" + bytes(50)
        message = refusal(DecodeError, decode, Lengths, 2, data)
        assert message == f"Lengths v2: {name} claims 4294967294, but only 50 bytes are left"


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_text_that_is_not_utf8_is_an_error(text: bytes) -> None:
    data = packer.pack(">h", len(text)) + text + bytes(12)
    assert "'utf-8' codec can't decode" in refusal(DecodeError, decode, Lengths, 0, data)


@pytest.mark.parametrize("version", [0, 3])
def test_every_truncation_is_an_error(version: int) -> None:
    data = BYTES_OF_V0 if version == 0 else BYTES_OF_V3
    for end in range(len(data)):
        message = refusal(DecodeError, decode, Everything, version, data[:end])
        assert message.startswith(f"Everything v{version}: ")


def test_the_end_inside_a_fixed_width_field_is_an_error() -> None:
    message = refusal(DecodeError, decode, Everything, 0, BYTES_OF_V0[:3])
    assert message == "Everything v0: the input ends early, after 3 bytes"


def test_trailing_bytes_are_an_error() -> None:
    message = refusal(DecodeError, decode, Everything, 0, BYTES_OF_V0 + b"xyz")
    assert message == "Everything v0: 3 bytes left over"


def test_a_nullable_struct_starts_with_minus_one_or_one() -> None:
    """KIP-893."""
    assert encode(attrs.evolve(FULL, extra=None), 3) == BYTES_OF_V3.replace(
        bytes.fromhex("01 0000000000000002 00"), b"\xff"
    )
    where = BYTES_OF_V3.index(bytes.fromhex("01 0000000000000002 00"))
    for byte in (0, 2, 254):
        data = BYTES_OF_V3[:where] + bytes([byte]) + BYTES_OF_V3[where + 1 :]
        assert refusal(DecodeError, decode, Everything, 3, data) == (
            f"Everything v3: extra begins with {byte}, which is neither null (-1) nor present (1)"
        )


def test_a_tagged_nullable_struct_starts_with_zero_or_one() -> None:
    """As Kafka's generated classes read and write it: an unsigned varint, not an int8."""

    @message(99, "0", flexible="0+")
    class Holder:
        extra: Extra | None = field(Extra, default=Extra(), nullable="0+", tag=0, tagged="0+")

    some, none = Holder(extra=Extra(epoch=2)), Holder(extra=None)
    for holder, data in ((some, "01 00 0a 01 0000000000000002 00"), (none, "01 00 01 00")):
        assert encode(holder, 0) == bytes.fromhex(data)
        assert decode(Holder, 0, bytes.fromhex(data)) == holder
    assert refusal(DecodeError, decode, Holder, 0, bytes.fromhex("01 00 01 ff")) == (
        "Holder v0: extra begins with 255, which is neither null (0) nor present (1)"
    )


def test_an_array_of_structs_with_only_a_null_struct_is_decoded() -> None:
    """Its bound must count one byte per element, not the size of the missing struct."""

    @struct
    class Holder:
        extra: Extra | None = field(Extra, nullable="0+")

    @message(96, "0")
    class Holders:
        several: tuple[Holder, ...] = field(array(Holder))

    nulls = Holders(several=(Holder(extra=None),) * 2)
    assert encode(nulls, 0) == b"\x00\x00\x00\x02\xff\xff"
    assert decode(Holders, 0, b"\x00\x00\x00\x02\xff\xff") == nulls


# ---------------------------------------------------------------- what we must not send


@pytest.mark.parametrize(
    ("changes", "version", "message"),
    [
        ({"late": 0}, 0, "late is set, which this version does not have"),
        ({"tagged_part": Extra(epoch=0)}, 1, "tagged_part is set, which this version does not"),
        ({"extra": Extra()}, 2, "extra is set, which this version does not have"),
        ({"parts": (Part(number=1, label="x"),)}, 0, "label is set, which this version does not"),
        ({"name": None}, 0, "name is None, which this version does not allow"),
        ({"blob": None}, 0, "blob is None, which this version does not allow"),
        ({"numbers": None}, 0, "numbers is None, which this version does not allow"),
        ({"parts": None}, 0, "parts is None, which this version does not allow"),
        ({"names": ("a", None)}, 3, "names is None, which this version does not allow"),
        ({"ident": None}, 3, ""),
        ({"flag": True, "small": 128}, 0, ""),
        ({"small": -129}, 3, ""),
        ({"small": None}, 3, ""),
        ({"small": 1.0}, 3, ""),
        ({"port": -1}, 3, ""),
        ({"port": 65536}, 3, ""),
        ({"numbers": (0, 32768)}, 0, ""),
        ({"numbers": (0, None)}, 3, ""),
        ({"tagged_part": Extra(epoch=2**63)}, 3, ""),
        ({"parts": (Part(number=2**31),)}, 3, ""),
        ({"name": "\ud800"}, 3, "'utf-8' codec can't encode"),
        ({"name": "x" * 32768}, 0, "name is 32768 bytes long, but a string has at most 32767"),
        ({"name": "x" * 32768}, 3, "name is 32768 bytes long, but a string has at most 32767"),
        ({"name": "é" * 16384}, 3, "name is 32768 bytes long, but a string has at most 32767"),
        ({"names": ("x" * 32768,)}, 3, "names is 32768 bytes long"),
        ({"tagged_text": "x" * 32768}, 3, "tagged_text is 32768 bytes long"),
        ({"name": b"bytes"}, 3, ""),
        ({"blob": "text"}, 3, ""),
    ],
)
def test_invalid_values_cannot_be_encoded(
    changes: dict[str, Any], version: int, message: str
) -> None:
    wrong = attrs.evolve(PLAIN, **changes)
    found = refusal(LocalProtocolError, encode, wrong, version)
    assert found.startswith(f"Everything v{version}: {message}")


def test_ignorable_fields_are_dropped_without_an_error() -> None:
    assert encode(attrs.evolve(PLAIN, hint="h", tagged_text="t", records=b"r"), 0) == BYTES_OF_V0


@pytest.mark.parametrize("version", [0, 3])
def test_the_longest_string_and_the_largest_integers_round_trip(version: int) -> None:
    widest = attrs.evolve(
        PLAIN,
        small=-128,
        port=0,
        name="x" * 32767,
        numbers=(-32768, 32767),
        parts=(Part(number=-(2**31)), Part(number=2**31 - 1)),
    )
    assert decode(Everything, version, encode(widest, version)) == widest


def test_an_array_with_too_many_elements_is_an_error() -> None:
    """A frame of the smallest elements would take many times its bytes as objects."""
    data = packer.pack(">i", MAX_ELEMENTS + 1) + bytes(2 * (MAX_ELEMENTS + 1))
    with pytest.raises(LimitExceededError, match="more than 250000 elements, 250001 of them in na"):
        decode(Names, 0, data)


def test_an_array_with_too_many_numbers_is_an_error() -> None:
    """They are unpacked by one call, during which no other thread runs."""
    data = packer.pack(">i", MAX_NUMBERS + 1) + bytes(4 * (MAX_NUMBERS + 1))
    with pytest.raises(LimitExceededError, match="more than 1000000 elements, 1000001 of them in"):
        decode(Numbers, 0, data)
    assert len(decode(Numbers, 0, packer.pack(">i", MAX_NUMBERS) + data[8:]).numbers) == MAX_NUMBERS


def test_the_element_limit_applies_to_all_arrays_of_a_message_together() -> None:
    """`PLAIN` has two identifiers, two names and two parts; the numbers are too few to count."""
    data = encode(PLAIN, 0)
    assert decode(Everything, 0, data, max_elements=6) == PLAIN
    found = refusal(LimitExceededError, partial(decode, Everything, 0, data, max_elements=5))
    assert found == "Everything v0: more than 5 elements, 2 of them in parts"


def test_sixteen_numbers_count_as_one_element() -> None:
    data = encode(Numbers(numbers=tuple(range(47))), 0)
    assert decode(Numbers, 0, data, max_elements=2).numbers == tuple(range(47))
    with pytest.raises(LimitExceededError, match="more than 1 elements, 47 of them in numbers"):
        decode(Numbers, 0, data, max_elements=1)


def test_tagged_fields_count_as_elements() -> None:
    """A heartbeat with eight million tagged fields blocked the loop for seconds."""
    data = with_tags(*[b"\x07\x00"] * 10)
    untagged = attrs.evolve(FULL, tagged_text=None, tagged_part=Extra())
    assert decode(Everything, 3, data, max_elements=16) == untagged
    with pytest.raises(LimitExceededError, match="10 of them in tagged fields"):
        decode(Everything, 3, data, max_elements=15)


def test_equal_short_arrays_of_numbers_are_one_tuple() -> None:
    """The garbage collector has fewer objects to traverse: most partitions share their replicas."""
    three = (1_000, 2_000, 3_000)
    many = NumberLists(lists=(Numbers(numbers=three), Numbers(numbers=tuple(three))))
    first, second = decode(NumberLists, 0, encode(many, 0)).lists
    assert (first.numbers, first.numbers is second.numbers) == (three, True)

"""Every message in every version: its fields against Kafka's schemas, and hostile input.

`tests/data/schemas.json` contains the schemas of Apache Kafka.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import (
    DATA,
    KAFKA,
    MAKER,
    MESSAGES,
    PAIRS,
    REQUIRED,
    damaged,
    is_record,
    messages,
    repeatable,
    zero,
    zero_of,
)

from kafkagroup.errors import DecodeError, LocalProtocolError
from kafkagroup.testing._jars import LocalKafkaUnavailable, find_java, resolve_jars
from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.schema import (
    BOOL,
    BYTES,
    NO_ID,
    RECORDS,
    STRING,
    UUID_,
    Array,
    Field,
    Kind,
    Request,
    Scalar,
    Versions,
    fields_of,
)

ALL_TYPES = [n for n in range(24) if n not in (9, 18)]
"""Numbers of the types of records in Kafka 4.3."""
every_pair = pytest.mark.parametrize(("cls", "version"), PAIRS)


# ---------------------------------------------------------------- the facts


def structs_of(cls: type) -> dict[str, type]:
    """Return the message and every struct below it, by name, parents first."""
    found = {cls.__name__: cls}
    for spec in fields_of(cls).values():
        inner = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if isinstance(inner, type):
            found |= structs_of(inner)
    return found


def type_text(kind: Kind) -> str:
    if isinstance(kind, Array):
        return "[]" + type_text(kind.element)
    return kind.name if isinstance(kind, Scalar) else kind.__name__


@attrs.frozen
class Facts:
    """One field, with version ranges limited to the versions of the message."""

    name: str
    type: str
    versions: tuple[int, ...]
    nullable: tuple[int, ...]
    tag: int | None
    tagged: tuple[int, ...]
    ignorable: bool
    default: Any


def our_facts(cls: Any, valid: Versions) -> list[Facts]:
    facts = []
    for attribute in attrs.fields(cls):
        spec: Field = attribute.metadata[Field]
        present = [v for v in valid if v in spec.versions]
        facts.append(
            Facts(
                name=attribute.name,
                type=type_text(spec.kind),
                versions=tuple(present),
                nullable=tuple(v for v in present if v in spec.nullable),
                tag=spec.tag,
                tagged=tuple(v for v in present if v in spec.tagged),
                ignorable=spec.ignorable,
                default=attribute.default,
            )
        )
    return facts


def kafka_facts(struct: Any, stated: list[dict[str, Any]], valid: Versions) -> list[Facts]:
    kinds = {name: spec.kind for name, spec in fields_of(struct).items()}
    required = {a.name for a in attrs.fields(struct) if a.default is REQUIRED}
    facts = []
    for fact in stated:
        versions = Versions.parse(fact["versions"])
        nullable = Versions.parse(fact.get("nullable", "none"))
        tagged = Versions.parse(fact.get("tagged", "none"))
        present = [v for v in valid if v in versions]
        if "default" in fact:
            default = fact["default"]
        elif fact["versions"] == "0+" or (fact["name"] in required and present == list(valid)):
            # Kafka names no default, and it is in every version: who builds the message must say.
            default = REQUIRED
        else:
            default = zero(kinds[fact["name"]]) if fact["name"] in kinds else "no such field"
        facts.append(
            Facts(
                name=fact["name"],
                type=fact["type"],
                versions=tuple(present),
                nullable=tuple(v for v in present if v in nullable),
                tag=fact.get("tag"),
                tagged=tuple(v for v in present if v in tagged),
                ignorable=fact.get("ignorable", False),
                default=default,
            )
        )
    return facts


def test_the_data_covers_exactly_the_declared_messages() -> None:
    assert list(MESSAGES) == list(KAFKA), "run tests/data/make_schemas.py"


@pytest.mark.parametrize("name", MESSAGES)
def test_facts_equal_kafkas_schema(name: str) -> None:
    ours, kafkas = MESSAGES[name], KAFKA[name]
    assert (ours.api_key, ours.versions) == (kafkas["api_key"], Versions.parse(kafkas["versions"]))
    flexible = Versions.parse(kafkas["flexible"])
    assert [v in ours.flexible for v in ours.versions] == [v in flexible for v in ours.versions]
    structs = structs_of(ours)
    assert sorted(structs) == sorted(kafkas["structs"])
    for struct, stated in kafkas["structs"].items():
        expected = kafka_facts(structs[struct], stated, ours.versions)
        assert our_facts(structs[struct], ours.versions) == expected


def test_keys_and_values_are_paired() -> None:
    keys = {name: cls for name, cls in MESSAGES.items() if is_record(cls) and name.endswith("Key")}
    paired = {name: name.removesuffix("Key") + "Value" for name in keys}
    assert {name for name, cls in MESSAGES.items() if is_record(cls)} == {
        *paired,
        *paired.values(),
    }
    for name, value in paired.items():
        assert MESSAGES[name].api_key == MESSAGES[value].api_key
    assert sorted(cls.api_key for cls in keys.values()) == ALL_TYPES


def test_requests_and_responses_are_paired() -> None:
    sent = {name: cls for name, cls in MESSAGES.items() if not is_record(cls)}
    requests = {name: cls for name, cls in sent.items() if name.endswith("Request")}
    assert all(issubclass(cls, Request) for cls in requests.values())
    paired = {name: cls.response.__name__ for name, cls in requests.items()}
    assert paired == {name: name.removesuffix("Request") + "Response" for name in requests}
    assert set(sent) == set(paired) | set(paired.values())
    for cls in requests.values():
        assert (cls.api_key, cls.versions) == (cls.response.api_key, cls.response.versions)


def kafkas_jars() -> Path:
    """Return the jars that exist already; a comparison does not justify a download."""
    try:
        return resolve_jars("4.3.1", find_java(), timeout=0)
    except LocalKafkaUnavailable as error:
        pytest.skip(f"schemas.json is NOT COMPARED with Kafka's jar: {error}")


@pytest.mark.slow
def test_the_data_equals_the_schemas_of_the_jar() -> None:
    facts = MAKER["facts_of_jars"](kafkas_jars(), list(MESSAGES))
    assert facts == KAFKA
    assert MAKER["render"](facts) == (DATA / "schemas.json").read_text()


# ---------------------------------------------------------------- bad input


def check_decodes_or_refuses(cls: Any, version: int, data: bytes) -> None:
    try:
        value = decode(cls, version, data)
    except DecodeError:
        return
    # What was taken is a whole value: it can be sent on, and means the same.
    assert decode(cls, version, encode(value, version)) == value


@pytest.mark.slow
@every_pair
def test_any_bytes_give_a_message_or_a_decode_error(cls: Any, version: int) -> None:
    @repeatable(8)
    @given(st.binary(max_size=64))
    def any_bytes(data: bytes) -> None:
        check_decodes_or_refuses(cls, version, data)

    @repeatable(20)
    @given(messages(cls, version).map(lambda m: encode(m, version)).flatmap(damaged))
    def damaged_bytes(data: bytes) -> None:
        check_decodes_or_refuses(cls, version, data)

    any_bytes()
    damaged_bytes()


def sample(kind: Kind, version: int) -> Any:
    """Return a value with something in every place, so that every length is encoded."""
    if isinstance(kind, Array):
        return (sample(kind.element, version),)
    if isinstance(kind, type):
        empty: Any = zero_of(kind)
        present = {
            name: sample(spec.kind, version)
            for name, spec in fields_of(kind).items()
            if version in spec.versions
        }
        return attrs.evolve(empty, **present)
    return {STRING: "text", BYTES: b"blob", RECORDS: b"records", UUID_: NO_ID, BOOL: True}.get(
        kind, 1
    )


@every_pair
def test_a_claimed_length_allocates_no_memory(cls: Any, version: int) -> None:
    """A length of two billion at any place is an error or skipped, never allocated."""
    data = encode(sample(cls, version), version) + b"\x00" * 8
    decoded = decode(cls, version, data[:-8])
    assert decoded == sample(cls, version)
    tracemalloc.start()
    try:
        for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"):
            for where in range(len(data)):
                hostile = data[:where] + claim + data[where + len(claim) :]
                try:
                    decode(cls, version, hostile)
                except DecodeError:
                    continue
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


FLEXIBLE = [pair for pair in PAIRS if pair.values[1] in pair.values[0].flexible]


@pytest.mark.parametrize(("cls", "version"), FLEXIBLE)
def test_unknown_tagged_fields_are_skipped(cls: Any, version: int) -> None:
    bare = zero_of(cls)
    data = encode(bare, version)
    assert data[-1:] == b"\x00"  # the count of the outermost tagged fields
    newer = data[:-1] + b"\x02" + b"\xe7\x07\x03new" + b"\xe8\x07\x00"
    assert decode(cls, version, newer) == bare


# ---------------------------------------------------------------- what we must not send


def other_than(kind: Kind, default: Any) -> Any:
    """Return a value of this type that is not the default."""
    if isinstance(kind, Array):
        return (zero(kind.element),)
    if isinstance(kind, type):
        name, spec = next(iter(fields_of(kind).items()))
        return attrs.evolve(default or zero_of(kind), **{name: other_than(spec.kind, 0)})
    if kind in (STRING, BYTES, RECORDS):
        return "x" if kind is STRING else b"x"
    return not default if kind is BOOL else default + 1


def absent_fields() -> Iterator[Any]:
    for name, cls in MESSAGES.items():
        for field, spec in fields_of(cls).items():
            absent = [v for v in cls.versions if v not in spec.versions]
            if absent and not (spec.ignorable and spec.kind is UUID_):
                yield pytest.param(cls, field, absent, id=f"{name}.{field}")


@pytest.mark.parametrize(("cls", "field", "absent"), list(absent_fields()))
def test_a_value_that_a_version_cannot_encode_is_an_error_or_dropped(
    cls: Any, field: str, absent: list[int]
) -> None:
    """An error names the field; a field that is ignorable in Kafka's schema is dropped."""
    spec, bare = fields_of(cls)[field], zero_of(cls)
    wrong = attrs.evolve(bare, **{field: other_than(spec.kind, getattr(bare, field))})
    for version in absent:
        if spec.ignorable:
            assert encode(wrong, version) == encode(bare, version)
            continue
        with pytest.raises(LocalProtocolError) as caught:
            encode(wrong, version)
        assert str(caught.value) == (
            f"{cls.__name__} v{version}: {field} is set, which this version does not have"
        )


@every_pair
def test_null_is_encoded_only_where_the_version_allows_it(cls: Any, version: int) -> None:
    bare = zero_of(cls)
    for name, spec in fields_of(cls).items():
        if version not in spec.versions or (isinstance(spec.kind, Scalar) and spec.kind.code):
            continue
        none = attrs.evolve(bare, **{name: None})
        if version in spec.nullable:
            assert getattr(decode(cls, version, encode(none, version)), name) is None
        else:
            with pytest.raises(LocalProtocolError, match=f"^{cls.__name__} v{version}: "):
                encode(none, version)

"""Generate and compile codecs: straight-line Python for one message in one version.

A decoder checks every length against the available bytes before it uses it. It returns a message,
or raises `DecodeError` or a subclass. `schema` has the types by which `messages` declares them, and
`codec` caches the compiled codecs. Source: KIP-482, and KIP-893 for structs that may be null.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast
from uuid import UUID

from kafkagroup.errors import DecodeError, LimitExceededError, LocalProtocolError
from kafkagroup.wire.primitives import UVARINT_1, encode_uvarint, read_uvarint
from kafkagroup.wire.rows import Rows
from kafkagroup.wire.schema import (
    BOOL,
    BYTES,
    NO_ID,
    RECORDS,
    REQUIRED,
    STRING,
    UUID_,
    Array,
    Field,
    Kind,
    Scalar,
    defaults_of,
    fields_of,
)

__all__ = ["MAX_ELEMENTS", "MAX_NUMBERS", "MAX_STRING", "compile_decoder", "compile_encoder"]

MAX_ELEMENTS = 250_000
"""The maximum number of elements in all arrays of one message, unless the decoder is given another
limit; numbers count less. The metadata of 200,000 partitions,
about the most in any cluster of Kafka, has somewhat fewer. More objects would fill the memory,
because an element of three bytes takes a hundred as an object, and the garbage collector would stop
all threads for more than 50 ms to traverse them."""

MAX_NUMBERS = 1_000_000
"""The maximum number of numbers in one array: a single call unpacks them, which blocks all
threads."""

_NUMBERS_PER_ELEMENT = 16
"""How many numbers take as long to decode as one element of another type, and so count as one."""

MAX_STRING = 32767
"""The maximum size of a string to encode, in bytes of UTF-8: Kafka closes the connection on a
longer one, in all versions."""


# ---------------------------------------------------------------- called by generated code


def _short(what: str, claim: int, left: int) -> DecodeError:
    return DecodeError(f"{what} claims {claim}, but only {left} bytes are left")


def _null(what: str) -> DecodeError:
    return DecodeError(f"{what} is null, which this version does not allow")


def _too_many(what: str, claim: int, limit: int) -> LimitExceededError:
    return LimitExceededError(f"more than {limit} elements, {claim} of them in {what}")


def _skip_tags(buf: bytes, pos: int, count: int) -> int:
    for _ in range(count):
        _tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
        if pos > len(buf):
            raise _short("tagged field", size, len(buf) - pos + size)
    return pos


def _ends_early(size: int) -> DecodeError:
    return DecodeError(f"the input ends early, after {size} bytes")


def _bad_marker(what: str, marker: int, null: int) -> DecodeError:
    expected = -1 if null == 255 else null  # the marker is an int8, and was read as a byte
    return DecodeError(
        f"{what} begins with {marker}, which is neither null ({expected}) nor present (1)"
    )


def _not_in_version(name: str) -> LocalProtocolError:
    return LocalProtocolError(f"{name} is set, which this version does not have")


def _not_nullable(name: str) -> LocalProtocolError:
    return LocalProtocolError(f"{name} is None, which this version does not allow")


def _too_long(name: str, size: int) -> LocalProtocolError:
    return LocalProtocolError(f"{name} is {size} bytes long, but a string has at most {MAX_STRING}")


_RUNTIME = {
    "Rows": Rows,
    "DecodeError": DecodeError,
    "LocalProtocolError": LocalProtocolError,
    "UUID": UUID,
    "UV1": UVARINT_1,
    "uv": encode_uvarint,
    "ruv": read_uvarint,
    "new": object.__new__,
    "unpack": _struct.unpack_from,
    "pack": _struct.pack,
    "short": _short,
    "null": _null,
    "skip_tags": _skip_tags,
    "too_many": _too_many,
    "not_in_version": _not_in_version,
    "not_nullable": _not_nullable,
    "too_long": _too_long,
    "ends_early": _ends_early,
    "bad_marker": _bad_marker,
    # Every length is checked before use, so these errors only mean that the input ends inside a
    # number.
    "ENDS_EARLY": (_struct.error, IndexError),
    "DECODE_FAILURES": (UnicodeDecodeError,),
    "ENCODE_FAILURES": (_struct.error, UnicodeEncodeError, TypeError, AttributeError),
}
"""Name -> value, for the names that generated code uses without binding them."""


# ---------------------------------------------------------------- the code writer


class _Module:
    """The source of a generated module while it is written, and the names that it uses. A call
    appends a line of code."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.names: dict[str, Any] = dict(_RUNTIME)
        self.lines: list[str] = []
        self.indent = 0
        self.has_records = False
        """Whether a field is a view of the bytes that the message is read from."""

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def name(self, stem: str, value: Any) -> str:
        """Bind a value to a name of the generated module; return the name. A value that is bound
        has one name for each stem: None is bound to several."""
        for known, bound in self.names.items():
            if bound is value and known.startswith(stem):
                return known
        fresh = f"{stem}{len(self.names)}"
        self.names[fresh] = value
        return fresh

    def load(self, entry: str, title: str) -> Any:
        """Compile the module; return its function `entry`. `title` is shown in tracebacks."""
        source = "\n".join(self.lines)
        exec(compile(source, f"<codec of {title}>", "exec"), self.names)
        return self.names[entry]


@cache
def _layout(codes: str) -> _struct.Struct:
    return _struct.Struct(">" + codes)


def _untagged(cls: type, version: int) -> list[tuple[str, Field]]:
    """Return the fields that are not tagged in this version, in the order of the wire."""
    return [
        (name, spec)
        for name, spec in fields_of(cls).items()
        if version in spec.versions and version not in spec.tagged
    ]


def _tagged(cls: type, version: int) -> list[tuple[str, Field]]:
    """Return the fields that are tagged in this version, by ascending tag."""
    tagged = [
        (name, spec)
        for name, spec in fields_of(cls).items()
        if version in spec.versions and version in spec.tagged
    ]
    return sorted(tagged, key=lambda item: item[1].tag or 0)


def _defaults(cls: type) -> dict[str, Any]:
    """Return the value of each field for a message that lacks the field: its default, or the zero
    value of its type."""
    specs = fields_of(cls)
    return {
        name: _zero(specs[name].kind) if value is REQUIRED else value
        for name, value in defaults_of(cls).items()
    }


def _zero(kind: Kind) -> Any:
    if isinstance(kind, Array):
        return ()
    if isinstance(kind, Scalar):
        if kind is STRING:
            return ""
        if kind is UUID_:
            return NO_ID
        return b"" if kind in (BYTES, RECORDS) else False if kind is BOOL else 0
    return kind(**_defaults(kind))


def _smallest(kind: Kind, version: int, flexible: bool) -> int:
    """Return the size of the smallest value of this type, in bytes: it limits how many elements an
    array can have in the bytes that are left."""
    if isinstance(kind, Scalar):
        if kind.code:
            return _struct.calcsize(">" + kind.code)
        return 1 if flexible else 2 if kind is STRING else 4
    if isinstance(kind, Array):
        return 1 if flexible else 4
    inline = sum(
        1 if _is_null_marked(spec, version) else _smallest(spec.kind, version, flexible)
        for _, spec in _untagged(kind, version)
    )
    return max(1, inline + flexible)  # 1 also for a struct without fields, or any count would pass


def _is_null_marked(spec: Field, version: int) -> bool:
    """Return whether a byte before the value marks it as null: KIP-893, structs only."""
    return isinstance(spec.kind, type) and version in spec.nullable


def _fixed_runs(fields: list[tuple[str, Field]]) -> Iterator[list[tuple[str, Field]]]:
    """Group adjacent fields of fixed width, so that one `struct` call handles them all. Each other
    field is a run of its own."""
    run: list[tuple[str, Field]] = []
    for item in fields:
        kind = item[1].kind
        if isinstance(kind, Scalar) and kind.code:
            run.append(item)
            continue
        if run:
            yield run
            run = []
        yield [item]
    if run:
        yield run


# ---------------------------------------------------------------- decoding


Decoder = Callable[[bytes | bytearray, int, int], tuple[object, int]]
"""(bytes, offset of the message, maximum number of elements in its arrays) -> (message, offset of
its end)."""


def compile_decoder(cls: type, version: int) -> Decoder:
    """Return the decoder of a message class in one version.

    Raises: LocalProtocolError if there is no such version. The decoder raises DecodeError, and
    LimitExceededError if the arrays have more elements than its limit.
    """
    _check_version(cls, version)
    out = _Module(version, version in cast(Any, cls).flexible)
    entry = _write_decoder(out, cls)
    title = f"{cls.__name__} v{version}"
    out("def decode(buf, pos, limit):")
    out("    try:")
    # The last argument is the list `shared`: how many more elements are allowed, the limit, a cache
    # of short arrays of numbers, and the view that records are slices of. There is one for the
    # whole message, because nested arrays count, too.
    view = "memoryview(buf).toreadonly()" if out.has_records else "None"
    out(f"        return {entry}(buf, pos, len(buf), [limit, limit, {{}}, {view}])")
    out("    except ENDS_EARLY:")
    out(f"        raise DecodeError(f'{title}: {{ends_early(len(buf))}}') from None")
    out("    except DecodeError as error:")
    out(f"        raise type(error)(f'{title}: {{error}}') from None")
    out("    except DECODE_FAILURES as error:")
    out(f"        raise DecodeError(f'{title}: {{error}}') from None")
    return cast(Decoder, out.load("decode", title))


def _check_version(cls: type, version: int) -> None:
    if version not in cast(Any, cls).versions:
        raise LocalProtocolError(f"{cls.__name__} has no version {version}")


def _structures_in(cls: type, version: int) -> Iterator[type]:
    """Yield the struct classes of the fields in a version, alone or in arrays."""
    for spec in fields_of(cls).values():
        nested = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if isinstance(nested, type) and version in spec.versions:
            yield nested


def _write_decoder(out: _Module, cls: type, *, as_row: bool = False) -> str:
    """Write the function that reads one `cls`; return its name. `as_row`: the function returns the
    values of the fields as a tuple; a second one, `make_<class>`, creates the object from it."""
    entry = f"row_{cls.__name__}" if as_row else f"read_{cls.__name__}"
    if entry in out.names:
        return entry
    out.names[entry] = None  # marks it as written; the generated code replaces the value
    for spec in fields_of(cls).values():
        nested = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if isinstance(nested, type) and out.version in spec.versions:
            _write_decoder(out, nested, as_row=getattr(spec.kind, "as_rows", False))
    out(f"def {entry}(buf, pos, end, shared):")
    out.indent += 1
    values = {name: out.name("D", default) for name, default in _defaults(cls).items()}
    for run in _fixed_runs(_untagged(cls, out.version)):
        _read_run(out, run)
        values.update({name: f"f_{name}" for name, _ in run})
    if out.flexible:
        tagged = _tagged(cls, out.version)
        for name, _ in tagged:
            out(f"f_{name} = {values[name]}")
            values[name] = f"f_{name}"
        _read_tags(out, tagged)
    if as_row:
        out(f"return ({', '.join(values.values())},), pos")
        out.indent -= 1
        out(f"def make_{cls.__name__}(row):")
        out.indent += 1
        values = {name: f"f_{name}" for name in values}
        out(f"{', '.join(values.values())}, = row")
    out(f"self = new({out.name('C', cls)})")
    for name in values:
        # Fill the slots directly: the __init__ of a frozen class costs twice as much.
        setter = out.name("S", getattr(cls, name).__set__)
        out(f"{setter}(self, {values[name]})")
    out("return self" if as_row else "return self, pos")
    out.indent -= 1
    return entry


def _read_run(out: _Module, run: list[tuple[str, Field]]) -> None:
    """Write code that reads the fields of one run of `_fixed_runs` into variables `f_<name>`."""
    name, spec = run[0]
    if isinstance(spec.kind, Scalar) and spec.kind.code:
        layout = _layout("".join(cast(Scalar, s.kind).code for _, s in run))
        targets = ", ".join(f"f_{n}" for n, _ in run)
        out(f"{targets}, = {out.name('U', layout.unpack_from)}(buf, pos)")
        out(f"pos += {layout.size}")
        for n, s in run:
            if s.kind is UUID_:
                out(f"f_{n} = UUID(bytes=f_{n})")
        return
    _read_value(out, name, spec.kind, nullable=out.version in spec.nullable)


def _read_length(out: _Module, wide: bool) -> None:
    """Write code that reads a length or count into `n`; -1 for null. `wide`: from 4 bytes, not 2,
    in versions that are not flexible."""
    if out.flexible:
        out("n = buf[pos]")
        out("if n < 128: pos += 1")
        out("else: n, pos = ruv(buf, pos)")
        out("n -= 1")
    else:
        layout = _layout("i" if wide else "h")
        out(f"n, = {out.name('U', layout.unpack_from)}(buf, pos)")
        out(f"pos += {layout.size}")


def _read_value(
    out: _Module, name: str, kind: Kind, *, nullable: bool, target: str = "", null: int = 255
) -> None:
    """Write code that reads one value into `target`, or else `f_<name>`. An array is always read
    into `f_<name>`: it is no element of another one. Errors show `name`; `null` is the marker of a
    struct that is null."""
    target = target or f"f_{name}"
    if isinstance(kind, type):
        read = f"{target}, pos = read_{kind.__name__}(buf, pos"
        if not nullable:
            out(f"{read}, end, shared)")
            return
        # KIP-893: an int8 before a struct that may be null; in a tagged field, an unsigned varint.
        out("marker = buf[pos]")
        out(f"if marker == 1: {read} + 1, end, shared)")
        out(f"elif marker == {null}: {target}, pos = None, pos + 1")
        out(f"else: raise bad_marker({name!r}, marker, {null})")
        return
    if isinstance(kind, Scalar) and kind.code:
        layout = _layout(kind.code)
        out(f"{target}, = {out.name('U', layout.unpack_from)}(buf, pos)")
        out(f"pos += {layout.size}")
        if kind is UUID_:
            out(f"{target} = UUID(bytes={target})")
        return
    _read_length(out, wide=kind is not STRING)
    out("if n < 0:")
    if nullable:
        # Only -1 is null; anything below is a broken or hostile length.
        out(f"    if n != -1: raise short({name!r}, n, end - pos)")
        out(f"    {target} = None")
    else:
        out(f"    raise null({name!r}) if n == -1 else short({name!r}, n, end - pos)")
    out("else:")
    out.indent += 1
    if isinstance(kind, Array):
        _read_elements(out, name, kind)
    else:
        out("stop = pos + n")
        out(f"if stop > end: raise short({name!r}, n, end - pos)")
        if kind is STRING:
            out(f"{target} = buf[pos:stop].decode()")
        elif kind is RECORDS:
            out.has_records = True
            # Most partitions in a large response have no records: an empty view would be one more
            # object for the garbage collector to traverse.
            out(f"{target} = shared[3][pos:stop] if n else b''")
        else:
            out(f"{target} = buf[pos:stop]")
        out("pos = stop")
    out.indent -= 1


def _read_elements(out: _Module, name: str, kind: Array) -> None:
    """Write code that reads the `n` elements of an array into `f_<name>`."""
    element, target = kind.element, f"f_{name}"
    smallest = _smallest(element, out.version, out.flexible)
    out(f"if n * {smallest} > end - pos: raise short({name!r}, n, end - pos)")
    if isinstance(element, Scalar) and element.code and element is not UUID_:
        out(f"if n >= {_NUMBERS_PER_ELEMENT}:")
        out.indent += 1
        out(f"if n > {MAX_NUMBERS}: raise too_many({name!r}, n, {MAX_NUMBERS})")
        _count_elements(out, name, f"n // {_NUMBERS_PER_ELEMENT}")
        out(f"{target} = unpack(f'>{{n}}{element.code}', buf, pos)")
        out.indent -= 1
        out("else:")
        # Many partitions have the same replicas: they share one tuple.
        out(f"    {target} = unpack(f'>{{n}}{element.code}', buf, pos)")
        out(f"    {target} = shared[2].setdefault({target}, {target})")
        out(f"pos += n * {smallest}")
        return
    items = f"items_{name}"
    # The claimed number is counted, before the first element is created.
    _count_elements(out, name, "n")
    out(f"{items} = []")
    out("for _ in range(n):")
    out.indent += 1
    if kind.as_rows:
        made_of = cast(type, element).__name__
        out(f"item, pos = row_{made_of}(buf, pos, end, shared)")
    else:
        _read_value(out, name, element, nullable=False, target="item")
    out(f"{items}.append(item)")
    out.indent -= 1
    made = f"tuple({items})"
    out(f"{target} = " + (f"Rows(make_{made_of}, {made})" if kind.as_rows else made))


def _count_elements(out: _Module, name: str, count: str) -> None:
    """Write the check that `count` more elements are within the decoder's limit."""
    out(f"shared[0] -= {count}")
    out(f"if shared[0] < 0: raise too_many({name!r}, n, shared[1])")


def _read_tags(out: _Module, tagged: list[tuple[str, Field]]) -> None:
    """Write code that reads the tagged fields, and skips those with an unknown tag."""
    out("n = buf[pos]")
    out("if n < 128: pos += 1")
    out("else: n, pos = ruv(buf, pos)")
    out("if n:")
    out.indent += 1
    out("if n * 2 > end - pos: raise short('tagged fields', n, end - pos)")
    _count_elements(out, "tagged fields", "n")
    if not tagged:
        out("pos = skip_tags(buf, pos, n)")
        out.indent -= 1
        return
    out("for _ in range(n):")
    out.indent += 1
    out("tag, pos = ruv(buf, pos)")
    out("size, pos = ruv(buf, pos)")
    out("after = pos + size")
    out("if after > end: raise short('tagged field', size, end - pos)")
    for name, spec in tagged:
        out(f"if tag == {spec.tag}:")
        out.indent += 1
        _read_value(out, name, spec.kind, nullable=out.version in spec.nullable, null=0)
        # Without this check, a tagged field with a wrong size would shift all that follows.
        out(f"if pos != after: raise DecodeError('tagged field {name} is not of its stated size')")
        out.indent -= 1
    out("pos = after")
    out.indent -= 2


# ---------------------------------------------------------------- encoding


def compile_encoder(cls: type, version: int) -> Callable[[bytearray, object], None]:
    """Return the encoder of a message class in one version. It appends the message, its second
    argument, to the first.

    Raises: LocalProtocolError if there is no such version. The encoder raises it for a value that
    does not fit the field.
    """
    _check_version(cls, version)
    out = _Module(version, version in cast(Any, cls).flexible)
    entry = _write_encoder(out, cls)
    title = f"{cls.__name__} v{version}"
    out("def encode(out, value):")
    out("    try:")
    out(f"        {entry}(out, value)")
    out("    except ENCODE_FAILURES as error:")
    out(f"        raise LocalProtocolError(f'{title}: {{error}}') from error")
    out("    except LocalProtocolError as error:")
    out(f"        raise LocalProtocolError(f'{title}: {{error}}') from None")
    return cast("Callable[[bytearray, object], None]", out.load("encode", title))


def _write_encoder(out: _Module, cls: type) -> str:
    """Write the function that appends one `cls` to `out`; return its name."""
    entry = f"write_{cls.__name__}"
    if entry in out.names:
        return entry
    out.names[entry] = None  # marks it as written; the generated code replaces the value
    for nested in _structures_in(cls, out.version):
        _write_encoder(out, nested)
    out(f"def {entry}(out, value):")
    out.indent += 1
    defaults = _defaults(cls)
    for name, spec in fields_of(cls).items():
        if out.version not in spec.versions and not spec.ignorable:
            default = out.name("D", defaults[name])
            out(f"if value.{name} != {default}: raise not_in_version({name!r})")
    for run in _fixed_runs(_untagged(cls, out.version)):
        _write_run(out, run)
    if out.flexible:
        _write_tags(out, _tagged(cls, out.version), defaults)
    elif not _untagged(cls, out.version):
        out("pass")
    out.indent -= 1
    return entry


def _write_run(out: _Module, run: list[tuple[str, Field]]) -> None:
    """Write code that appends the fields of one run of `_fixed_runs`."""
    name, spec = run[0]
    if isinstance(spec.kind, Scalar) and spec.kind.code:
        layout = _layout("".join(cast(Scalar, s.kind).code for _, s in run))
        values = ", ".join(f"value.{n}.bytes" if s.kind is UUID_ else f"value.{n}" for n, s in run)
        out(f"out += {out.name('P', layout.pack)}({values})")
        return
    out(f"v = value.{name}")
    _write_value(out, name, spec.kind, nullable=out.version in spec.nullable)


def _write_length(out: _Module, wide: bool) -> None:
    """Write code that appends the length or count in `n`. `wide`: with 4 bytes, not 2, in versions
    that are not flexible."""
    if out.flexible:
        out("out += UV1[n + 1] if n < 127 else uv(n + 1)")
    else:
        out(f"out += {out.name('P', _layout('i' if wide else 'h').pack)}(n)")


def _write_null(out: _Module, wide: bool) -> None:
    null = b"\0" if out.flexible else b"\xff" * (4 if wide else 2)
    out(f"out += {null!r}")


def _write_value(
    out: _Module, name: str, kind: Kind, *, nullable: bool, null: bytes = b"\xff"
) -> None:
    """Write code that appends the value in `v`; `null` is the marker of a struct that is null."""
    if isinstance(kind, type):
        if not nullable:
            out(f"write_{kind.__name__}(out, v)")
            return
        # KIP-893: an int8 before a struct that may be null; in a tagged field, an unsigned varint.
        out(f"if v is None: out += {null!r}")
        out("else:")
        out("    out += b'\\1'")
        out(f"    write_{kind.__name__}(out, v)")
        return
    if isinstance(kind, Scalar) and kind.code:
        value = "v.bytes" if kind is UUID_ else "v"
        out(f"out += {out.name('P', _layout(kind.code).pack)}({value})")
        return
    wide = kind is not STRING
    out("if v is None:")
    out.indent += 1
    if nullable:
        _write_null(out, wide)
    else:
        out(f"raise not_nullable({name!r})")
    out.indent -= 1
    out("else:")
    out.indent += 1
    if kind is STRING:
        out("v = v.encode()")
    out("n = len(v)")
    if kind is STRING:
        out(f"if n > {MAX_STRING}: raise too_long({name!r}, n)")
    _write_length(out, wide)
    if not isinstance(kind, Array):
        out("out += v")
    elif isinstance(kind.element, Scalar) and kind.element.code and kind.element is not UUID_:
        out(f"out += pack(f'>{{n}}{kind.element.code}', *v)")
    else:
        items = f"items_{name}"
        out(f"{items} = v")
        out(f"for v in {items}:")
        out.indent += 1
        _write_value(out, name, kind.element, nullable=False)
        out.indent -= 1
    out.indent -= 1


def _write_tags(out: _Module, tagged: list[tuple[str, Field]], defaults: dict[str, Any]) -> None:
    """Write code that appends the tagged fields that differ from their default, by ascending tag
    (KIP-482)."""
    if not tagged:
        out("out += b'\\0'")
        return
    out("tags = []")
    for name, spec in tagged:
        out(f"if value.{name} != {out.name('D', defaults[name])}:")
        out.indent += 1
        out("whole = out")
        out("out = bytearray()")
        out(f"v = value.{name}")
        _write_value(out, name, spec.kind, nullable=out.version in spec.nullable, null=b"\0")
        out(f"tags.append(({spec.tag}, out))")
        out("out = whole")
        out.indent -= 1
    out("out += uv(len(tags))")
    out("for tag, body in tags: out += uv(tag) + uv(len(body)) + body")

"""Value classes that behave like those of `attrs`, and cost almost no import time.

A class gets its slots when it is defined, and each generated method on first access. attrs compiles
all methods of every class, but a process that imports a hundred and sixty of these classes makes
instances of half of them. Classes made here have no validators, no converters and no field names
that begin with `_`; a class that needs those, and is not imported with every consumer, uses attrs
itself. Type checkers see attrs' own decorators, and `attrs.fields`, `attrs.evolve` and
`attrs.asdict` accept these classes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

__all__ = ["REQUIRED", "Attribute", "define", "evolve", "field", "fields", "frozen"]


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""Marks a field without a default."""


class Attribute:
    """The declaration of one attribute."""

    __slots__ = ("default", "factory", "metadata", "repr")

    def __init__(
        self,
        default: Any = REQUIRED,
        factory: Callable[[], Any] | None = None,
        repr: bool = True,
        metadata: Mapping[object, Any] | None = None,
    ) -> None:
        self.default = default
        self.factory = factory
        """Called for each instance to make its default; None if `default` is used."""
        self.repr = repr
        self.metadata = metadata or {}


def fields(cls: type) -> dict[str, Attribute]:
    """Return name -> attribute of a class made here, in the order of declaration."""
    return _declared(cls).attributes


class _Declared:
    """The declaration of a class, from which its methods are generated."""

    __slots__ = ("attributes", "eq", "frozen", "kw_only", "module")

    def __init__(
        self, module: str, attributes: dict[str, Attribute], frozen: bool, kw_only: bool, eq: bool
    ) -> None:
        self.module = module
        """The module that declares the class; a public class reports `kafkagroup` instead."""
        self.attributes = attributes
        self.frozen = frozen
        self.kw_only = kw_only
        self.eq = eq


def _declared(cls: Any) -> _Declared:
    declared: _Declared = cls.__declared__
    return declared


class _LazyMethod:
    """A descriptor that generates a method on first access, and then replaces itself by it."""

    __slots__ = ("_generate", "_name", "_owner")

    def __init__(self, generate: Callable[[type], Any]) -> None:
        self._generate = generate

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        method = self._generate(self._owner)
        type.__setattr__(self._owner, self._name, method)
        bind = getattr(method, "__get__", None)  # None for the tuple `__attrs_attrs__`
        return method if bind is None else bind(instance, owner)


def _init(cls: type) -> Any:
    """Generate `__init__`, which fills the slots directly: a frozen class refuses `setattr`."""
    declared = _declared(cls)
    names: dict[str, Any] = {"REQUIRED": REQUIRED}
    parameters, lines = [], []
    for name, attribute in declared.attributes.items():
        names[f"set_{name}"] = getattr(cls, name).__set__
        given = name
        if attribute.factory is not None:
            names[f"new_{name}"] = attribute.factory
            parameters.append(f"{name}=REQUIRED")
            given = f"new_{name}() if {name} is REQUIRED else {name}"
        elif attribute.default is not REQUIRED:
            names[f"default_{name}"] = attribute.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        lines.append(f"set_{name}(self, {given})")
    if hasattr(cls, "__attrs_pre_init__"):
        lines.insert(0, "self.__attrs_pre_init__()")
    if hasattr(cls, "__attrs_post_init__"):
        lines.append("self.__attrs_post_init__()")
    star = ["*"] if declared.kw_only and parameters else []
    return _function(cls, "__init__", ["self", *star, *parameters], lines or ["pass"], names)


def _replace(cls: type) -> Any:
    """Generate `__replace__`, which copies the slots directly, except in a class with hooks of
    `__init__`: those have to run.

    `attrs.evolve` looks up the fields on each call, and passes them to `__init__` by name: a member
    that only sends heartbeats spent a tenth of its time there.
    """
    kept = fields(cls)
    names: dict[str, Any] = {"cls": cls}
    if hasattr(cls, "__attrs_pre_init__") or hasattr(cls, "__attrs_post_init__"):
        values = "".join(f"{name!r}: self.{name}, " for name in kept)
        lines = [f"return cls(**{{{values}**changes}})"]
    else:
        setters = {name: getattr(cls, name).__set__ for name in kept}
        names |= {f"set_{name}": setter for name, setter in setters.items()}
        names |= {"new": object.__new__, "setters": setters}
        lines = [
            "copy = new(cls)",
            *(f"set_{name}(copy, self.{name})" for name in kept),
            "for name, value in changes.items():",
            f"    if name not in setters: raise TypeError(f'{cls.__name__} has no {{name!r}}')",
            "    setters[name](copy, value)",
            "return copy",
        ]
    return _function(cls, "__replace__", ["self", "/", "**changes"], lines, names)


def _eq(cls: type) -> Any:
    same = " and ".join(f"self.{name} == other.{name}" for name in fields(cls)) or "True"
    lines = ["if other.__class__ is not self.__class__: return NotImplemented", f"return {same}"]
    return _function(cls, "__eq__", ["self", "other"], lines, {})


def _hash(cls: type) -> Any:
    # Of the values only: attrs adds the hash of a string, which differs between processes, so a
    # replay in another process could take another path.
    values = "".join(f"self.{name}, " for name in fields(cls))
    return _function(cls, "__hash__", ["self"], [f"return hash(({values}))"], {})


def _repr(cls: type) -> Any:
    shown = ", ".join(
        f"{name}={{self.{name}!r}}" for name, attribute in fields(cls).items() if attribute.repr
    )
    return _function(cls, "__repr__", ["self"], [f"return f'{cls.__name__}({shown})'"], {})


def _function(
    cls: type, name: str, parameters: list[str], lines: list[str], names: dict[str, Any]
) -> Any:
    body = "\n    ".join(lines)
    source = f"def {name}({', '.join(parameters)}):\n    {body}"
    exec(compile(source, f"<{name} of {cls.__qualname__}>", "exec"), names)
    function = names.pop(name)
    function.__qualname__ = f"{cls.__qualname__}.{name}"
    function.__module__ = cls.__module__
    return function


def _attrs(cls: type) -> Any:
    """Generate `__attrs_attrs__`, by which attrs recognizes its classes.

    Tests and tools read it, code on the path of a record never does. attrs is imported only here,
    because importing it takes longer than defining all classes of this module.
    """
    import attrs

    declared = _declared(cls)
    body: dict[str, Any] = {
        name: attrs.field(
            default=(
                attrs.Factory(attribute.factory)
                if attribute.factory is not None
                else attrs.NOTHING
                if attribute.default is REQUIRED
                else attribute.default
            ),
            repr=attribute.repr,
            metadata=attribute.metadata,
        )
        for name, attribute in declared.attributes.items()
    }
    kinds = {n: k for base in reversed(cls.__mro__) for n, k in _annotations(base).items()}
    body["__annotations__"] = {name: kinds[name] for name in body}
    twin = attrs.define(kw_only=declared.kw_only)(type(cls.__name__, (), body))
    if cls.__module__ != declared.module:
        # attrs, and libraries such as cattrs, would resolve names in the reported module.
        with suppress(NameError):  # some names are imported for type checkers alone
            attrs.resolve_types(twin, vars(sys.modules[declared.module]))
    return attrs.fields(twin)


def _refuse(self: object, name: str, value: object = None) -> None:
    from attrs.exceptions import FrozenInstanceError

    raise FrozenInstanceError


def _getstate(self: object) -> dict[str, Any]:
    return {name: getattr(self, name) for name in fields(type(self))}


def _setstate(self: object, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(self, name, value)


def _evolve(value: Any, **changes: Any) -> Any:
    return value.__replace__(**changes)


def _annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of the class itself, without those of its bases; as text if its module
    imports `annotations` from `__future__`."""
    # Not from `vars`: Python 3.14 evaluates annotations on first access (PEP 649).
    found: dict[str, Any] = getattr(cls, "__annotations__", {})
    return found


def _with_slots(cls: type, frozen: bool, kw_only: bool, eq: bool) -> type:
    """Return a copy of the class with slots: Python adds slots only when it creates a class."""
    body = dict(vars(cls))
    own: dict[str, Attribute] = {}
    for name, kind in _annotations(cls).items():
        if not str(kind).startswith(("ClassVar", "typing.ClassVar")):
            given = body.pop(name, REQUIRED)
            own[name] = given if type(given) is Attribute else Attribute(given)
    attributes = {
        name: attribute
        for base in reversed(cls.__mro__[1:])
        if "__declared__" in vars(base)
        for name, attribute in fields(base).items()
        if name not in own
    } | own
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    weak = () if any(base.__weakrefoffset__ for base in cls.__bases__) else ("__weakref__",)
    body["__slots__"] = (*own, *weak)
    body["__declared__"] = _Declared(cls.__module__, attributes, frozen, kw_only, eq)
    body["__match_args__"] = () if kw_only else tuple(attributes)
    body["__attrs_attrs__"] = _LazyMethod(_attrs)
    body.setdefault("__init__", _LazyMethod(_init))
    body.setdefault("__repr__", _LazyMethod(_repr))
    if eq and "__eq__" not in body:
        body["__eq__"] = _LazyMethod(_eq)
        body["__hash__"] = _LazyMethod(_hash) if frozen else None
    if frozen:
        body["__setattr__"] = body["__delattr__"] = _refuse
    body["__getstate__"] = _getstate
    body["__setstate__"] = _setstate
    body["__replace__"] = _LazyMethod(_replace)
    return type(cls)(cls.__name__, cls.__bases__, body)


def _decorator(frozen: bool) -> Any:
    def decorate(cls: type | None = None, *, kw_only: bool = False, eq: bool = True) -> Any:
        if cls is None:
            return lambda cls: _with_slots(cls, frozen, kw_only, eq)
        return _with_slots(cls, frozen, kw_only, eq)

    return decorate


if TYPE_CHECKING:
    from attrs import define, evolve, field, frozen
else:
    field = Attribute
    evolve = _evolve
    frozen = _decorator(True)
    define = _decorator(False)

"""Values made without attrs behave like those made by attrs."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any, ClassVar

import attrs
import pytest

from kafkagroup import _values

COMMON: Any = {"frozen": _values.frozen, "define": _values.define, "field": _values.field}
ATTRS: Any = {"frozen": attrs.frozen, "define": attrs.define, "field": attrs.field}
PAIRED = [COMMON, ATTRS]


def family(make: Any) -> Any:
    """Return a class and a subclass, with each kind of default."""

    @make["frozen"](kw_only=True)
    class Base:
        """What it is."""

        limit: ClassVar[int] = 5
        first: int
        hidden: str = make["field"](default="secret", repr=False)
        own: list[int] = make["field"](factory=list)

        def doubled(self) -> int:
            return self.first * 2

    @make["frozen"](kw_only=True)
    class Below(Base):
        second: str = "b"

    return Below


def plain(make: Any) -> Any:
    @make["frozen"]
    class Plain:
        x: int
        y: str = "y"

    return Plain


def changing(make: Any) -> Any:
    @make["define"]
    class Changing:
        x: int = 0

    return Changing


def known_by_itself(make: Any) -> Any:
    @make["define"](eq=False)
    class Known:
        x: int = 0

    return Known


def with_hooks(make: Any) -> Any:
    @make["define"]
    class Hooked:
        x: int
        seen: list[str] = make["field"](factory=list)

        def __attrs_pre_init__(self) -> None:
            assert not hasattr(self, "x")

        def __attrs_post_init__(self) -> None:
            self.seen.append(f"x={self.x}")

    return Hooked


MADE = [
    (family, {"first": 1}),
    (family, {"first": 1, "hidden": "h", "own": [2], "second": "c"}),
    (plain, {"x": 1}),
    (changing, {"x": 3}),
    (with_hooks, {"x": 4}),
]


@pytest.mark.parametrize(("make", "given"), MADE)
def test_values_are_created_shown_and_matched_like_attrs_classes(
    make: Any, given: dict[str, Any]
) -> None:
    ours, theirs = (make(kit) for kit in PAIRED)
    mine, other = ours(**given), theirs(**given)
    assert repr(mine) == repr(other).rpartition(">.")[2]
    assert attrs.asdict(mine) == attrs.asdict(other)
    assert inspect.signature(ours).parameters.keys() == inspect.signature(theirs).parameters.keys()
    assert [p.kind for p in inspect.signature(ours).parameters.values()] == [
        p.kind for p in inspect.signature(theirs).parameters.values()
    ]
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__doc__ == theirs.__doc__ or theirs.__doc__ is None
    assert ours.__slots__ == theirs.__slots__
    for of, by_attrs in zip(attrs.fields(ours), attrs.fields(theirs), strict=True):
        assert (of.name, of.type, of.default, of.repr) == (
            by_attrs.name,
            by_attrs.type,
            by_attrs.default,
            by_attrs.repr,
        )


@pytest.mark.parametrize("kit", PAIRED)
def test_values_are_equal_and_hashed_like_attrs_classes(kit: Any) -> None:
    Plain, Changing, Known = plain(kit), changing(kit), known_by_itself(kit)
    assert Plain(1) == Plain(1, "y") != Plain(1, "z")
    assert hash(Plain(1)) == hash(Plain(1))
    assert Plain(1) != (1, "y")
    assert family(kit)(first=1) != family(kit)(first=1)  # of two classes
    assert Changing(1) == Changing(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing(1))
    assert Known(1) != Known(1)
    assert len({Known(1), Known(1)}) == 2


@pytest.mark.parametrize("kit", PAIRED)
def test_frozen_values_refuse_assignment(kit: Any) -> None:
    value, mutable = plain(kit)(1), changing(kit)(1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.x = 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del value.x
    with pytest.raises(AttributeError):
        mutable.other = 2
    mutable.x = 2
    assert (value.x, mutable.x) == (1, 2)


@pytest.mark.parametrize("kit", PAIRED)
def test_a_factory_is_called_for_each_instance(kit: Any) -> None:
    Below = family(kit)
    one, two = Below(first=1), Below(first=1)
    one.own.append(1)
    assert (one.own, two.own, one.doubled(), Below.limit) == ([1], [], 2, 5)


@pytest.mark.parametrize("kit", PAIRED)
def test_missing_and_unknown_arguments_are_refused(kit: Any) -> None:
    for wrong in ({}, {"first": 1, "third": 3}):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            family(kit)(**wrong)
    with pytest.raises(TypeError, match="positional"):
        family(kit)(1)


@pytest.mark.parametrize("change", [attrs.evolve, _values.evolve])
@pytest.mark.parametrize("kit", PAIRED[:1])
def test_evolve_returns_a_changed_copy(kit: Any, change: Any) -> None:
    Below = family(kit)
    before = Below(first=1, own=[1])
    after = change(before, second="c")
    assert (after, before.second) == (Below(first=1, own=[1], second="c"), "b")
    assert after.own is before.own
    with pytest.raises(TypeError):
        change(before, third=3)


@pytest.mark.parametrize("change", [attrs.evolve, _values.evolve])
def test_evolve_runs_the_same_checks(change: Any) -> None:
    before = with_hooks(COMMON)(1)
    after = change(before, x=2)
    assert (after.x, after.seen) == (2, ["x=1", "x=2"])


@_values.frozen
class Pickled:
    x: int
    y: str = "y"


def test_values_can_be_copied_and_pickled() -> None:
    value = Pickled(1)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert copy.deepcopy(value) is not value


def test_tracebacks_show_the_generated_source() -> None:
    with pytest.raises(TypeError, match=r"^Pickled\.__init__\(\) missing 1 required"):
        Pickled()  # type: ignore[call-arg]


def test_a_hash_is_the_same_in_each_process() -> None:
    """The hash determines the order of sets; a replay must have the same order."""
    program = (
        "from kafkagroup.types import OffsetAndTimestamp as T; print(hash(T(7, 9)), hash(T(1, 2)))"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_methods_are_generated_once_on_first_use() -> None:
    Plain = plain(COMMON)
    written = {name for name, of in vars(Plain).items() if inspect.isfunction(of)}
    assert not written & {"__init__", "__eq__", "__hash__", "__repr__"}
    assert Plain(1) == Plain(1)
    assert inspect.isfunction(vars(Plain)["__init__"])
    assert inspect.isfunction(vars(Plain)["__eq__"])
    assert not inspect.isfunction(vars(Plain)["__repr__"])

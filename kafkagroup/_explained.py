"""`Explained`: a base of public classes. If an application uses an attribute or keyword of another
Kafka client, the error says what to use here.

The table of those names, `_foreign_names`, is imported with the first wrong name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import CO_COROUTINE, CO_VARARGS, CO_VARKEYWORDS, unwrap
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

__all__ = ["Explained", "explains_unknown_keywords", "keyword_error"]

Method = TypeVar("Method", bound=Callable[..., Any])


class Explained:
    """Explains the attributes and keywords that an object does not have."""

    __slots__ = ()

    _hot_methods: ClassVar[frozenset[str]] = frozenset()
    """The methods that run for each record: even a call of another function would cost too much.
    Their errors for an unknown keyword are Python's own."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        # An application's methods, in its own subclass, stay as they are.
        if cls.__module__.startswith("kafkagroup."):
            for name, method in tuple(vars(cls).items()):
                if _is_public_method(name, method) and name not in cls._hot_methods:
                    setattr(cls, name, explains_unknown_keywords(method))

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name):
            from kafkagroup._foreign_names import unknown_attribute

            raise unknown_attribute(self, name)


def _is_public_method(name: str, value: object) -> bool:
    # attrs creates a class with slots a second time, from methods that are decorated already.
    return (
        isinstance(value, FunctionType)
        and not name.startswith("_")
        and not hasattr(value, "__wrapped__")
    )


def keyword_error(method: Callable[..., Any], given: Iterable[str]) -> TypeError:
    """Return the error of a call with the keywords `given`, of which the method does not have
    all."""
    from kafkagroup._foreign_names import unknown_keywords

    code = unwrap(method).__code__
    names, keywords = _parameters(code)
    unknown = [name for name in given if name not in keywords]
    waits = bool(code.co_flags & CO_COROUTINE)
    return unknown_keywords(method.__qualname__, unknown, names, waits=waits)


def _parameters(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parameters of a method but `self`, and those of them that can be passed by name:
    not `*args`, and not positional-only ones."""
    named_count = code.co_argcount + code.co_kwonlyargcount
    # The parameter of `*args` comes after the named ones.
    names = frozenset(code.co_varnames[1 : named_count + bool(code.co_flags & CO_VARARGS)])
    return names, names.intersection(code.co_varnames[code.co_posonlyargcount : named_count])


def explains_unknown_keywords(method: Method) -> Method:
    """Decorate a method: its error for an unknown keyword says what to write instead.

    A method with `**keywords` is returned unchanged.
    """
    code = unwrap(method).__code__
    _, keywords = _parameters(code)
    if code.co_flags & CO_VARKEYWORDS:
        return method

    if code.co_flags & CO_COROUTINE:
        # The wrapper is a coroutine function, too: mocks and frameworks check for one.
        @wraps(method)
        async def checked(self: object, *args: Any, **given: Any) -> Any:
            if given and not given.keys() <= keywords:
                raise keyword_error(method, given)
            return await method(self, *args, **given)

    else:

        @wraps(method)
        def checked(self: object, *args: Any, **given: Any) -> Any:
            if given and not given.keys() <= keywords:
                raise keyword_error(method, given)
            return method(self, *args, **given)

    return cast(Method, checked)

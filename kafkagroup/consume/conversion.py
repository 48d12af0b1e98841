"""Deserializers: convert a record's key and value before the application gets the record.

This module knows no positions. `now` converts a record, or `later` if something must be awaited;
`Delivery` delivers the record only afterwards. This file is compiled, with the types in
`conversion.pxd`, where a compiler is available.
"""

from __future__ import annotations

import inspect
import logging
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkagroup._record import Record
from kafkagroup._user_code import USER_ERRORS, CancelledError, is_own_cancellation, user_error
from kafkagroup.errors import ConfigurationError, DeserializationError

if TYPE_CHECKING:
    from kafkagroup.callbacks import DeserializationErrorPolicy, Deserializer

__all__ = ["Conversion", "Outcome"]

logger = logging.getLogger(__name__)


class Outcome(Enum):
    """Why there is no record to deliver."""

    SKIPPED = "skipped"
    """A deserializer of the record failed, and the record is skipped."""
    SUSPENDS = "suspends"
    """Something must be awaited: `later` has to convert the record."""


SKIPPED, SUSPENDS = Outcome.SKIPPED, Outcome.SUSPENDS


class Conversion:
    """The deserializers of one consumer, and its policy if one of them fails."""

    def __init__(
        self,
        key_deserializer: Deserializer[Any] | None,
        value_deserializer: Deserializer[Any] | None,
        on_error: DeserializationErrorPolicy = "raise",
    ) -> None:
        self.suspends = _is_coroutine_function(key_deserializer) or _is_coroutine_function(
            value_deserializer
        )
        """Whether `later` has to convert every record."""
        self.skipped_count = 0
        """How many records were skipped."""
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._on_error = on_error
        self._handler_suspends = _is_coroutine_function(on_error)
        """Whether the error handler must be awaited."""
        # The types of the last key and value. Neither is awaitable, so equal types need no check.
        self._key_type: type = type(None)
        self._value_type: type = type(None)

    @staticmethod
    def of(
        key_deserializer: Deserializer[Any] | None,
        value_deserializer: Deserializer[Any] | None,
        on_error: DeserializationErrorPolicy,
    ) -> Conversion | None:
        """Return the conversion of a consumer; None without deserializers."""
        if key_deserializer is None and value_deserializer is None:
            return None
        return Conversion(key_deserializer, value_deserializer, on_error)

    def now(self, record: Record) -> Record | Outcome:
        """Convert a record in place and return it, or the record that the error handler returned
        instead; or an `Outcome`. If something must be awaited, the record is unchanged.

        Raises: DeserializationError; what the error handler raised; ConfigurationError if it
        returned something other than a record or None.
        """
        if self.suspends:
            return SUSPENDS
        part = "key"
        key: Any = record._key
        value: Any = record._value
        try:
            if self._key_deserializer is not None and key is not None:
                key = self._key_deserializer(key)
            part = "value"
            if self._value_deserializer is not None and value is not None:
                value = self._value_deserializer(value)
        except USER_ERRORS as error:
            return self._failed(_error(record, part, error))
        if type(key) is not self._key_type or type(value) is not self._value_type:
            if inspect.isawaitable(key) or inspect.isawaitable(value):
                # A plain function that returns an awaitable, such as a lambda around a coroutine
                # function. This shows only when it is called: `later` converts all records then.
                _close(key)
                _close(value)
                self.suspends = True
                return SUSPENDS
            self._key_type, self._value_type = type(key), type(value)
        record._key = key
        record._value = value
        return record

    async def later(self, record: Record) -> Record | Outcome:
        """Do as `now`, and await the deserializers and the error handler. Never returns SUSPENDS.

        Raises: the errors of `now`.
        """
        part = "key"
        key: Any = record.key
        value: Any = record.value
        try:
            if self._key_deserializer is not None and key is not None:
                key = self._key_deserializer(key)
                while inspect.isawaitable(key):
                    key = await key
            part = "value"
            if self._value_deserializer is not None and value is not None:
                value = self._value_deserializer(value)
                while inspect.isawaitable(value):
                    value = await value
        except USER_ERRORS as error:
            if is_own_cancellation(error):
                raise
            failed = _error(record, part, error)
        else:
            return self._set_converted(record, key, value)
        handler = self._on_error
        if isinstance(handler, str):
            return self._failed(failed)
        try:
            result = handler(failed.record, failed)
            if inspect.isawaitable(result):
                result = await result
        except CancelledError as error:
            # `user_error` raises a cancellation of this task as it is.
            raise user_error(error, "on_deserialization_error") from error
        return self._outcome_of(result)

    def _set_converted(self, record: Record, key: object, value: object) -> Record:
        # A method, because Cython cannot set the C fields of a record in a coroutine.
        record._key = key
        record._value = value
        return record

    def _failed(self, error: DeserializationError) -> Record | Outcome:
        """Act on a failed deserializer by the policy, without waiting. Raises: the errors of
        `now`."""
        handler = self._on_error
        if handler == "skip":
            logger.warning("skipped a record: %s", error)
            return self._outcome_of(None)
        if isinstance(handler, str):
            raise error
        if self._handler_suspends:
            return SUSPENDS
        try:
            result = handler(error.record, error)
        except CancelledError as cancelled:
            raise user_error(cancelled, "on_deserialization_error") from cancelled
        if inspect.isawaitable(result):
            _close(result)
            self._handler_suspends = True
            return SUSPENDS
        return self._outcome_of(result)

    def _outcome_of(self, result: object) -> Record | Outcome:
        """Return the outcome for a record whose deserializer failed, by the handler's result."""
        if result is None:
            self.skipped_count += 1
            return SKIPPED
        if isinstance(result, Record):
            return result
        raise ConfigurationError(
            f"on_deserialization_error answered with {type(result).__name__}; expected a Record to"
            " deliver, or None to skip the one that failed"
        )


def _error(record: Record, part: str, cause: BaseException) -> DeserializationError:
    # The error gets a copy: the next conversion of the record changes it if it succeeds.
    error = DeserializationError(record._replace(), part)
    error.__cause__ = cause
    return error


def _is_coroutine_function(function: object) -> bool:
    """Return whether a call returns a coroutine; looks into partials and `__call__`, too."""
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    # Not `callable()`, as B004 suggests: the question is what kind of function `__call__` is.
    return inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


def _close(value: Any) -> None:
    """Close a coroutine that is not awaited: Python would warn of it."""
    if inspect.iscoroutine(value):
        value.close()

"""Injected faults. Each is a rule, which applies to requests, or to the entry of one partition in
their responses. If several rules apply, the oldest one takes effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.transaction_admin import (
    DescribeProducersRequest,
    WriteTxnMarkersRequest,
)
from kafkagroup.wire.schema import Request

__all__ = [
    "Action",
    "Change",
    "Close",
    "Delay",
    "Fault",
    "Faults",
    "Late",
    "Swallow",
    "Throttle",
    "check_api",
    "check_fault",
]

_PARTITION_APIS: tuple[type[Request[Any]], ...] = (
    DescribeProducersRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
"""The requests of which one partition's entry can be given an error code."""

_EXECUTED_APIS = (ProduceRequest, WriteTxnMarkersRequest)
"""Those that can be executed for the partition nevertheless."""


@attrs.frozen
class Close:
    """Close the connection instead of responding."""

    before: bool = False
    """Whether to close before the request is executed. False loses only the response."""


@attrs.frozen
class Late:
    """Close the connection at once, and execute the request later, as if it had still been on its
    way to the broker."""

    seconds: float
    """From the receipt of the request until its execution."""


@attrs.frozen
class Swallow:
    """Execute the request, never respond. Later requests on the connection wait too."""


@attrs.frozen
class Delay:
    """Execute the request, respond later. Later requests on the connection wait too."""

    seconds: float
    """From the execution of the request until its response."""


@attrs.frozen
class Throttle:
    """Execute the request, respond at once, and throttle the client (KIP-219): later requests on
    this connection wait until the throttle time is over. Responses in versions without a throttle
    time do not report it.
    """

    seconds: float


@attrs.frozen
class Change:
    """Execute the request, and respond with what `change` returns for the response: for example
    with the older view of a broker that lags behind, or with an error code for one partition."""

    change: Callable[[Any], Any]


Action = int | Change | Close | Delay | Late | Swallow | Throttle
"""An int is an error code, an `ErrorCode` or the number of a newer one: the response has it, and
the request is not executed, unless `Fault.executed` says so."""


@attrs.define(eq=False)
class Fault:
    """One rule, and how many requests it has hit."""

    api: type[Request[Any]]
    """The type of request that it applies to."""
    action: Action
    times: int | None = 1
    """How many requests it hits; None hits all until `stop`."""
    node_id: int | None = None
    """The node that it applies to; None applies to all."""
    when: Callable[[Any], bool] | None = None
    """Selects requests: returns whether the rule applies to one. None selects all. Not used with a
    `partition`."""
    partition: TopicPartition | None = None
    """The partition whose entry in the response has the error code; the request is executed for the
    other partitions. None if the rule applies to whole requests."""
    executed: bool = False
    """Whether the request is executed for that partition, too, before it gets the error code."""
    hits: int = 0

    def stop(self) -> None:
        """Let the rule hit no more requests."""
        self.times = self.hits

    def matches(self, node_id: int, request: Request[Any]) -> bool:
        """Whether the rule applies to this request; counts the hit if so."""
        is_match = (
            self.partition is None
            and self._applies(node_id, type(request))
            and (self.when is None or self.when(request))
        )
        self.hits += is_match
        return is_match

    def matches_partition(
        self, node_id: int, api: type[Request[Any]], partition: TopicPartition, *, executed: bool
    ) -> bool:
        """Whether the rule applies to this partition's entry; counts the hit if so. `executed`:
        whether the request was executed for the partition; a rule applies either before or after
        that."""
        is_match = (
            self.partition == partition
            and self.executed == executed
            and self._applies(node_id, api)
        )
        self.hits += is_match
        return is_match

    def _applies(self, node_id: int, api: type[Request[Any]]) -> bool:
        return (
            api is self.api
            and (self.times is None or self.hits < self.times)
            and self.node_id in (None, node_id)
        )


def check_fault(fault: Fault) -> None:
    """Raises: ConfigurationError for a rule that could never apply."""
    api, partition, times = fault.api, fault.partition, fault.times
    check_api(api)
    if not isinstance(fault.action, Action):
        raise ConfigurationError(
            f"action={fault.action!r}; expected an error code, Change, Close, Delay, Late, Swallow"
            " or Throttle"
        )
    if isinstance(fault.action, Delay | Late | Throttle):
        _check_seconds(fault.action.seconds)
    if times is not None and not (isinstance(times, int) and times >= 1):
        raise ConfigurationError(f"times={times!r}; expected a whole number, at least 1, or None")
    if fault.when is not None and not callable(fault.when):
        raise ConfigurationError(f"when={fault.when!r}; expected a function of a request")
    if partition is None:
        if fault.executed:
            raise ConfigurationError("executed=True needs a partition; use Change otherwise")
        return
    if not isinstance(partition, TopicPartition):
        raise ConfigurationError(f"partition={partition!r}; expected a TopicPartition")
    if not isinstance(fault.action, int):
        raise ConfigurationError(f"action={fault.action!r}; expected an error code for a partition")
    for apis, is_meant in ((_PARTITION_APIS, True), (_EXECUTED_APIS, fault.executed)):
        if is_meant and api not in apis:
            what = "executed=True" if apis is _EXECUTED_APIS else "a partition"
            names = ", ".join(one.__name__ for one in apis)
            raise ConfigurationError(f"{api.__name__} cannot fail for {what}; only {names} can")


def check_api(api: object) -> None:
    """Raises: ConfigurationError for what is no class of requests."""
    if not (isinstance(api, type) and issubclass(api, Request)):
        raise ConfigurationError(f"api={api!r}; expected a class of requests, as ProduceRequest")


def _check_seconds(seconds: object) -> None:
    if not (isinstance(seconds, int | float) and seconds >= 0):
        raise ConfigurationError(f"seconds={seconds!r}; expected a number, at least 0")


class Faults:
    """All rules; if several apply, the oldest one wins."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []
        """In the order in which they were added."""

    def action(self, node_id: int, request: Request[Any]) -> Action | None:
        """Return the fault to inject into this request, if any."""
        return next((rule.action for rule in self.rules if rule.matches(node_id, request)), None)

    def injected_error(
        self,
        node_id: int,
        api: type[Request[Any]],
        partition: TopicPartition,
        *,
        executed: bool = False,
    ) -> int:
        """Return the error code to inject into the entry of a partition; 0 for none."""
        for rule in self.rules:
            if isinstance(rule.action, int) and rule.matches_partition(
                node_id, api, partition, executed=executed
            ):
                return rule.action
        return 0

"""Lists what each broker coordinates: groups, transactional ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from kafkagroup.errors import (
    KafkaGroupError,
    LocalProtocolError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.runtime.client.calls import RetriedCalls
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.wire.schema import Request

__all__ = ["list_everywhere", "request_list"]

T = TypeVar("T")


class _Listed(Protocol):
    @property
    def error_code(self) -> int: ...


R = TypeVar("R", bound=_Listed)


async def list_everywhere(
    calls: RetriedCalls,
    list_from: Callable[[Cluster, Node], Awaitable[Iterable[T]]],
    name_of: Callable[[T], str],
) -> tuple[tuple[T, ...], dict[Node, KafkaGroupError]]:
    """Return what the brokers list, sorted by name, and the errors of the brokers that failed.
    While a coordinator moves, two brokers may list the same name: it is returned once.

    Raises: TransportError when no broker responds.
    """
    metadata = await calls.one(lambda cluster: cluster.refresh())
    results = await calls.each(metadata.nodes.values(), list_from)
    found: dict[str, T] = {}
    errors: dict[Node, KafkaGroupError] = {}
    for node, result in results.items():
        if isinstance(result, KafkaGroupError):
            errors[node] = result
        else:
            found |= {name_of(one): one for one in result}
    return tuple(found[name] for name in sorted(found)), errors


async def request_list(broker: BrokerClient, request: Request[R], doing: str) -> R:
    """Request what one broker lists. Raises: BrokerError; UnsupportedVersionError when the broker
    cannot filter; TransportError."""
    try:
        response = await broker.request(request)
    except LocalProtocolError as error:  # the broker's versions of the request lack the filter
        raise UnsupportedVersionError(f"{broker!r} is too old for this filter: {error}") from None
    if response.error_code:
        raise broker_error(response.error_code, doing, operation="DESCRIBE")
    return response

"""Why a coordinator refuses a member: its session timeout, its protocols, or its assignor.

Imported only when that happens.
"""

from __future__ import annotations

import anyio

from kafkagroup._text import escaped
from kafkagroup.errors import BrokerError, ErrorCode, KafkaGroupError
from kafkagroup.options import MIN_LIKELY_SESSION_MS
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.wire.messages.configs import (
    BROKER,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kafkagroup.wire.messages.group import JoinGroupRequest

__all__ = ["refused_assignor", "refused_protocols", "refused_session_timeout"]

_MIN, _MAX = "group.min.session.timeout.ms", "group.max.session.timeout.ms"

_DEFAULTS = {_MIN: "6000", _MAX: "1800000"}
"""Kafka's default limits, by configuration name."""

_TIMEOUT = 5.0
"""Seconds for the request for the limits."""


def refused_protocols(request: JoinGroupRequest) -> BrokerError:
    """Return the error of a group whose members do not support what this member does."""
    group, own = escaped(request.group_id), escaped(request.protocol_type)
    names = ", ".join(escaped(protocol.name) for protocol in request.protocols)
    return BrokerError(
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        f"group '{group}' has members of another type than '{own}', or that do not all support one"
        f" of this member's protocols, {names}: `kafkagroup describe` shows them; join another"
        " group, or give all members the same type and a common protocol (a consumer: `assignors`)",
    )


def refused_assignor(name: str, message: str | None) -> BrokerError:
    """Return the error of a `group_remote_assignor` that the coordinator does not have. `message`:
    the text of its response; None or "" if it has none."""
    known = message or "the coordinator does not have it; Kafka's own are 'uniform' and 'range'"
    return BrokerError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"group_remote_assignor={name!r}: {known}")


async def refused_session_timeout(
    broker: BrokerClient, node_id: int, session_timeout_ms: int
) -> BrokerError:
    """Return the error of a session timeout that the broker refuses, with the option, the value and
    the limits."""
    limits = await _limits(broker, node_id)
    least, most = (limits or _DEFAULTS)[_MIN], (limits or _DEFAULTS)[_MAX]
    source = (
        f"the limits of broker {node_id}, {least} to {most}"
        if limits
        else f"the limits of broker {node_id}, which it does not report (Kafka's defaults are"
        f" {least} to {most})"
    )
    advice = (
        f": the option is in milliseconds; did you mean {session_timeout_ms * 1000}?"
        if session_timeout_ms < MIN_LIKELY_SESSION_MS
        else f": choose a value within them, or change {_MIN} and {_MAX} of all brokers"
    )
    return BrokerError(
        ErrorCode.INVALID_SESSION_TIMEOUT,
        f"session_timeout_ms={session_timeout_ms} is outside of {source}{advice}",
    )


async def _limits(broker: BrokerClient, node_id: int) -> dict[str, str] | None:
    """Return both limits, by configuration name; None if the broker does not report them in time:
    an ACL may be missing."""
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(node_id), configuration_keys=(_MIN, _MAX)
    )
    found: dict[str, str] = {}
    with anyio.move_on_after(_TIMEOUT):
        try:
            response = await broker.request(
                DescribeConfigsRequest(resources=(resource,)), timeout=_TIMEOUT
            )
        except KafkaGroupError:
            return None
        for result in response.results:
            # What a broker sends is shown only if it is a number.
            found |= {c.name: c.value for c in result.configs if c.value and c.value.isdecimal()}
    return found if found.keys() >= _DEFAULTS.keys() else None

"""Why a coordinator refuses what a member supports: its protocols, or its assignor.

Imported only when that happens.
"""

from __future__ import annotations

from kafkagroup.errors import BrokerError, ErrorCode, escaped
from kafkagroup.wire.messages.group import JoinGroupRequest

__all__ = ["refused_assignor", "refused_protocols"]


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
    what it answers."""
    known = message or "the coordinator does not have it; Kafka's own are 'uniform' and 'range'"
    return BrokerError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"group_remote_assignor={name!r}: {known}")

"""A script: what clients ask a coordinator, and when. The same script runs on any coordinator.

What a coordinator chooses, such as member ids, differs from run to run. A request names it by
`Known`: what a client has learned so far. `Clients` remembers that, for one coordinator.
"""

from __future__ import annotations

from typing import Any

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kafkagroup.wire.messages.group import (
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from kafkagroup.wire.schema import Request, defaults_of

__all__ = ["Ask", "Clients", "Known", "Script", "Topics", "Wait", "printed"]


@attrs.frozen
class Known:
    """What a client knows when it sends the request."""

    client: str
    what: str
    """`member_id`, `epoch` (or generation), `owned` partitions (KIP-848), `protocol` of the
    generation, `assignments` that it computes as the leader."""
    plus: int = 0
    """Added to an epoch that is not 0: an older or newer one."""

    def __str__(self) -> str:
        return f"{self.client}.{self.what}" + (f"{self.plus:+}" if self.plus else "")


@attrs.frozen
class Ask:
    """A client sends a request."""

    client: str
    version: int
    request: Request[Any]
    """With `Known` in place of some values."""
    is_honest: bool = True
    """Whether the client believes the response. It does not if it lied about itself."""

    def __str__(self) -> str:
        return f"{self.client}: {printed(self.request)} v{self.version}"


@attrs.frozen
class Wait:
    """Time passes."""

    milliseconds: int

    def __str__(self) -> str:
        return f"{self.milliseconds} ms later"


@attrs.frozen
class Topics:
    """From now on there are these topics."""

    topics: tuple[tuple[str, int, int], ...]
    """Name, how often it has been created, partition count."""

    def __str__(self) -> str:
        shown = ", ".join(f"{name}#{count} with {n}" for name, count, n in self.topics)
        return f"topics: {shown or 'none'}"


Step = Ask | Wait | Topics


@attrs.frozen
class Script:
    """Steps, in order; what the coordinator draws comes from the seed."""

    seed: int
    steps: tuple[Step, ...]


def printed(value: Any) -> str:
    """Return a message with the fields that differ from their defaults."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(printed, value)) + "]"
    if isinstance(value, Known):
        return str(value)
    if not _is_message(value):
        return repr(value)
    defaults = defaults_of(type(value))
    shown = ((name, getattr(value, name)) for name in defaults)
    inside = ", ".join(f"{n}={printed(v)}" for n, v in shown if v != defaults[n])
    return f"{type(value).__name__}({inside})"


def _is_message(value: Any) -> bool:
    return hasattr(type(value), "__declared__")


@attrs.define(eq=False)
class _Client:
    member_id: str = ""
    epoch: int = 0
    owned: tuple[TopicPartitions, ...] = ()
    protocol: str | None = None
    members: tuple[str, ...] = ()
    """The generation's members, if this one leads."""

    @property
    def assignments(self) -> tuple[SyncGroupRequestAssignment, ...]:
        return tuple(
            SyncGroupRequestAssignment(member_id=member_id, assignment=f"part {i}".encode())
            for i, member_id in enumerate(sorted(self.members))
        )

    def rejoin(self) -> None:
        self.member_id, self.epoch, self.owned, self.members = "", 0, (), ()


class Clients:
    """What the clients of one coordinator have learned from it."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}

    def _client(self, name: str) -> _Client:
        return self._clients.setdefault(name, _Client())

    def resolve(self, value: Any) -> Any:
        """Return the value with each `Known` in it replaced."""
        if isinstance(value, Known):
            found = getattr(self._client(value.client), value.what)
            return found + value.plus if value.plus and found else found
        if isinstance(value, tuple):
            return tuple(map(self.resolve, value))
        if not _is_message(value):
            return value
        return attrs.evolve(
            value, **{n: self.resolve(getattr(value, n)) for n in defaults_of(type(value))}
        )

    def learn(self, name: str, response: Any) -> None:
        """Let the client take note of a response to an honest request."""
        client = self._client(name)
        error = getattr(response, "error_code", 0)
        match response:
            case JoinGroupResponse():
                if response.member_id:
                    client.member_id = response.member_id
                if not error:
                    client.epoch, client.protocol = response.generation_id, response.protocol_name
                    client.members = tuple(m.member_id for m in response.members)
            case ConsumerGroupHeartbeatResponse() if not error:
                client.member_id = response.member_id or client.member_id
                client.epoch = max(response.member_epoch, 0)
                if response.assignment is not None:
                    client.owned = response.assignment.topic_partitions
                elif not client.epoch:
                    client.owned = ()
            case ConsumerGroupHeartbeatResponse() if error in _MUST_REJOIN:
                client.epoch, client.owned = 0, ()
        if error in _MUST_REJOIN and isinstance(
            response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse
        ):
            client.rejoin()


_MUST_REJOIN = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
)

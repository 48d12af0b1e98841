"""SASL mechanisms: each is a name and one coroutine that authenticates the client.

The client chooses the mechanism, never the broker. To write a mechanism (GSSAPI, AWS_MSK_IAM):

```python
class Anonymous:
    name = "ANONYMOUS"

    async def authenticate(self, exchange: Exchange) -> None:
        await exchange.send(b"trace-me")
```

and pass an instance as `Security(sasl_mechanism=Anonymous())`. One instance serves all connections
concurrently: keep the state of an exchange in local variables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

__all__ = ["Exchange", "Mechanism", "RunInThread"]

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs functions that would block the event loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Exchange(Protocol):
    """One authentication exchange with one broker."""

    @property
    def host(self) -> str:
        """The host name that the client connected to, without a final dot."""

    async def send(self, message: bytes) -> bytes:
        """Send a message; return the broker's response. Get the credentials before you send the
        first message: from then on, the connection takes no other request.

        Raises: AuthenticationError when the broker refuses, TransportError.
        """

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run a computation that takes more than some milliseconds; return its result."""


class Mechanism(Protocol):
    """One way to authenticate."""

    @property
    def name(self) -> str:
        """The name in the broker's `sasl.enabled.mechanisms`."""

    async def authenticate(self, exchange: Exchange) -> None:
        """Exchange messages until the broker has authenticated this client. Called for each
        connection, and each time that a session must be renewed.

        Raises: AuthenticationError to reject the broker. Any error that is not the library's
        becomes the cause of an AuthenticationError. After the client has started, the
        authentication is retried after any of them.
        """

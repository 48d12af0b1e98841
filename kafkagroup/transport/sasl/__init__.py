"""How a client proves who it is: a mechanism is a name and one coroutine, in a file of its own.

Which one is used is never the broker's choice. To write another (GSSAPI, AWS_MSK_IAM):

```python
class Anonymous:
    name = "ANONYMOUS"

    async def authenticate(self, exchange: Exchange) -> None:
        await exchange.send(b"trace-me")
```

and give an object of it as `Security(sasl_mechanism=Anonymous())`. One object serves all
connections, several at a time: what belongs to one conversation stays in local variables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

__all__ = ["Exchange", "Mechanism", "RunInThread"]

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs what would hold up the loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Exchange(Protocol):
    """One conversation with one broker."""

    @property
    def host(self) -> str:
        """The broker's name, as it was connected to."""

    async def send(self, message: bytes) -> bytes:
        """Say something; answer what the broker says to it.

        Raises: AuthenticationError when the broker refuses, TransportError.
        """

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Do what takes more than some milliseconds of computing."""


class Mechanism(Protocol):
    """One way of proving who one is."""

    @property
    def name(self) -> str:
        """As the broker calls it in `sasl.enabled.mechanisms`."""

    async def authenticate(self, exchange: Exchange) -> None:
        """Talk until the broker is satisfied. Called for each connection, and each time that a
        session has to be renewed.

        Raises: AuthenticationError when the broker has to be refused. Anything but the library's
        own errors becomes one, with what was raised as its cause; a TransportError is tried again.
        """

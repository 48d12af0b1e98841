"""Logins of the simulated processes, by PLAIN, and what may go wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import attrs
from anyio.abc import ByteStream

from kafkagroup import Security
from kafkagroup.errors import TlsError
from kafkagroup.transport.sasl import Exchange, RunInThread

from .events import LoggingIn

__all__ = ["USERS", "Logins"]

_USER, _PASSWORD = "ann", "secret"

USERS: Mapping[str, str] = {_USER: _PASSWORD}
"""The accounts of the brokers."""

_DELAY = 0.01
"""Seconds in which a source returns the password, or raises."""


@attrs.define(eq=False)
class _Source:
    """Where the processes of one slot get their password; a mechanism of the client's."""

    record_event: Callable[..., None]
    trouble: str = ""
    """One of `LOGIN_TROUBLES`; "" for none."""
    works_again: anyio.Event = attrs.field(factory=anyio.Event)
    name: str = "PLAIN"


@attrs.define(eq=False)
class _Mechanism:
    """The mechanism of one process."""

    source: _Source
    process: str
    name: str = "PLAIN"

    async def authenticate(self, exchange: Exchange) -> None:
        source = self.source
        source.record_event(LoggingIn, member=self.process)
        await anyio.sleep(_DELAY)
        if source.trouble == "fails":
            raise ConnectionError("the vault is restarting")
        if source.trouble == "hangs":
            await source.works_again.wait()
        password = "old" if source.trouble == "refused" else _PASSWORD
        await exchange.send(f"\0{_USER}\0{password}".encode())


class _Security(Security):
    """Settings without TLS, of a client that may not trust the broker all the same."""

    def __init__(self, source: _Source, process: str) -> None:
        super().__init__(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=_Mechanism(source, process),
            allow_plaintext_credentials=True,
        )

    async def wrap(
        self, stream: ByteStream, host: str, name: str, run_in_thread: RunInThread
    ) -> ByteStream:
        mechanism: Any = self.mechanism
        if mechanism.source.trouble == "untrusted":
            mechanism.source.record_event(LoggingIn, member=mechanism.process)
            await anyio.aclose_forcefully(stream)
            raise TlsError(f"{name}: certificate verify failed: certificate has expired")
        return stream


class Logins:
    """The sources of all slots."""

    def __init__(self, record_event: Callable[..., None]) -> None:
        self._record_event = record_event
        self._sources: dict[str, _Source] = {}

    def _source(self, slot: str) -> _Source:
        return self._sources.setdefault(slot, _Source(self._record_event))

    def security(self, slot: str, process: str) -> Security:
        """Return the settings of a new process."""
        return _Security(self._source(slot), process)

    def fail(self, slot: str, trouble: str) -> None:
        """Let logins of a slot fail until `mend`."""
        self._source(slot).trouble = trouble

    def mend(self, slot: str) -> None:
        """Let logins of a slot work again."""
        source = self._source(slot)
        source.trouble = ""
        source.works_again.set()
        source.works_again = anyio.Event()

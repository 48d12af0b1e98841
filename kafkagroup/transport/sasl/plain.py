"""PLAIN (RFC 4616): sends the password itself, so TLS is needed."""

from __future__ import annotations

import attrs

from kafkagroup.errors import AuthenticationError
from kafkagroup.transport.sasl import Exchange
from kafkagroup.transport.sasl.secret import Secret

__all__ = ["Plain"]


@attrs.frozen
class Plain:
    """A user's name and password."""

    username: str
    password: Secret
    name = "PLAIN"

    async def authenticate(self, exchange: Exchange) -> None:
        # No authorization identity: in Kafka no client acts on behalf of another.
        if await exchange.send(f"\0{self.username}\0{self.password.reveal()}".encode()):
            raise AuthenticationError("the broker's response to PLAIN is not empty")

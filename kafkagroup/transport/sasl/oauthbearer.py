"""OAUTHBEARER (RFC 7628, KIP-255): sends a bearer token of an identity provider, so TLS is needed.

Tokens come from the application's callback: nothing is fetched from URLs or files here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping

import attrs

from kafkagroup._public import public
from kafkagroup._text import escaped
from kafkagroup.errors import AuthenticationError, ConfigurationError
from kafkagroup.transport.sasl import Exchange
from kafkagroup.transport.sasl.secret import Secret

__all__ = ["OAuthBearer", "Token", "TokenCallback"]

_TOKEN = re.compile(r"[-A-Za-z0-9._~+/]+=*")
"""RFC 6750, section 2.1."""

_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")
"""RFC 7628, section 3.1. The value must not contain a byte 1, which separates the extensions."""


@public
@attrs.frozen
class Token:
    """A bearer token, which the callback returns."""

    value: Secret
    extensions: Mapping[str, str] = attrs.field(repr=False)
    """SASL extensions for the broker, such as {"logicalCluster": "lkc-1"} (KIP-342)."""

    def __init__(self, value: str | Secret, extensions: Mapping[str, str] | None = None) -> None:
        value = Secret(value)  # before anything can fail: a traceback may show variables
        # mypy does not know this method, which attrs generates beside an `__init__`.
        self.__attrs_init__(value, dict(extensions or {}))  # type: ignore[attr-defined]

    def __attrs_post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.value.reveal()):
            raise ConfigurationError(
                "Token.value is no bearer token (RFC 6750): letters, digits and -._~+/,"
                " and = at the end"
            )
        for key in self.extensions:
            if (
                not _KEY.fullmatch(key)
                or key == "auth"
                or not _VALUE.fullmatch(self.extensions[key])
            ):
                raise ConfigurationError(
                    f"Token.extensions has {key!r}; expected a name of letters other than 'auth',"
                    " and a value of printable ASCII"
                )


TokenCallback = Callable[[], Token | Awaitable[Token]]
"""Called for each connection, and again before the connection's session ends. The broker reports
the lifetime of the session (KIP-368), at most that of the token. The callback may cache tokens; the
library does not."""


@attrs.frozen
class OAuthBearer:
    """Authenticates with tokens from a callback."""

    token: TokenCallback = attrs.field(repr=False)
    name = "OAUTHBEARER"

    async def authenticate(self, exchange: Exchange) -> None:
        refusal = await exchange.send(_first_message(await self._get_token()))
        if not refusal:
            return
        # RFC 7628, 3.2.3: the broker sends its reason as JSON, and fails the authentication only
        # after the client has answered with a byte 1.
        reason = escaped(refusal.decode(errors="replace"))
        try:
            await exchange.send(b"\x01")
        except AuthenticationError as error:
            reason = f"{reason}: {error}"
        raise AuthenticationError(
            f"the broker refuses the token: {reason}", is_refusal=True
        ) from None

    async def _get_token(self) -> Token:
        result = self.token()
        token = await result if inspect.isawaitable(result) else result
        if isinstance(token, Token):
            return token
        kind = type(token).__name__
        del result, token  # may be the token as a string, and tracebacks may show variables
        raise ConfigurationError(f"sasl_oauthbearer_token returned a {kind}; expected a Token")


def _first_message(token: Token) -> bytes:
    extensions = "".join(f"{key}={value}\x01" for key, value in token.extensions.items())
    return f"n,,\x01auth=Bearer {token.value.reveal()}\x01{extensions}\x01".encode()

"""Authentication: SaslHandshake and SaslAuthenticate.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    BYTES,
    INT16,
    INT64,
    STRING,
    Request,
    array,
    field,
    message,
)


@message(17, "0-1")
class SaslHandshakeResponse:
    error_code: int = field(INT16)
    mechanisms: tuple[str, ...] = field(array(STRING))


@message(17, "0-1")
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    response = SaslHandshakeResponse

    mechanism: str = field(STRING)


@message(36, "0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    auth_bytes: bytes = field(BYTES)
    session_lifetime_ms: int = field(INT64, "1+", default=0, ignorable=True)

    def __repr__(self) -> str:
        # The server's SCRAM messages are enough to guess passwords offline.
        return (
            f"SaslAuthenticateResponse(error_code={self.error_code},"
            f" error_message={self.error_message!r}, auth_bytes=<{len(self.auth_bytes)} bytes>,"
            f" session_lifetime_ms={self.session_lifetime_ms})"
        )


@message(36, "0-2", flexible="2+")
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    response = SaslAuthenticateResponse

    auth_bytes: bytes = field(BYTES)

    def __repr__(self) -> str:
        # With PLAIN the bytes are the password itself.
        return f"SaslAuthenticateRequest(auth_bytes=<{len(self.auth_bytes)} bytes>)"

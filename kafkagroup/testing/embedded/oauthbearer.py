"""The server side of OAUTHBEARER (RFC 7628): one message in, or two if the token is refused. No
I/O. Nothing is verified here: the test passes a function that returns the user of a token."""

from __future__ import annotations

import re
from collections.abc import Callable

from kafkagroup.testing.embedded.scram import Conversation, ReportedSaslError, SaslError

__all__ = ["TokenUser", "oauthbearer"]

TokenUser = Callable[[str], str | None]
"""Bearer token -> its user; None refuses the token."""

_CLIENT_FIRST = re.compile(
    rb"n,(?:a=[^,]*)?,\x01auth=[Bb]earer +([-A-Za-z0-9._~+/]+=*)\x01"
    rb"(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*\x01"
)

_REFUSAL = '{"status":"invalid_token"}'


def oauthbearer(user_of: TokenUser) -> Conversation:
    """Run one authentication, with `user_of` to look up the user of the token."""
    first = _CLIENT_FIRST.fullmatch((yield b""))
    if first is None:
        raise SaslError("the message is not a client's first one of OAUTHBEARER")
    user = user_of(first[1].decode("ascii"))
    if user is None:
        # The client acknowledges the reason with one byte; only then does the authentication fail.
        if (yield _REFUSAL.encode()) != b"\x01":
            raise SaslError("the client did not acknowledge the refusal")
        raise ReportedSaslError(_REFUSAL)
    return user, b""

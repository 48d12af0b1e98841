"""How a member connects to ZooKeeper: TLS, authentication, and the ACL of its nodes.

Secrets are unwrapped only for the arguments of kazoo's constructor.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import attrs
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import ACL, CREATOR_ALL_ACL

from kafkagroup.errors import ConfigurationError, TlsError
from kafkagroup.transport.sasl.secret import Secret
from kafkagroup.transport.security import Security
from kafkagroup.transport.tls import Tls

__all__ = ["Access"]

_PASSWORD_MECHANISMS = (None, "DIGEST-MD5")
"""Mechanisms with a user name and a password. None is ZooKeeper's own "digest", which sends both as
they are."""


@attrs.frozen(kw_only=True)
class Access:
    """The connection settings, the same for every session of a member. The options of
    `ZooKeeperMembership` with the same names describe them.

    Raises: ConfigurationError.
    """

    security: Security | None = None
    username: str | None = None
    password: Secret | None = None
    sasl_mechanism: str | None = None
    acl: Sequence[ACL] | None = None
    allow_plaintext_credentials: bool = False

    def __attrs_post_init__(self) -> None:
        mechanism, security = self.sasl_mechanism, self.security
        if security is not None and security.security_protocol != "SSL":
            raise ConfigurationError(
                f"security_protocol={security.security_protocol!r}; expected 'SSL': ZooKeeper has"
                " none of Kafka's SASL mechanisms; give username and password instead"
            )
        if mechanism not in (*_PASSWORD_MECHANISMS, "GSSAPI"):
            raise ConfigurationError(
                f"sasl_mechanism={mechanism!r}; expected 'DIGEST-MD5', 'GSSAPI', or None"
            )
        if mechanism is not None and find_spec("puresasl") is None:
            # Without this check, kazoo raises the ImportError in its own thread, unseen.
            raise ConfigurationError(f"{mechanism} needs pure-sasl: pip install pure-sasl")
        if (self.username is None) != (self.password is None):
            raise ConfigurationError("username and password: give both or neither")
        if mechanism == "DIGEST-MD5" and self.username is None:
            raise ConfigurationError("DIGEST-MD5 needs username and password")
        if mechanism == "GSSAPI" and self.username is not None:
            raise ConfigurationError("username and password: GSSAPI uses neither; remove them")
        if self.username is not None and mechanism is None:
            if ":" in self.username:
                raise ConfigurationError(
                    f"username={self.username!r}; expected a name without a colon"
                )
            if security is None and not self.allow_plaintext_credentials:
                raise ConfigurationError(
                    "without TLS the password is readable on the network; give"
                    " security=Security(), sasl_mechanism='DIGEST-MD5', or"
                    " allow_plaintext_credentials=True"
                )

    def options(self, on_tls_error: Callable[[TlsError], object]) -> dict[str, Any]:
        """Return arguments for `KazooClient`. `on_tls_error` is called in a kazoo thread."""
        options: dict[str, Any] = {}
        if self.security is not None and self.security.tls is not None:
            options |= {"use_ssl": True, "handler": _TlsHandler(self.security.tls, on_tls_error)}
        has_credentials = self.username is not None or self.sasl_mechanism is not None
        if self.sasl_mechanism is not None:
            options["sasl_options"] = {"mechanism": self.sasl_mechanism, **self._sasl_user()}
        elif self.password is not None:
            options["auth_data"] = [("digest", f"{self.username}:{self.password.reveal()}")]
        acl = CREATOR_ALL_ACL if self.acl is None and has_credentials else self.acl
        if acl is not None:
            options["default_acl"] = list(acl)
        return options

    def _sasl_user(self) -> dict[str, str]:
        if self.username is None or self.password is None:
            return {}
        return {"username": self.username, "password": self.password.reveal()}


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is not typed
    """kazoo's thread handler, with the TLS of `Security`: kazoo's own also trusts the system's
    certificates where others are given, and verifies no host names."""

    def __init__(self, tls: Tls, on_tls_error: Callable[[TlsError], object]) -> None:
        super().__init__()
        self._tls = tls
        self._on_tls_error = on_tls_error

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: object
    ) -> socket.socket:
        connected = socket.create_connection(address, timeout)
        try:
            return self._tls.wrap_socket(connected, hostname, f"{hostname}:{address[1]}")
        except TlsError as error:
            self._on_tls_error(error)
            raise ConnectionRefusedError(str(error)) from None  # kazoo tries the next server

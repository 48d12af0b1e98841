"""`Security`: the settings for TLS and SASL, checked on creation and used by every connection.

The fields are the options that Kafka's users know, in snake case. The defaults are safe: SASL_SSL
with a mechanism, else SSL; certificates and host names are verified, also those of brokers that
other brokers advertise; passwords and tokens are not sent without TLS. Secrets are wrapped before
any code that can fail, so that no repr, log or traceback shows them.
"""

from __future__ import annotations

import os
import ssl
import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, NoReturn, get_args

import attrs
from anyio.abc import ByteStream

from kafkagroup._foreign_options import explains_unknown_options
from kafkagroup._public import public
from kafkagroup.errors import ConfigurationError, InsecureConnectionWarning
from kafkagroup.transport.sasl import Mechanism, RunInThread
from kafkagroup.transport.sasl.oauthbearer import OAuthBearer, TokenCallback
from kafkagroup.transport.sasl.plain import Plain
from kafkagroup.transport.sasl.scram import HASHES, Scram
from kafkagroup.transport.sasl.secret import Secret, check_type
from kafkagroup.transport.tls import Tls, client_context
from kafkagroup.transport.tls_files import FileContext

__all__ = ["Security"]

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Identification = Literal["https", "none"]

_PEM_BEGIN = "-----BEGIN"

_MECHANISMS = ("PLAIN", *HASHES, "OAUTHBEARER")

_SENDS_CREDENTIALS = frozenset(("PLAIN", "OAUTHBEARER"))
"""Mechanisms whose messages contain the credentials: an eavesdropper could use them."""

_TYPES: dict[str, tuple[type, str]] = {
    "ssl_context": (ssl.SSLContext, "an ssl.SSLContext"),
    "ssl_ca_location": (str, "a string"),
    "ssl_ca_pem": (str, "a string"),
    "ssl_certificate_location": (str, "a string"),
    "ssl_certificate_pem": (str, "a string"),
    "ssl_key_location": (str, "a string"),
    "ssl_key_pem": (str, "a string"),
    "ssl_key_password": (str, "a string"),
    "sasl_username": (str, "a string"),
    "sasl_password": (str, "a string"),
    "sasl_oauthbearer_token": (Callable, "a function that returns a Token"),  # type: ignore[dict-item]
}
"""Option that may be None -> the type of any other value, and its name in errors."""


@public
@attrs.frozen(kw_only=True, eq=False, init=False)
class Security:
    """How a client and its brokers authenticate each other.

    ```python
    Security(sasl_mechanism="SCRAM-SHA-512", sasl_username="billing", sasl_password=password)
    Security(ssl_ca_location="ca.pem", ssl_certificate_location="me.pem", ssl_key_location="me.key")
    ```
    """

    security_protocol: Protocol
    """If not given: SASL_SSL with a `sasl_mechanism`, else SSL."""
    ssl_context: ssl.SSLContext | None
    """Your own context, used as it is; no other TLS option may be given with it."""
    ssl_ca_location: str | None
    """File with the CA certificates that verify those of the brokers, in PEM, or a directory
    prepared by `openssl rehash`; None: the certificates that the system trusts. Like the files of
    the certificate and the key, it is read again before a connection if it has changed."""
    ssl_ca_pem: Secret | None
    """The CA certificates as a string."""
    ssl_certificate_location: str | None
    """File with this client's certificate and its chain to the CA, in PEM (mutual TLS)."""
    ssl_certificate_pem: Secret | None
    """The client's certificate as a string."""
    ssl_key_location: str | None
    """File with the private key of the certificate, in PEM; None if it is in the certificate's
    file."""
    ssl_key_pem: Secret | None
    """The private key as a string."""
    ssl_key_password: Secret | None
    """The password of an encrypted private key."""
    enable_ssl_certificate_verification: bool
    """If False, any server can impersonate a broker. Warns."""
    ssl_endpoint_identification_algorithm: Identification
    """If "none", any holder of a certificate from the CA can impersonate any broker. Warns."""
    sasl_mechanism: str | Mechanism | None = attrs.field(repr=lambda given: repr(_name(given)))
    """"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", or a `Mechanism` of your own."""
    sasl_username: str | None
    """The user name for PLAIN and SCRAM."""
    sasl_password: Secret | None
    """The password for PLAIN and SCRAM; no repr, log or traceback shows it."""
    sasl_oauthbearer_token: TokenCallback | None = attrs.field(repr=False)
    """Returns a `Token`; may be a coroutine function, otherwise it must not block."""
    allow_plaintext_credentials: bool
    """Whether PLAIN and OAUTHBEARER may be used without TLS, readable on the network."""
    _tls: Tls | None = attrs.field(init=False, repr=False)
    mechanism: Mechanism | None = attrs.field(init=False, repr=False)
    """The mechanism that authenticates this client; None without SASL."""

    @explains_unknown_options
    def __init__(
        self,
        *,
        security_protocol: Protocol | None = None,
        ssl_context: ssl.SSLContext | None = None,
        ssl_ca_location: str | os.PathLike[str] | None = None,
        ssl_ca_pem: str | Secret | None = None,
        ssl_certificate_location: str | os.PathLike[str] | None = None,
        ssl_certificate_pem: str | Secret | None = None,
        ssl_key_location: str | os.PathLike[str] | None = None,
        ssl_key_pem: str | Secret | None = None,
        ssl_key_password: str | Secret | None = None,
        enable_ssl_certificate_verification: bool = True,
        ssl_endpoint_identification_algorithm: Identification = "https",
        sasl_mechanism: str | Mechanism | None = None,
        sasl_username: str | None = None,
        sasl_password: str | Secret | None = None,
        sasl_oauthbearer_token: TokenCallback | None = None,
        allow_plaintext_credentials: bool = False,
    ) -> None:
        """Raises: ConfigurationError.

        Args:
            security_protocol: If not given: SASL_SSL with a `sasl_mechanism`, else SSL. Default
                `None`; Kafka's `security.protocol`.
            ssl_context: Your own context, used as it is; no other TLS option may be given with it.
                Default `None`.
            ssl_ca_location: File with the CA certificates that verify those of the brokers, in PEM,
                or a directory prepared by `openssl rehash`; None: the certificates that the system
                trusts. Like the files of the certificate and the key, it is read again before a
                connection if it has changed.
            ssl_ca_pem: The CA certificates as a string. Default `None`.
            ssl_certificate_location: File with this client's certificate and its chain to the CA,
                in PEM (mutual TLS). Default `None`.
            ssl_certificate_pem: The client's certificate as a string. Default `None`.
            ssl_key_location: File with the private key of the certificate, in PEM; None if it is in
                the certificate's file.
            ssl_key_pem: The private key as a string. Default `None`.
            ssl_key_password: The password of an encrypted private key. Default `None`.
            enable_ssl_certificate_verification: If False, any server can impersonate a broker.
                Warns. Default `True`.
            ssl_endpoint_identification_algorithm: If "none", any holder of a certificate from the
                CA can impersonate any broker. Warns. Default `'https'`; Kafka's
                `ssl.endpoint.identification.algorithm`.
            sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", or a
                `Mechanism` of your own. Default `None`; Kafka's `sasl.mechanism`.
            sasl_username: The user name for PLAIN and SCRAM. Default `None`.
            sasl_password: The password for PLAIN and SCRAM; no repr, log or traceback shows it.
                Default `None`.
            sasl_oauthbearer_token: Returns a `Token`; may be a coroutine function, otherwise it
                must not block. Default `None`.
            allow_plaintext_credentials: Whether PLAIN and OAUTHBEARER may be used without TLS,
                readable on the network. Default `False`.
        """
        # Wrapped first, and assigned to the same names: the traceback of a later error may show
        # the variables.
        ssl_ca_pem = _wrapped(ssl_ca_pem)
        ssl_certificate_pem = _wrapped(ssl_certificate_pem)
        ssl_key_pem = _wrapped(ssl_key_pem)
        ssl_key_password = _wrapped(ssl_key_password)
        sasl_password = _wrapped(sasl_password)
        if security_protocol is None:
            security_protocol = "SSL" if sasl_mechanism is None else "SASL_SSL"
        self.__attrs_init__(
            security_protocol=security_protocol,
            ssl_context=ssl_context,
            ssl_ca_location=_path(ssl_ca_location),
            ssl_ca_pem=ssl_ca_pem,
            ssl_certificate_location=_path(ssl_certificate_location),
            ssl_certificate_pem=ssl_certificate_pem,
            ssl_key_location=_path(ssl_key_location),
            ssl_key_pem=ssl_key_pem,
            ssl_key_password=ssl_key_password,
            enable_ssl_certificate_verification=enable_ssl_certificate_verification,
            ssl_endpoint_identification_algorithm=ssl_endpoint_identification_algorithm,
            sasl_mechanism=sasl_mechanism,
            sasl_username=sasl_username,
            sasl_password=sasl_password,
            sasl_oauthbearer_token=sasl_oauthbearer_token,
            allow_plaintext_credentials=allow_plaintext_credentials,
        )

    def __attrs_post_init__(self) -> None:
        self._check_types()
        if self.security_protocol not in get_args(Protocol):
            raise ConfigurationError(
                f"security_protocol={self.security_protocol!r}; expected one of"
                f" {', '.join(get_args(Protocol))}"
            )
        # The class is frozen; these two fields are computed from the others.
        object.__setattr__(self, "_tls", self._make_tls())
        object.__setattr__(self, "mechanism", self._make_mechanism())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Security holds secrets and is not pickled; create a new one where it is needed"
        )

    async def wrap(
        self, stream: ByteStream, host: str, name: str, run_in_thread: RunInThread
    ) -> ByteStream:
        """Return the stream with TLS, or as it is if the security protocol has no TLS. `host`: the
        name in the broker's certificate; `name`: how errors name the broker.

        Raises: TlsError, ConnectionLostError.
        """
        return (
            stream if self._tls is None else await self._tls.wrap(stream, host, name, run_in_thread)
        )

    @property
    def tls(self) -> Tls | None:
        """The TLS layer; None if the security protocol has no TLS."""
        return self._tls

    # ------------------------------------------------------------ TLS

    def _make_tls(self) -> Tls | None:
        given = self._given("ssl_ca", "ssl_certificate", "ssl_key")
        if "SSL" not in self.security_protocol.split("_"):
            self._refuse_any(
                [*given, *self._given("ssl_context")],
                f"no use without TLS; security_protocol is {self.security_protocol}",
            )
            return None
        if self.ssl_endpoint_identification_algorithm not in get_args(Identification):
            raise ConfigurationError(
                "ssl_endpoint_identification_algorithm="
                f"{self.ssl_endpoint_identification_algorithm!r}; expected 'https' or 'none'"
            )
        verify = self.enable_ssl_certificate_verification
        check_hostname = self.ssl_endpoint_identification_algorithm == "https"
        if self.ssl_context is not None:
            given += [] if verify else ["enable_ssl_certificate_verification"]
            given += [] if check_hostname else ["ssl_endpoint_identification_algorithm"]
            self._refuse_any(given, "no use beside ssl_context, which is used as it is")
            _warn_if_unverified(self.ssl_context)
            return Tls(self.ssl_context)
        self._refuse_twice("ssl_ca", "ssl_certificate", "ssl_key")
        self._refuse_confused("ssl_ca", "ssl_certificate", "ssl_key")
        if self._given("ssl_key") and not self._given("ssl_certificate"):
            raise ConfigurationError(
                "ssl_key needs a certificate beside it: ssl_certificate_location or _pem"
            )
        context = FileContext(
            partial(
                client_context,
                ca_location=self.ssl_ca_location,
                ca_pem=self.ssl_ca_pem,
                certificate_location=self.ssl_certificate_location,
                certificate_pem=self.ssl_certificate_pem,
                key_location=self.ssl_key_location,
                key_pem=self.ssl_key_pem,
                key_password=self.ssl_key_password,
                verify=verify,
                check_hostname=check_hostname,
            ),
            (self.ssl_ca_location, self.ssl_certificate_location, self.ssl_key_location),
            trust_system=verify and not self._given("ssl_ca"),
        )
        _warn_if_unverified(context.current)
        return Tls(context if context.has_files else context.current)

    # ------------------------------------------------------------ SASL

    def _make_mechanism(self) -> Mechanism | None:
        given = self._given("sasl_")
        if not self.security_protocol.startswith("SASL"):
            missing = "" if self.sasl_mechanism else ", and there is no sasl_mechanism"
            self._refuse_any(
                given,
                f"no use; security_protocol is {self.security_protocol}{missing}: for SASL over TLS"
                " give sasl_mechanism, such as 'SCRAM-SHA-512', and no security_protocol",
            )
            return None
        mechanism, name = self.sasl_mechanism, _name(self.sasl_mechanism)
        if mechanism is None or isinstance(mechanism, str):
            unknown = None if mechanism in _MECHANISMS else f"={mechanism!r}"
        else:
            is_mechanism = name is not None and hasattr(mechanism, "authenticate")
            # Without the value: its repr may show credentials.
            unknown = None if is_mechanism else f" is of type {type(mechanism).__name__}"
        if unknown is not None:
            raise ConfigurationError(
                f"sasl_mechanism{unknown}; expected one of {', '.join(_MECHANISMS)}, or an"
                " object of your own with a name and an authenticate()"
            )
        if (
            name in _SENDS_CREDENTIALS
            and self.security_protocol == "SASL_PLAINTEXT"
            and not self.allow_plaintext_credentials
        ):
            raise ConfigurationError(
                f"{name} without TLS sends credentials that anyone can read; use SASL_SSL, or a"
                " SCRAM mechanism, or set allow_plaintext_credentials=True"
            )
        if not isinstance(mechanism, str):
            # The first of the given options is `sasl_mechanism` itself.
            self._refuse_any(given[1:], "no use beside a sasl_mechanism of your own")
            return mechanism
        if mechanism == "OAUTHBEARER":
            if self.sasl_oauthbearer_token is None:
                raise ConfigurationError(
                    "OAUTHBEARER needs sasl_oauthbearer_token: a callback that returns a Token"
                )
            self._refuse_any(
                self._given("sasl_username", "sasl_password"), "no use with OAUTHBEARER"
            )
            return OAuthBearer(self.sasl_oauthbearer_token)
        if not self.sasl_username or self.sasl_password is None:
            raise ConfigurationError(f"{mechanism} needs sasl_username and sasl_password")
        self._refuse_any(self._given("sasl_oauthbearer"), f"no use with {mechanism}")
        if "\0" in self.sasl_username or "\0" in self.sasl_password.reveal():
            raise ConfigurationError("sasl_username and sasl_password cannot have NUL in them")
        if mechanism == "PLAIN":
            return Plain(self.sasl_username, self.sasl_password)
        return Scram(mechanism, self.sasl_username, self.sasl_password)

    # ------------------------------------------------------------ the given options

    def _check_types(self) -> None:
        """Raise ConfigurationError for a value of another type."""
        for name, (kind, expected) in _TYPES.items():
            if (value := getattr(self, name)) is not None:
                check_type(name, value, kind, expected)
        for name in ("enable_ssl_certificate_verification", "allow_plaintext_credentials"):
            value = getattr(self, name)
            # Any other value counts as True or False: the text "false" as True.
            if not isinstance(value, bool):
                raise ConfigurationError(
                    f"{name} is of type {type(value).__name__}; expected True or False"
                )

    def _given(self, *prefixes: str) -> list[str]:
        """Return the names of the options with these prefixes whose values are not None."""
        names = (a.name for a in attrs.fields(type(self)) if a.name.startswith(prefixes))
        return [name for name in names if getattr(self, name) is not None]

    def _refuse_any(self, names: list[str], reason: str) -> None:
        """Raise ConfigurationError if there are any names."""
        if names:
            raise ConfigurationError(f"{', '.join(names)}: {reason}")

    def _refuse_twice(self, *prefixes: str) -> None:
        """Raise ConfigurationError for an option that is given both as a file and as a text."""
        for prefix in prefixes:
            both = [name for name in self._given(prefix) if name.endswith(("_location", "_pem"))]
            if len(both) > 1:
                raise ConfigurationError(f"{' and '.join(both)}: give one of them")

    def _refuse_confused(self, *prefixes: str) -> None:
        """Raise ConfigurationError for a text in PEM where the name of a file is expected, and for
        the name of a file in place of a text. The error does not show the value: it may be a
        private key."""
        for prefix in prefixes:
            location, pem = getattr(self, f"{prefix}_location"), getattr(self, f"{prefix}_pem")
            if location is not None and _PEM_BEGIN in location:
                raise ConfigurationError(
                    f"{prefix}_location: it is a text in PEM, not the name of a file; give it as"
                    f" {prefix}_pem"
                )
            if pem is not None and _PEM_BEGIN not in pem.reveal():
                raise ConfigurationError(
                    f"{prefix}_pem: it has no '{_PEM_BEGIN}', so it is not PEM; give the name of a"
                    f" file as {prefix}_location"
                )


def _name(mechanism: str | Mechanism | None) -> str | None:
    return mechanism if isinstance(mechanism, str | None) else getattr(mechanism, "name", None)


def _wrapped(text: str | Secret | None) -> Secret | None:
    return None if text is None else Secret(text)


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _warn_if_unverified(context: ssl.SSLContext) -> None:
    if context.verify_mode != ssl.CERT_REQUIRED:
        risk = "the brokers' certificates are not verified: any server can impersonate a broker"
    elif not context.check_hostname:
        risk = "host names are not checked: any certificate of the CA passes for any broker"
    else:
        return
    # Attribute the warning to the caller of Security(), beyond this function, _make_tls and the
    # five functions that create an instance.
    warnings.warn(risk, InsecureConnectionWarning, stacklevel=8)

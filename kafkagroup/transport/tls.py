"""TLS: the context, and the handshake of every connection.

By default TLS 1.2 at least, with SNI, and the broker's certificate and name are verified. OpenSSL's
errors are translated to errors that state whose fault it is and what to do.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from kafkagroup._text import escaped
from kafkagroup.errors import ConfigurationError, ConnectionLostError, TlsError
from kafkagroup.transport.sasl import RunInThread
from kafkagroup.transport.sasl.secret import Secret
from kafkagroup.transport.tls_files import FileContext

__all__ = ["Tls", "client_context", "tls_error"]

_NAME_MISMATCH_CODES = frozenset((62, 64))
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

_WITHOUT_TLS = (
    "is this the port of a TLS listener? One without TLS takes security=None, or a Security with"
    ' security_protocol="SASL_PLAINTEXT"'
)
"""The advice where the listener may be one without TLS. Such a listener closes the connection when
it receives a TLS handshake."""


class Tls:
    """Adds TLS to streams."""

    def __init__(self, context: ssl.SSLContext | FileContext) -> None:
        """`context`: one that never changes, or one that is read again when its files change."""
        self._context = context

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the last connection."""
        known = self._context
        return known.current if isinstance(known, FileContext) else known

    async def wrap(
        self, stream: ByteStream, host: str, name: str, run_in_thread: RunInThread
    ) -> ByteStream:
        """Return the stream with TLS, after a handshake. Closes the stream on failure. `host`: the
        name in the broker's certificate; `name`: how errors name the broker.

        Raises: TlsError; ConnectionLostError if the connection broke, or `host` cannot be a name.
        """
        try:
            context = self._context
            if isinstance(context, FileContext):
                context = await run_in_thread(context.renew)
            # Not `standard_compatible`: frames have lengths, which detect truncation anyway, and
            # closing must not wait for a broker that sends no close_notify.
            return await TLSStream.wrap(
                stream,
                server_side=False,
                hostname=_certified_name(host),
                ssl_context=context,
                standard_compatible=False,
            )
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)
            if isinstance(error, ssl.SSLError):
                raise tls_error(name, error) from None
            if isinstance(error, anyio.EndOfStream | anyio.BrokenResourceError | ValueError):
                # ValueError: an impossible host name, which another broker has advertised.
                why = escaped(str(error)) or f"closed by the broker; {_WITHOUT_TLS}"
                raise ConnectionLostError(f"{name}: in the TLS handshake: {why}") from None
            raise

    def wrap_socket(self, connected: socket.socket, host: str, name: str) -> ssl.SSLSocket:
        """Do what `wrap` does, for a blocking socket of a client that runs in a thread, such as
        ZooKeeper's.

        Raises: TlsError; OSError if the connection broke.
        """
        context = self._context
        if isinstance(context, FileContext):
            context = context.renew()
        try:
            return context.wrap_socket(connected, server_hostname=_certified_name(host))
        except BaseException as error:
            connected.close()
            if isinstance(error, ssl.SSLError):
                raise tls_error(name, error, "server") from None
            raise


def _certified_name(host: str) -> str:
    """Return the name that a certificate has for a host. A final dot makes a name absolute where it
    is resolved, and belongs neither into certificates nor into SNI (RFC 6066)."""
    return host.removesuffix(".")


def client_context(
    *,
    ca_location: str | None,
    ca_pem: Secret | None,
    certificate_location: str | None,
    certificate_pem: Secret | None,
    key_location: str | None,
    key_pem: Secret | None,
    key_password: Secret | None,
    verify: bool,
    check_hostname: bool,
) -> ssl.SSLContext:
    """Return a context with these settings, without the system's certificates.

    Raises: ConfigurationError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # With a renegotiation the reader would have to write, concurrently with the writer.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = verify and check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    try:
        if ca_pem is not None:
            context.load_verify_locations(cadata=ca_pem.reveal())
        elif ca_location is not None:
            is_directory = os.path.isdir(ca_location)
            context.load_verify_locations(**{"capath" if is_directory else "cafile": ca_location})
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"ssl_ca_{'pem' if ca_pem is not None else f'location={ca_location!r}'}:"
            f" {_reason(error)}; expected certificates in PEM"
        ) from None
    if certificate_location is not None or certificate_pem is not None:
        _load_certificate(
            context, certificate_location, certificate_pem, key_location, key_pem, key_password
        )
    return context


def _load_certificate(
    context: ssl.SSLContext,
    certificate_location: str | None,
    certificate_pem: Secret | None,
    key_location: str | None,
    key_pem: Secret | None,
    key_password: Secret | None,
) -> None:
    def password() -> str:
        if key_password is None:
            # Without this, OpenSSL prompts at the terminal and waits.
            raise ConfigurationError("the key is encrypted; give ssl_key_password")
        return key_password.reveal()

    with ExitStack() as files:
        if certificate_pem is not None:
            certificate_location = files.enter_context(_file_of(certificate_pem))
        if key_pem is not None:
            key_location = files.enter_context(_file_of(key_pem))
        assert certificate_location is not None
        try:
            context.load_cert_chain(certificate_location, key_location, password)
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise  # by `password`
            what = _unreadable(certificate_location, key_location) or "ssl_certificate and ssl_key"
            raise ConfigurationError(
                f"{what}: {_reason(error)}; expected a certificate in PEM and the key that belongs"
                " to it"
            ) from None


def _unreadable(certificate_location: str, key_location: str | None) -> str | None:
    """Return which file cannot be read, as OpenSSL does not tell; None if all can."""
    locations = {"ssl_certificate": certificate_location, "ssl_key": key_location}
    for name, path in locations.items():
        if path is not None and not os.access(path, os.R_OK):
            return f"{name}_location={path!r}"
    return None


@contextmanager
def _file_of(pem: Secret) -> Iterator[str]:
    """Write a temporary file that no other user can read, and delete it on exit: `ssl` loads
    certificates and keys from files only."""
    descriptor, path = tempfile.mkstemp(prefix="kafkagroup-")
    try:
        with open(descriptor, "w") as file:
            file.write(pem.reveal())
        yield path
    finally:
        os.unlink(path)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "unreadable").replace("_", " ").lower()
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def tls_error(name: str, error: ssl.SSLError, peer: str = "broker") -> TlsError:
    """Return the error of a failed handshake with `name`: what failed, and what to do. `peer`: what
    the error calls the other side."""
    reason = escaped(_reason(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAME_MISMATCH_CODES:
            advice = f"connect to, and have the {peer}s advertise, names that are in it"
        else:
            advice = f"give the CA that signed it as ssl_ca_location, if it is the right {peer}"
        reason = escaped(error.verify_message.rstrip("."))
        return TlsError(f"{name}: the {peer}'s certificate is refused: {reason}; {advice}")
    if "alert" in reason:  # of the peer, such as "tlsv1 alert unknown ca"
        return TlsError(
            f"{name}: the {peer} refuses the TLS handshake: {reason}; it may want another"
            " ssl_certificate and ssl_key of this client, or another version of TLS",
            is_refusal=True,
        )
    return TlsError(f"{name}: no TLS handshake: {reason}; {_WITHOUT_TLS}")

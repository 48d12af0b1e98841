"""Checks one address: name resolution, connection, TLS, API versions and authentication."""

from __future__ import annotations

import ipaddress
import ssl
import time
from typing import Any

import anyio
from anyio.streams.tls import TLSAttribute

from kafkagroup._text import escaped
from kafkagroup._version import SOFTWARE_VERSION
from kafkagroup.admin.doctor.findings import Finding, Status, failed, not_checked, ok, warning
from kafkagroup.admin.doctor.releases import lacking, release
from kafkagroup.broker import Broker
from kafkagroup.errors import AuthenticationError, ConnectionLostError, KafkaGroupError, TlsError
from kafkagroup.transport import dialing
from kafkagroup.transport.names import Names, UnresolvedError
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse

__all__ = ["Address", "examine_address", "name_of"]

_API_VERSIONS = ApiVersionsRequest(
    client_software_name="kafkagroup-doctor", client_software_version=SOFTWARE_VERSION
)
"""Brokers refuse the request without a software name."""

_NO_TLS_LISTENER = (
    "is this the port of a TLS listener? Set security_protocol to the protocol of the listener"
)

_EXPIRES_SOON = 30 * 86400.0
"""Warn of a certificate that expires within this time, in seconds."""


def name_of(address: Address) -> str:
    """Return `host:port`, escaped for display."""
    host, port = address
    shown = escaped(host)
    return f"[{shown}]:{port}" if ":" in host else f"{shown}:{port}"


async def examine_address(address: Address, options: ClientOptions) -> list[Finding]:
    """Check an address step by step, as a client connects; stop at the first step that fails. API
    versions and authentication are one step."""
    subject = name_of(address)
    name = await _check_name(subject, address, options)
    if name.status is Status.FAILED:
        return [name]
    connection = await _check_connection(subject, address, options)
    if connection.status is Status.FAILED:
        return [name, connection]
    tls = await _check_tls(subject, address, options)
    if tls.status is Status.FAILED:
        return [name, connection, tls]
    return [name, connection, tls, *await _check_protocol(subject, address, options)]


async def _check_name(subject: str, address: Address, options: ClientOptions) -> Finding:
    host, _ = address
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return ok("name", subject, "is an address")
    try:
        deadline = anyio.current_time() + options.connect_timeout
        found = await Names().resolve(host, deadline)
    except UnresolvedError as error:
        advice = "check its spelling, and the DNS or /etc/hosts of this machine"
        return failed("name", subject, str(error), advice)
    addresses = ", ".join(dict.fromkeys(str(sockaddr[0]) for _, sockaddr in found.addresses))
    return ok("name", subject, f"is {addresses}")


async def _check_connection(subject: str, address: Address, options: ClientOptions) -> Finding:
    began = anyio.current_time()
    try:
        deadline = began + options.connect_timeout
        stream = await dialing.open_stream(*address, options, Names(), deadline)
    except ConnectionLostError as error:
        if isinstance(error.__cause__, TimeoutError):
            return failed(
                "connection",
                subject,
                f"no response within {options.connect_timeout:g} s",
                "a firewall or a security group may drop it: check the network path to the broker",
            )
        return failed(
            "connection",
            subject,
            str(error),
            "check that a broker runs there, that one of its listeners has this port, and that no"
            " firewall refuses it",
        )
    took = anyio.current_time() - began
    await stream.aclose()
    return ok("connection", subject, f"made in {took * 1000:.0f} ms")


# ---------------------------------------------------------------- TLS


async def _check_tls(subject: str, address: Address, options: ClientOptions) -> Finding:
    security = options.security
    if security is None or security.tls is None:
        return not_checked("TLS", subject, "the security protocol is without TLS")
    try:
        deadline = anyio.current_time() + options.connect_timeout
        raw = await dialing.open_stream(*address, options, Names(), deadline)
        with anyio.fail_after(deadline - anyio.current_time()):
            stream = await security.wrap(raw, address[0], subject, options.run_in_thread)
    except TimeoutError:
        return failed(
            "TLS",
            subject,
            f"no handshake within {options.connect_timeout:g} s",
            _NO_TLS_LISTENER,
        )
    except (OSError, KafkaGroupError) as error:
        return _failed_with_advice("TLS", subject, error, _NO_TLS_LISTENER)
    version = stream.extra(TLSAttribute.tls_version)
    certificate = stream.extra(TLSAttribute.peer_certificate)
    await anyio.aclose_forcefully(stream)
    return _certificate(subject, version, certificate, security.tls.context)


def _certificate(subject: str, version: str, certificate: Any, context: ssl.SSLContext) -> Finding:
    """Check the server's certificate. `version`: that of TLS. `certificate`: the dictionary that
    `ssl.SSLSocket.getpeercert` returns, which is empty if the context verifies no certificate."""
    if context.verify_mode != ssl.CERT_REQUIRED:
        return warning(
            "TLS",
            subject,
            f"{version}, and the certificate is not verified: any server can pose as the broker",
            "leave enable_ssl_certificate_verification=True, and give ssl_ca_location",
        )
    names = ", ".join(escaped(str(name)) for _, name in certificate.get("subjectAltName", ()))
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    left = ends - time.time()
    day = time.strftime("%Y-%m-%d", time.gmtime(ends))
    text = f"{version}; the certificate is for {names or 'no name'} and valid until {day}"
    if left < _EXPIRES_SOON:
        return warning("TLS", subject, text, f"renew it within {left / 86400:.1f} days")
    if not context.check_hostname:
        advice = "set ssl_endpoint_identification_algorithm='https'"
        return warning("TLS", subject, f"{text}; its names are not checked", advice)
    return ok("TLS", subject, text)


# ---------------------------------------------------------------- the protocol


async def _check_protocol(subject: str, address: Address, options: ClientOptions) -> list[Finding]:
    """Check API versions and authentication. A broker reports its versions before it authenticates,
    so their finding comes first; but if authentication fails, its finding is the only one."""
    mechanism = None if options.security is None else options.security.mechanism
    try:
        async with Broker.open(*address, options=options) as broker:
            # Connecting has requested the versions, too, but `Broker` does not return them.
            versions = await broker.request(_API_VERSIONS)
    except TlsError as error:
        # TLS 1.3: the broker verifies a client's certificate after the handshake.
        return [failed("TLS", subject, error)]
    except AuthenticationError as error:
        return [
            failed("SASL", subject, str(error).removeprefix(f"{subject}: "), _credentials(options))
        ]
    except KafkaGroupError as error:
        advice = "is that the port of a broker, and is security_protocol that of its listener?"
        return [_failed_with_advice("API versions", subject, error, advice)]
    sasl = (
        not_checked("SASL", subject, "the security protocol is without SASL")
        if mechanism is None
        else ok("SASL", subject, f"authenticated by {mechanism.name}{_user_text(options)}")
    )
    return [_versions(subject, versions), sasl]


def _failed_with_advice(check: str, subject: str, error: Exception, advice: str) -> Finding:
    """Return a failed finding with the advice in the error's message, or else with `advice`."""
    finding = failed(check, subject, str(error))
    return finding if finding.advice else failed(check, subject, finding.text, advice)


def _user_text(options: ClientOptions) -> str:
    name = options.security and options.security.sasl_username
    return f" as {escaped(name)}" if name else ""


def _credentials(options: ClientOptions) -> str:
    if options.security is None or options.security.mechanism is None:
        return (
            "set sasl_mechanism and the credentials for it, such as sasl_username and sasl_password"
        )
    return "check sasl_mechanism and the credentials, and that they are for this listener"


def _versions(subject: str, response: ApiVersionsResponse) -> Finding:
    if missing := lacking(response):
        return failed(
            "API versions",
            subject,
            f"{release(response)}, and no version in common of {', '.join(missing)}",
            "this library supports Kafka 2.4 and later",
        )
    return ok("API versions", subject, release(response))

"""Certificates for the tests, created on demand: stored ones would expire."""

from __future__ import annotations

import datetime
import functools
import ssl
from pathlib import Path

import attrs
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

HOST = "127.0.0.1"
"""The address of test brokers, for which their certificates are issued."""


@attrs.frozen
class Certificate:
    """One certificate, in PEM."""

    chain: str
    key: str = attrs.field(repr=False)
    """As PKCS #8, which is all that Kafka reads."""

    @property
    def pem(self) -> str:
        """Key and certificates in one text."""
        return self.key + self.chain

    def key_with(self, password: str) -> str:
        """Return the key, encrypted."""
        return _pkcs8(self.key.encode(), BestAvailableEncryption(password.encode()))

    def save(self, folder: Path) -> Path:
        """Write key and certificates to a file of the folder."""
        path = folder / "certificate.pem"
        path.write_text(self.pem, "ascii")
        return path


class Authority:
    """A certificate authority, whose own certificate is `pem`."""

    def __init__(self) -> None:
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)

    @property
    def pem(self) -> str:
        return self._ca.cert_pem.bytes().decode()

    def issue(self, *names: str, expired: bool = False) -> Certificate:
        """Return a certificate for these hosts, addresses or (with an @) clients; by default for
        `HOST`."""
        ended = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        issued = self._ca.issue_cert(
            *names or (HOST,),
            not_before=ended - datetime.timedelta(days=1) if expired else None,
            not_after=ended if expired else None,
            key_type=trustme.KeyType.ECDSA,
        )
        chain = "".join(pem.bytes().decode() for pem in issued.cert_chain_pems)
        return Certificate(chain, _pkcs8(issued.private_key_pem.bytes(), NoEncryption()))

    def server_context(
        self, certificate: Certificate, folder: Path, *, mutual: bool = False
    ) -> ssl.SSLContext:
        """Return a server's context, which can load its certificate only from a file. `mutual`: it
        requires client certificates of this authority."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.pem)
        context.load_cert_chain(certificate.save(folder))
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a client's context that trusts only this authority."""
        return ssl.create_default_context(cadata=self.pem)


def _pkcs8(key: bytes, encryption: KeySerializationEncryption) -> str:
    loaded = load_pem_private_key(key, password=None)
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


@functools.cache
def authority() -> Authority:
    """Return the authority that the tests' clients trust."""
    return Authority()

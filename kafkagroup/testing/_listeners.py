"""What a listener of a real Kafka asks of clients, and the broker settings that make it so.

Nothing here depends on Kafka's version, starts a process or touches a file: certificates and users
come as text and go into `server.properties`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from kafkagroup.errors import ConfigurationError

__all__ = ["SCRAM", "Listener"]

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER")


def _check_mechanisms(_: object, __: object, mechanisms: Sequence[str]) -> None:
    unknown = sorted(set(mechanisms) - set(_MECHANISMS))
    if unknown:
        raise ConfigurationError(f"no SASL mechanism {unknown}: there are {list(_MECHANISMS)}")


@attrs.frozen(kw_only=True)
class Listener:
    """One more address of every node: TLS with a `certificate`, SASL with `mechanisms`, or both."""

    certificate: str | None = attrs.field(default=None, repr=False)
    """PEM: a private key as PKCS #8, and the certificates from the node's own upwards. The key must
    not be encrypted."""
    client_ca: str | None = None
    """PEM of who signs the certificates of clients. Given, a client must show one."""
    mechanisms: Sequence[str] = attrs.field(default=(), validator=_check_mechanisms)
    """Of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. The last takes unsigned tokens."""
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """Broker settings of this listener, without `listener.name.<name>.`; they win."""
    advertised_ports: Sequence[int] = ()
    """What clients are told to connect to, from node 1 on: the ports of a proxy on loopback, which
    leads to those of the nodes. None given: the nodes' own."""

    @property
    def protocol(self) -> str:
        """Kafka's name for what is spoken here."""
        return ("SASL_" if self.mechanisms else "") + ("SSL" if self.certificate else "PLAINTEXT")

    def properties(self, users: Mapping[str, str]) -> dict[str, str]:
        """Its settings, without `listener.name.<name>.`; `users` maps names to passwords."""
        properties = {}
        if self.certificate:
            properties["ssl.keystore.type"] = "PEM"
            key, certificates = _split_pem(self.certificate)
            properties["ssl.keystore.key"] = key
            properties["ssl.keystore.certificate.chain"] = certificates
        if self.client_ca:
            properties["ssl.client.auth"] = "required"
            properties["ssl.truststore.type"] = "PEM"
            properties["ssl.truststore.certificates"] = self.client_ca
        if self.mechanisms:
            properties["sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
        for mechanism in self.mechanisms:
            options = {}
            if mechanism == "PLAIN":
                options = {f"user_{name}": password for name, password in users.items()}
            login = " ".join(
                [_LOGIN[mechanism], "required", *(f"{k}={_quote(v)}" for k, v in options.items())]
            )
            properties[f"{mechanism.lower()}.sasl.jaas.config"] = f"{login};"
        return properties | dict(self.settings)


_SECURITY = "org.apache.kafka.common.security"
_LOGIN: Mapping[str, str] = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM, f"{_SECURITY}.scram.ScramLoginModule"),
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
"""Mechanism -> the class that JAAS calls it by."""


def _split_pem(text: str) -> tuple[str, str]:
    """The private key, and the certificates."""
    blocks = _PEM.findall(text)
    keys = [block for block, kind in blocks if kind == "PRIVATE KEY"]
    certificates = [block for block, kind in blocks if kind == "CERTIFICATE"]
    if len(keys) != 1 or not certificates:
        raise ConfigurationError(
            "certificate: expected one private key (PKCS #8, not encrypted) and its certificates"
        )
    return keys[0], "\n".join(certificates)


_PEM = re.compile(r"(-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \2-----)", re.DOTALL)


def _quote(value: str) -> str:
    """A value of a JAAS option."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

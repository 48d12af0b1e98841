"""The client requirements of a real Kafka's listener, and the broker settings that enforce them.

Nothing here depends on Kafka's version, starts a process or touches a file: certificates and users
are passed as text and written to `server.properties`.
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
    """A further listener of every node: TLS with `certificate`, SASL with `mechanisms`, or both."""

    certificate: str | None = attrs.field(default=None, repr=False)
    """PEM: an unencrypted private key in PKCS #8, then the certificates from the node's own up."""
    client_ca: str | None = None
    """PEM of the CA that signs client certificates. If set, clients must present one."""
    mechanisms: Sequence[str] = attrs.field(default=(), validator=_check_mechanisms)
    """Any of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, which takes unsigned tokens."""
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """Broker settings of this listener, without `listener.name.<name>.`; they take precedence."""
    advertised_ports: Sequence[int] = ()
    """The ports that are advertised to clients, from node 1 on: those of a proxy on loopback that
    forwards to the nodes. If empty, the nodes advertise their own ports."""

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        return ("SASL_" if self.mechanisms else "") + ("SSL" if self.certificate else "PLAINTEXT")

    def properties(self, users: Mapping[str, str]) -> dict[str, str]:
        """The listener's settings, without `listener.name.<name>.`. `users`: name -> password."""
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
"""Mechanism -> the class of its JAAS login module."""


def _split_pem(text: str) -> tuple[str, str]:
    """Return the private key and the certificates."""
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
    """Quote the value of a JAAS option."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

"""An additional listener of `LocalKafka`: TLS, SASL, and the broker settings for them. No I/O.

`LocalKafka` writes the settings to `server.properties`, so certificates and passwords are passed as
text. Nothing here depends on Kafka's version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from kafkagroup.errors import ConfigurationError

__all__ = ["SCRAM_MECHANISMS", "Listener"]

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER")

_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES: Mapping[str, str] = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM_MECHANISMS, f"{_SECURITY}.scram.ScramLoginModule"),
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
"""Mechanism -> the class of its JAAS login module."""

_PEM = re.compile(r"(-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \2-----)", re.DOTALL)
"""A block of PEM, with two groups: the whole block, and its kind, such as "CERTIFICATE"."""


def _check_mechanisms(_: object, __: object, mechanisms: Sequence[str]) -> None:
    unknown = sorted(set(mechanisms) - set(_MECHANISMS))
    if unknown:
        raise ConfigurationError(
            f"SASL mechanisms {unknown} are unknown; use any of {', '.join(_MECHANISMS)}"
        )


@attrs.frozen(kw_only=True)
class Listener:
    """An additional listener of every node, beside those of `LocalKafka` itself: with TLS if
    `certificate` is given, with SASL if `mechanisms` are given. Raises: ConfigurationError."""

    certificate: str | None = attrs.field(default=None, repr=False)
    """PEM: a private key (PKCS #8, not encrypted) and the certificate chain, the node's certificate
    first."""
    client_ca: str | None = None
    """PEM of the CA that signs client certificates. If set, clients must have a certificate; needs
    `certificate`."""
    mechanisms: Sequence[str] = attrs.field(default=(), validator=_check_mechanisms)
    """Any of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, which takes unsigned tokens."""
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """Broker settings of this listener, without `listener.name.<name>.`; they take precedence over
    those that follow from the other fields."""
    advertised_ports: Sequence[int] = ()
    """The ports that are advertised to clients, from node 1 on: those of a proxy on loopback that
    forwards to the nodes. If empty, the nodes advertise their own ports."""

    def __attrs_post_init__(self) -> None:
        if self.client_ca is not None and self.certificate is None:
            raise ConfigurationError(
                "client_ca needs certificate: a listener without TLS cannot check client"
                " certificates"
            )

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        return ("SASL_" if self.mechanisms else "") + ("SSL" if self.certificate else "PLAINTEXT")

    def properties(self, users: Mapping[str, str]) -> dict[str, str]:
        """Return the listener's settings, without `listener.name.<name>.`. `users`: the users of
        PLAIN, name -> password; those of SCRAM are added when a node is formatted. Raises:
        ConfigurationError for an invalid `certificate`."""
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
                [
                    _LOGIN_MODULES[mechanism],
                    "required",
                    *(f"{k}={_quote(v)}" for k, v in options.items()),
                ]
            )
            properties[f"{mechanism.lower()}.sasl.jaas.config"] = f"{login};"
        return properties | dict(self.settings)


def _split_pem(text: str) -> tuple[str, str]:
    """Return the private key and the certificates. Raises: ConfigurationError."""
    blocks = _PEM.findall(text)
    keys = [block for block, kind in blocks if kind == "PRIVATE KEY"]
    certificates = [block for block, kind in blocks if kind == "CERTIFICATE"]
    if len(keys) != 1 or not certificates:
        raise ConfigurationError(
            "certificate: expected one private key (PKCS #8, not encrypted) and its certificates"
        )
    return keys[0], "\n".join(certificates)


def _quote(value: str) -> str:
    """Quote the value of a JAAS option."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

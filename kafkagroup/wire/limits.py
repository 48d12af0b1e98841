"""The largest responses that a connection accepts, in bytes."""

__all__ = [
    "MAX_AUTHENTICATION_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_HANDSHAKE_BYTES",
    "MAX_PLAIN_FRAME_BYTES",
]

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""Of any response: twice the largest fetch by default, as Java's brokers allow."""

MAX_PLAIN_FRAME_BYTES = 16 * 1024 * 1024
"""Of a response without records: the metadata of some 400,000 partitions."""

MAX_HANDSHAKE_BYTES = 1024 * 1024
"""Of the response to ApiVersions. Until it arrives, the peer may not be Kafka at all."""

MAX_AUTHENTICATION_BYTES = 64 * 1024
"""Of a response to an authentication: a Kerberos ticket is much smaller."""

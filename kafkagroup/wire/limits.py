"""The largest responses that a connection accepts, in bytes."""

__all__ = [
    "MAX_AUTHENTICATION_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_HANDSHAKE_BYTES",
    "MAX_PLAIN_FRAME_BYTES",
]

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""The default limit of any response: twice the default of `fetch_max_bytes`."""

MAX_PLAIN_FRAME_BYTES = 16 * 1024 * 1024
"""The limit of a response without records: enough for the metadata of some 400,000 partitions."""

MAX_HANDSHAKE_BYTES = 1024 * 1024
"""The limit of the response to ApiVersions. Until it arrives, the peer may not be Kafka at all."""

MAX_AUTHENTICATION_BYTES = 64 * 1024
"""The limit of a response during an authentication: a Kerberos ticket is much smaller."""

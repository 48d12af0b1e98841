"""The options of connections, from those of a client."""

from __future__ import annotations

from kafkagroup.options import CommonOptions
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.limits import MAX_FRAME_BYTES

__all__ = ["connection_options"]


def connection_options(
    options: CommonOptions, name: str, max_frame_bytes: int = MAX_FRAME_BYTES
) -> ClientOptions:
    """Return the connection options of a client with these options. `name`: how log lines name the
    client. `max_frame_bytes`: the limit of one response."""
    return ClientOptions(
        client_id=options.client_id,
        name=name,
        request_timeout=options.request_timeout,
        retry_backoff=options.retry_backoff,
        retry_backoff_max=options.retry_backoff_max,
        metadata_recovery_rebootstrap_trigger=options.metadata_recovery_rebootstrap_trigger,
        connections_max_idle=options.connections_max_idle,
        # Only some clients have this option.
        adopts_cluster_change=getattr(options, "on_cluster_change", "raise") == "adopt",
        max_frame_bytes=max_frame_bytes,
        security=options.security,
    )

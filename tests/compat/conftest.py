"""The compat classes run where the main API does: on the embedded broker and on real Kafka."""

from live.conftest import anyio_backend, bootstrap, fill, name, produce

__all__ = ["anyio_backend", "bootstrap", "fill", "name", "produce"]

"""The version of this package, in this place only: the build, `kafkagroup.__version__` and the
requests to brokers take it from here. A package in a zip has no metadata to read it from."""

__all__ = ["SOFTWARE_VERSION", "VERSION"]

VERSION = "0.1.0.dev0"

SOFTWARE_VERSION = VERSION.replace("+", "-")
"""For ApiVersions: with the `+` of a local version, brokers would refuse it, and so each connection
(KIP-511)."""

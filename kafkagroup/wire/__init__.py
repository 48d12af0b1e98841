"""The protocol as bytes: messages, frames, record batches, compression.

Encoders, decoders and the declarations of messages live here. Nothing here opens a socket, reads a
clock or knows a member's state. This package is private, except for the names that docs/api lists;
the others may change in any release.
"""

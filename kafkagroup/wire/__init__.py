"""The wire protocol: messages, frames, record batches, compression.

This package has the encoders, the decoders and the declarations of messages. No module of it opens
a socket, reads a clock or knows a member's state. It is private, except for the names that docs/api
lists; all others may change in any release.
"""

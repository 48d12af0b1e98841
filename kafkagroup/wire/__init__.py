"""The wire protocol: messages, frames, record batches, compression.

This package has the encoders, the decoders and the declarations of messages. No module of it opens
a socket, reads a clock or knows a member's state. The names in `__all__` are public; the modules
are private, and may change in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkagroup._public import late_names, names_in_all

if TYPE_CHECKING:
    from kafkagroup.wire.batch_writing import NewRecord, encode_batch
    from kafkagroup.wire.embedded_protocol import (
        Subscription,
        decode_assignment,
        decode_subscription,
        encode_assignment,
        encode_subscription,
    )
    from kafkagroup.wire.record_decoding import decode_records

__all__ = [
    "NewRecord",
    "Subscription",
    "decode_assignment",
    "decode_records",
    "decode_subscription",
    "encode_assignment",
    "encode_batch",
    "encode_subscription",
]

if not TYPE_CHECKING:  # with a `__getattr__`, type checkers would accept every name
    # Imported on first use: importing any module of this package imports this one first.
    __getattr__ = late_names(
        __name__,
        {
            "NewRecord": "kafkagroup.wire.batch_writing.NewRecord",
            "Subscription": "kafkagroup.wire.embedded_protocol.Subscription",
            "decode_assignment": "kafkagroup.wire.embedded_protocol.decode_assignment",
            "decode_records": "kafkagroup.wire.record_decoding.decode_records",
            "decode_subscription": "kafkagroup.wire.embedded_protocol.decode_subscription",
            "encode_assignment": "kafkagroup.wire.embedded_protocol.encode_assignment",
            "encode_batch": "kafkagroup.wire.batch_writing.encode_batch",
            "encode_subscription": "kafkagroup.wire.embedded_protocol.encode_subscription",
        },
    )
    __dir__ = names_in_all(__name__)

"""The check of records that an application asks to write.

Without it a wrong one fails while its batch is encoded, with an error that does not name it.
"""

from __future__ import annotations

from kafkagroup.errors import ConfigurationError
from kafkagroup.wire.batch_writing import NewRecord

__all__ = ["check_new_record"]


def check_new_record(record: object, index: int) -> None:
    """Raise ConfigurationError for what is not a record to write; it is the one at `index`."""
    if not isinstance(record, NewRecord):
        raise ConfigurationError(
            f"record {index} is of type {type(record).__name__}; expected a list of"
            " kafkagroup.NewRecord(key, value)"
        )
    # The errors do not show the data, which may be confidential.
    for name, data in (("key", record.key), ("value", record.value)):
        if not _is_bytes_or_none(data):
            raise ConfigurationError(
                f"the {name} of record {index} is of type {type(data).__name__}; expected bytes or"
                " None"
            )
    if not all(map(_is_header, record.headers)):
        raise ConfigurationError(
            f'the headers of record {index} are not valid; expected [("name", b"value"), ...]'
        )


def _is_header(header: object) -> bool:
    if not isinstance(header, tuple | list) or len(header) != 2:
        return False
    name, data = header
    return isinstance(name, str) and _is_bytes_or_none(data)


def _is_bytes_or_none(data: object) -> bool:
    if data is None or isinstance(data, bytes):
        return True
    try:
        memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True

"""Memory for received bytes and for columns, which is filled after it is allocated.

This file is compiled, with the types in `buffers.pxd`, where a compiler is available: `bytearray`
would write zeros to memory that is overwritten at once.
"""

from __future__ import annotations

try:
    import cython
except ImportError:  # Cython is needed to compile, not to run: users do not have it
    from kafkagroup import _uncompiled as cython

__all__ = ["copy", "grown"]

Buffer = bytes | bytearray | memoryview


def grown(old: bytearray, used: int, size: int) -> bytearray:
    """Return `size` bytes that begin with the first `used` bytes of `old`. The other bytes are not
    initialized if this file is compiled, else they are zeros."""
    if cython.compiled:  # the C functions here and in `copy` are imported in `buffers.pxd`
        made: bytearray = PyByteArray_FromStringAndSize(cython.NULL, size)  # type: ignore[name-defined]  # noqa: F821
    else:
        made = bytearray(size)
    memoryview(made)[:used] = memoryview(old)[:used]
    return made


def copy(target: memoryview, at: int, buf: Buffer, start: int, end: int) -> None:
    """Copy `buf[start:end]` to `target` at `at`; the caller has checked the bounds."""
    if cython.compiled:
        if start < end:  # without bytes, there may be no `target[at]` and `buf[start]`
            to = cython.cast(cython.p_char, cython.address(target[at]))
            source = cython.cast(cython.p_char, cython.address(buf[start]))
            memcpy(to, source, end - start)  # type: ignore[name-defined]  # noqa: F821
    else:
        target[at : at + end - start] = buf[start:end]

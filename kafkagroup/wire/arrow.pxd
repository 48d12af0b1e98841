# The types of `arrow` where it is compiled.

cimport cython
from kafkagroup.wire.buffers cimport copy
from kafkagroup.wire.records cimport RecordBatch, RecordReader

cdef int _NULL
cdef int _NOT_ASCII
cdef long long _ALL
cdef int _ROW_BYTES
cdef long long _MAX_COLUMN_BYTES


@cython.final
cdef class ColumnBuilder:
    cdef Py_ssize_t _count
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _size
    cdef bytearray _offsets
    cdef bytearray _timestamps
    cdef long long[::1] _offset_view
    cdef long long[::1] _timestamp_view
    cdef _BinaryColumn _keys
    cdef _BinaryColumn _values
    cdef _BinaryColumn _header_keys
    cdef _BinaryColumn _header_values
    cdef Py_ssize_t _header_count
    cdef Py_ssize_t _header_room
    cdef bytearray _header_ends
    cdef int[::1] _header_view
    cdef bint _is_ascii
    cdef list _batches

    @cython.locals(batch=RecordBatch, size=Py_ssize_t, before=Py_ssize_t)
    cpdef bint append_batch(
        self, RecordReader records, long long end_offset=*, long long max_bytes=*
    ) except -1
    @cython.locals(
        size=Py_ssize_t,
        left="long long",
        count=Py_ssize_t,
        start=Py_ssize_t,
        before=Py_ssize_t,
        n=Py_ssize_t,
    )
    cpdef Py_ssize_t append(
        self, RecordReader records, long long end_offset=*, long long most=*
    ) except -1
    @cython.locals(
        buf="const unsigned char[::1]",
        count=Py_ssize_t,
        n=Py_ssize_t,
        length="unsigned long long",
        start=Py_ssize_t,
        end=Py_ssize_t,
        at=Py_ssize_t,
    )
    cdef void _put_headers(self, RecordReader records) except *
    @cython.locals(needed=Py_ssize_t)
    cdef void _reserve(self, Py_ssize_t count, Py_ssize_t size) except *


@cython.final
cdef class _BinaryColumn:
    cdef Py_ssize_t _size
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _nulls
    cdef bytearray _bytes
    cdef bytearray _ends
    cdef bytearray _bits
    cdef unsigned char[::1] _byte_view
    cdef int[::1] _end_view
    cdef unsigned char[::1] _bit_view

    cpdef void reserve(self, Py_ssize_t size) except *
    cdef void extend(self, Py_ssize_t count, Py_ssize_t capacity) except *
    @cython.locals(size=Py_ssize_t)
    cdef bint put(
        self, Py_ssize_t n, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end
    ) except -1


cdef object _buffer(bytearray data, Py_ssize_t size)
@cython.locals(n=Py_ssize_t, nulls=Py_ssize_t, bits="unsigned char[::1]")
cdef object _not_null(long long[::1] values, Py_ssize_t count)

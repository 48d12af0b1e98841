# The types of `arrow_writing` where it is compiled. Indexing typed memoryviews stays checked.

cimport cython
from kafkagroup.wire.batch_writing cimport varint_size
from kafkagroup.wire.buffers cimport copy
from kafkagroup.wire.murmur2 cimport partition_in

cdef int _NULL
cdef Py_ssize_t _ANY
cdef long long _UNSET
cdef int _FIRST_CAPACITY


@cython.final
cdef class RowColumns:
    cdef readonly Py_ssize_t count
    cdef readonly object least_timestamp
    cdef readonly list topic_names
    cdef _Bytes _keys
    cdef _Bytes _values
    cdef _Bytes _header_names
    cdef _Bytes _header_values
    cdef const long long[::1] _header_ends
    cdef const long long[::1] _partitions
    cdef const long long[::1] _timestamps
    cdef const long long[::1] _topics


@cython.final
cdef class _Bytes:
    cdef const unsigned char[::1] _bits
    cdef const unsigned char[::1] _data
    cdef const long long[::1] _ends
    cdef Py_ssize_t _first
    cdef bint _has_nulls

    @cython.locals(bit=Py_ssize_t)
    cdef Py_ssize_t start(self, Py_ssize_t n) except? -2
    @cython.locals(start=Py_ssize_t, size=Py_ssize_t)
    cdef Py_ssize_t encoded_size(self, Py_ssize_t n) except -1
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t put(self, unsigned char[::1] target, Py_ssize_t at, Py_ssize_t n) except -1


@cython.final
cdef class BatchBuilder:
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t _size
    cdef Py_ssize_t _max_size
    cdef Py_ssize_t _max_record
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _least_capacity
    cdef long long _base_timestamp
    cdef long long _max_timestamp
    cdef bytearray _buffer
    cdef unsigned char[::1] _view

    cdef void _clear(self) noexcept
    @cython.locals(
        timestamp="long long",
        base="long long",
        first=Py_ssize_t,
        end=Py_ssize_t,
        header=Py_ssize_t,
        size=Py_ssize_t,
        whole=Py_ssize_t,
        at=Py_ssize_t,
        view="unsigned char[::1]",
    )
    cpdef bint append(self, RowColumns rows, Py_ssize_t n) except -1
    @cython.locals(doubled=Py_ssize_t)
    cdef void _reserve(self, Py_ssize_t size) except *


@cython.final
cdef class _Topic:
    cdef object name
    cdef list builders
    cdef BatchBuilder of_any


@cython.final
cdef class RowBatcher:
    cdef object _default_topic
    cdef object _count_partitions
    cdef object _send
    cdef long long _max_bytes
    cdef long long _max_record
    cdef dict _topics

    @cython.locals(n=Py_ssize_t, at="long long", topic=_Topic, topics=list)
    cpdef void add(self, RowColumns rows) except *
    @cython.locals(partition=Py_ssize_t, builder=BatchBuilder)
    cdef void _add_row(self, _Topic topic, RowColumns rows, Py_ssize_t n) except *
    @cython.locals(partition="long long", start=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t _choose_partition(self, _Topic topic, RowColumns rows, Py_ssize_t n) except -2
    cdef _Topic _topic(self, name)
    cdef BatchBuilder _new_builder(self)
    cdef void _update_count(self, _Topic topic) except *
    cdef void _expect_partition(self, _Topic topic, long long partition) except *
    @cython.locals(topic=_Topic, builder=BatchBuilder, size=Py_ssize_t)
    cdef Py_ssize_t _pending_bytes(self) except -1
    @cython.locals(topic=_Topic, builder=BatchBuilder)
    cpdef void flush(self) except *


@cython.locals(left="unsigned long long")
cdef Py_ssize_t _put(unsigned char[::1] target, Py_ssize_t at, long long value) except -1

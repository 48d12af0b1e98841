# The types of `records` where it is compiled. Indexing typed memoryviews stays checked: a damaged
# length raises IndexError, as it does where nothing is compiled.

cimport cython
from kafkagroup._record cimport Record

cdef long long _MAX_INT64
cdef long long _MIN_INT64
cdef int _NULL
cdef object _NO_HEADERS
cdef object _NO_CODEC
cdef object _CREATE_TIME
cdef object _LOG_APPEND_TIME


@cython.final
cdef class RecordBatch:
    cdef readonly object raw
    cdef readonly object topic
    cdef readonly int partition
    cdef readonly int leader_epoch
    cdef readonly long long base_offset
    cdef readonly long long last_offset
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly long long producer_id
    cdef readonly int producer_epoch
    cdef readonly int base_sequence
    cdef readonly int count
    cdef readonly bint is_hidden
    cdef readonly bint is_control
    cdef readonly object codec
    cdef readonly object timestamp_type
    cdef int _attributes
    cdef long long _max_batch_bytes
    cdef object _message_set

    cdef void _describe(self, object message_set, long long max_batch_bytes) except *
    cdef object _inflate(self, object most=*)
    cdef object _known_offset(self)
    cdef void _check_count(self, Py_ssize_t available) except *
    cdef object _corrupt(self, str reason)


@cython.final
cdef class RecordReader:
    cdef RecordBatch _batch
    cdef object _data
    cdef object _damage
    cdef list _ahead
    cdef Py_ssize_t _ahead_count
    cdef tuple _ahead_from
    cdef object _topic
    cdef object _timestamp_type
    cdef const unsigned char[::1] _buf
    cdef bint _views
    cdef bint _create_time
    cdef bint _gapless
    cdef int _partition
    cdef int _leader_epoch
    cdef long long _start_offset
    cdef long long _base_offset
    cdef long long _base_timestamp
    cdef long long _max_delta
    cdef long long _previous
    cdef long long _offset
    cdef long long _timestamp
    cdef long long _left
    cdef long long _allowed
    cdef Py_ssize_t _pos
    cdef Py_ssize_t _end
    cdef Py_ssize_t _key_at
    cdef Py_ssize_t _key_end
    cdef Py_ssize_t _value_at
    cdef Py_ssize_t _value_end
    cdef Py_ssize_t _headers_at

    cpdef Record next(self)
    @cython.locals(
        left="long long",
        previous="long long",
        pos=Py_ssize_t,
        offset="long long",
        count=Py_ssize_t,
    )
    cpdef list take(self, Py_ssize_t most)
    cdef list _create_ahead(self)
    cdef void _put_back(self) except *
    @cython.locals(
        skipped=Py_ssize_t,
        left="long long",
        previous="long long",
        pos=Py_ssize_t,
        offset="long long",
    )
    cpdef Py_ssize_t skip(self, Py_ssize_t most) except -1
    cpdef bint prepare_at_once(self) except -1
    cpdef bint prepare(self) except -1
    cdef bint _inflate_small(self) except -1
    cdef void _inflate(self) except *
    cdef void _set_data(self, found) except *
    @cython.locals(
        left="long long",
        previous="long long",
        pos=Py_ssize_t,
        offset="long long",
    )
    cdef bint _skip_to_start(self, Py_ssize_t most) except -1
    cpdef Py_ssize_t unread_size(self) except -1
    cpdef RecordReader fork(self)
    cpdef void stop_after(self, Py_ssize_t most) noexcept
    cdef void _open(self) except *
    cdef bint _step(self) except -1
    cdef bint _check_end(self) except -1
    cdef void _stop(self) noexcept
    @cython.locals(
        n="unsigned long long",
        byte="unsigned long long",
        delta="long long",
        previous="long long",
        timestamp="long long",
        base_timestamp="long long",
        pos=Py_ssize_t,
        end=Py_ssize_t,
        record_end=Py_ssize_t,
        key_at=Py_ssize_t,
        key_end=Py_ssize_t,
        value_at=Py_ssize_t,
        value_end=Py_ssize_t,
        headers_at=Py_ssize_t,
    )
    cdef bint _parse(
        self, const unsigned char[::1] buf, Py_ssize_t count, list made
    ) except -1
    @cython.locals(
        n="unsigned long long", count="long long", start=Py_ssize_t, pos=Py_ssize_t
    )
    cdef bint _check_headers(self, const unsigned char[::1] buf, Py_ssize_t record_end) except -1
    @cython.locals(
        value="unsigned long long",
        byte="unsigned long long",
        shift=int,
        pos=Py_ssize_t,
        end=Py_ssize_t,
    )
    cdef unsigned long long _read_varint(self, const unsigned char[::1] buf, int bits) except? 0
    @cython.locals(
        record=Record, key_at=Py_ssize_t, value_at=Py_ssize_t, headers_at=Py_ssize_t
    )
    cdef Record _create(self)
    cdef object _part(self, Py_ssize_t start, Py_ssize_t end)


@cython.final
cdef class _RawHeaders:
    cdef bytes _data


cdef bytes _cut(const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end)

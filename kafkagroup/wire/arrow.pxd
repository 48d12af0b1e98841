# The types of `arrow` where it is compiled.

cimport cython
from kafkagroup.wire.records cimport RecordReader
from libc.string cimport memcpy

cdef int _NULL
cdef long long _MAX_COLUMN_BYTES


cdef class _Filling:
    cdef Py_ssize_t _count
    cdef Py_ssize_t _at
    cdef bytearray _offsets
    cdef bytearray _timestamps
    cdef bytearray _keys
    cdef bytearray _values
    cdef list _runs
    cdef list _headers

    @cython.locals(
        n=Py_ssize_t,
        start=Py_ssize_t,
        offsets="long long[::1]",
        timestamps="long long[::1]",
        keys="long long[::1]",
        values="long long[::1]",
    )
    cdef object fill(self, RecordReader reader, Py_ssize_t count)


@cython.locals(
    n=Py_ssize_t,
    at=Py_ssize_t,
    start=Py_ssize_t,
    end=Py_ssize_t,
    more=Py_ssize_t,
    total="long long",
    reader=RecordReader,
    marks="int[::1]",
    target="unsigned char[::1]",
)
cdef tuple _gather(list runs, long long[::1] places, Py_ssize_t count)
@cython.locals(n=Py_ssize_t, nulls=Py_ssize_t, bits="unsigned char[::1]")
cdef object _not_null(long long[::1] values, Py_ssize_t step, Py_ssize_t count)
cdef bint _copy(unsigned char[::1] target, Py_ssize_t at, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end) except -1

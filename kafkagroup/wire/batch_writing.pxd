# The types of `batch_writing` where it is compiled.

cimport cython

cdef bytes _NO_HEADERS

@cython.locals(encoded_headers=bytes, size=Py_ssize_t)
cpdef put_record(
    bytearray out,
    int delta,
    long long timestamp_delta,
    object key,
    object value,
    object headers,
)
cdef bytes _encode_headers(object headers)
@cython.locals(left="unsigned long long", size=Py_ssize_t)
cpdef Py_ssize_t varint_size(long long value) noexcept
@cython.locals(left="unsigned long long")
cdef void _put(bytearray out, long long value) except *
cdef void _put_bytes(bytearray out, object data) except *

# The types of `batch_writing` where it is compiled.

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

cdef bytes _NO_HEADERS


cdef inline int copy_into(bytearray out, Py_ssize_t at, bytes data) except -1:
    """Copy all of `data` into `out`, from `at` on."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if at < 0 or size > PyByteArray_GET_SIZE(out) - at:
        raise IndexError("no room for the bytes")
    memcpy(PyByteArray_AS_STRING(out) + at, PyBytes_AS_STRING(data), size)
    return 0


@cython.locals(encoded_headers=bytes, size=Py_ssize_t, at=Py_ssize_t)
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
cdef Py_ssize_t _nullable_size(object data) except -1
@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t _extend(bytearray out, Py_ssize_t size) except -1
@cython.locals(left="unsigned long long")
cdef Py_ssize_t _put(bytearray out, Py_ssize_t at, long long value) except -1
cdef Py_ssize_t _put_nullable(bytearray out, Py_ssize_t at, object data) except -1
@cython.locals(end=Py_ssize_t)
cdef Py_ssize_t _put_bytes(bytearray out, Py_ssize_t at, object data) except -1

# The types of `buffers` where it is compiled.

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.string cimport memcpy

cpdef bytearray grown(bytearray old, Py_ssize_t used, Py_ssize_t size)
cpdef bint copy(
    unsigned char[::1] target, Py_ssize_t at, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end
) except -1

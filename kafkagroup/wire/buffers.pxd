# The types of `buffers` where it is compiled.

from cpython.bytearray cimport PyByteArray_FromStringAndSize

cpdef bytearray grown(bytearray old, Py_ssize_t used, Py_ssize_t size)

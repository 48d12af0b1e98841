# The types of `batch_writing` where it is compiled.

cimport cython

@cython.locals(left="unsigned long long")
cdef void _put(bytearray out, long long value) except *
cdef void _put_bytes(bytearray out, object data) except *

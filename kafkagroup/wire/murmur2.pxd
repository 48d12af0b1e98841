# The types of `murmur2` where it is compiled.

cimport cython

cdef unsigned int _SEED
cdef unsigned int _FACTOR
cdef unsigned int _MASK

cpdef int partition_in(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, int partitions
) except -1
@cython.locals(size=Py_ssize_t, at=Py_ssize_t, shift=int, mixed="unsigned int", part="unsigned int")
cdef unsigned int _hash(const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end) except? 0

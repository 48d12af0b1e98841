# The types of `acknowledgement` where it is compiled.

cimport cython
from kafkagroup.consume.progress cimport Progress


@cython.final
cdef class SequentialPolling:
    cdef public bint is_held
    cdef Progress _first
    cdef tuple _others

    cpdef begin(self, Progress owned)
    cpdef complete(self)

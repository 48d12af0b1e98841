# The types of `reader` where it is compiled.

cimport cython
from kafkagroup.consume.delivery cimport Delivery
from kafkagroup.consume.lease cimport Lease


@cython.final
cdef class Reader:
    cdef readonly object task
    cdef object _session
    cdef object _rejoin
    cdef object _polls
    cdef object _errors
    cdef Lease _lease
    cdef Delivery _delivery
    cdef object _preparation
    cdef object _lease_now
    cdef bint _reading
    cdef double _checkpoint_at
    cdef object _thread_id
    cdef object _is_running

    @cython.locals(now=double)
    cpdef ready(self)
    cpdef ready_here(self)


@cython.final
cdef class Records:
    cdef Reader _reader
    cdef object _wait

# The types of `reader` where it is compiled.

cimport cython
from kafkagroup.consume.delivery cimport Delivery
from kafkagroup.consume.lease cimport Lease


cdef class Records


@cython.final
cdef class Reader:
    cdef object _session
    cdef object _rejoin
    cdef object _polls
    cdef object _errors
    cdef Lease _lease
    cdef object _processing
    cdef object _current_task
    cdef object _task
    cdef Records _iterator
    cdef Delivery _delivery
    cdef object _preparation
    cdef object _lease_now
    cdef bint _reading
    cdef double _checkpoint_at
    cdef object _thread_id

    @cython.locals(now=double)
    cpdef ready(self)
    cpdef ready_here(self)
    cpdef ready_for(self, Records iterator)


@cython.final
cdef class Records:
    cdef Reader _reader
    cdef object _wait

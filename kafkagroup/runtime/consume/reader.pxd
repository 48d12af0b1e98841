# The types of `reader` where it is compiled.

cimport cython
from kafkagroup.consume.acknowledgement cimport SequentialPolling
from kafkagroup.consume.delivery cimport Delivery
from kafkagroup.consume.delivery_permit cimport DeliveryPermit


cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil


cdef extern from *:
    """
    #include <time.h>
    #ifdef _WIN32
    /* Never called: the lease clock is the loop's there. */
    static CYTHON_INLINE double system_time(int clock_id) { (void)clock_id; return 0.0; }
    #else
    static CYTHON_INLINE double system_time(int clock_id) {
        struct timespec now;
        clock_gettime((clockid_t)clock_id, &now);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    #endif
    """
    double system_time(int clock_id) noexcept nogil


cdef class Records


@cython.final
cdef class Reader:
    cdef object _session
    cdef object _rejoin
    cdef object _polls
    cdef object _errors
    cdef DeliveryPermit _permit
    cdef object _processing
    cdef object _current_task
    cdef object _task
    cdef Records iterator
    cdef Delivery _delivery
    cdef SequentialPolling _acknowledgement
    cdef object _preparation
    cdef object _lease_now
    cdef int _system_clock_id
    cdef bint _is_reading
    cdef double _checkpoint_at
    cdef unsigned long _thread_id

    cdef double _now(self) except? -1.0
    @cython.locals(now=double)
    cpdef ready(self)
    @cython.locals(thread_id="unsigned long")
    cpdef ready_here(self)


@cython.final
cdef class Records:
    cdef Reader _reader
    cdef object _wait

# The types of `batch_end` where it is compiled.

cimport cython


cdef class BatchEnd:
    cdef public object loop
    cdef public dict waiting


@cython.freelist(128)
cdef class Waiter:
    cdef public bint _asyncio_future_blocking
    cdef BatchEnd _end
    cdef object _callback
    cdef object _context
    cdef tuple _others
    cdef object _cancelled

    cpdef wake(self)
    cpdef bint done(self)

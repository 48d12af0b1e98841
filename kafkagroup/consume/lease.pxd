# The types of `lease` where it is compiled.

cimport cython


@cython.final
cdef class Lease:
    cdef public double until
    cdef public double last_poll
    cpdef void end(self) noexcept

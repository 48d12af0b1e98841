# The types of `delivery_permit` where it is compiled.

cimport cython


@cython.final
cdef class DeliveryPermit:
    cdef public double expires_at
    cdef public double ahead
    cdef public double last_poll_at
    cpdef void grant(self, double expires_at, double ahead) noexcept
    cpdef void note_poll(self, double now) noexcept
    cpdef void end(self) noexcept

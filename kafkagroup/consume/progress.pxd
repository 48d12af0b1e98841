# The types of `progress` where it is compiled.


cdef class Progress:
    cdef public long long position
    cdef public int leader_epoch
    cdef public long long processed
    cdef public int processed_epoch
    cdef public long long oldest
    cdef long long _begun
    cdef object _later

    # For each record call `Progress.begin(owned)`, not `owned.begin()`: that would look each time
    # whether the Python subclass overrides it.
    cpdef long long begin(self) except -1
    cpdef complete(self, long long delivery)
    cpdef void advance(self, long long position, int leader_epoch) noexcept

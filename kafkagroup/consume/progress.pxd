# The types of `progress` where it is compiled.


cdef class Progress:
    cdef public long long position
    cdef public long long processed
    cdef public int leader_epoch

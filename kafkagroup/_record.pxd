# The fields of a record where `_record` is compiled.

cimport cython


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        const char *tp_name


@cython.final
cdef class Record:
    cdef object _topic
    cdef object _timestamp_type
    cdef object _key
    cdef object _value
    cdef object _headers
    cdef long long _offset
    cdef long long _timestamp
    cdef int _partition
    cdef int _leader_epoch

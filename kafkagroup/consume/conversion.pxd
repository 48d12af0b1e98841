# The types of `conversion` where it is compiled.

cimport cython
from kafkagroup._record cimport Record


@cython.final
cdef class Conversion:
    cdef public bint suspends
    cdef public Py_ssize_t skipped_count
    cdef object _key_deserializer
    cdef object _value_deserializer
    cdef object _on_error
    cdef bint _handler_suspends
    cdef object _key_type
    cdef object _value_type

    cpdef now(self, Record record)
    cdef Record _set_converted(self, Record record, object key, object value)

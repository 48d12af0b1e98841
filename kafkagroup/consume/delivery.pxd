# The types of `delivery` where it is compiled.

cimport cython
from kafkagroup.consume.conversion cimport Conversion
from kafkagroup.consume.progress cimport Progress
from kafkagroup._record cimport Record
from kafkagroup.wire.records cimport RecordReader


@cython.final
cdef class Delivery:
    cdef readonly dict owned
    cdef readonly Conversion conversion
    cdef object _took
    cdef object _came_to_rest
    cdef object _turn
    cdef Progress _current
    cdef object _batch
    cdef RecordReader _records
    cdef Record _stuck
    cdef object _conversion_error
    cdef public object unconverted
    cdef object _ahead
    cdef object _refused
    cdef tuple _kept
    cdef public object heavy
    cdef tuple _in_flight
    cdef bint _lazy
    cdef bint _views

    @cython.locals(owned=Progress)
    cpdef count_processed(self)
    @cython.locals(owned=Progress, record=Record)
    cpdef next_record(self)
    @cython.locals(record=Record)
    cdef Record _read(self, Progress owned)
    @cython.locals(raw=Record)
    cdef Record _read_converted(self, Progress owned)
    cdef Record _next_raw(self)
    cdef Progress _open_batch(self)
    @cython.locals(records=RecordReader, unread=RecordReader)
    cdef _skip(self, Progress owned, Py_ssize_t most)

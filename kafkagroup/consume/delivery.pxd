# The types of `delivery` where it is compiled.

cimport cython
from kafkagroup.consume.acknowledgement cimport SequentialPolling
from kafkagroup.consume.conversion cimport Conversion
from kafkagroup.consume.progress cimport Progress
from kafkagroup._record cimport Record
from kafkagroup.wire.records cimport RecordReader


@cython.final
cdef class Delivery:
    cdef readonly dict owned
    cdef readonly SequentialPolling acknowledgement
    cdef readonly Conversion conversion
    cdef public object on_room
    cdef public object on_awaiting_seek
    cdef object _round_robin
    cdef Progress _current
    cdef object _batch
    cdef RecordReader _reader
    cdef Record _converting
    cdef object _conversion_error
    cdef public object unconverted
    cdef object _converted
    cdef object _error_after_converted
    cdef tuple _deferred_error
    cdef public object unprepared
    cdef bint _lazy
    cdef bint _views

    @cython.locals(owned=Progress, record=Record)
    cpdef next_record(self)
    @cython.locals(record=Record)
    cdef Record _read(self, Progress owned)
    @cython.locals(raw=Record)
    cdef Record _read_converted(self, Progress owned)
    cdef Record _next_raw(self)
    cdef Progress _open_batch(self)
    cdef _read_many_raw(self, Progress owned, Py_ssize_t max_records)
    @cython.locals(reader=RecordReader, undecoded=RecordReader)
    cdef _read_undecoded(self, Progress owned, Py_ssize_t max_records)

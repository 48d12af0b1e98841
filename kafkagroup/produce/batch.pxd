# The types of `batch` where it is compiled.


cdef class ProduceBatch:
    cdef public object tp
    cdef public double created_at
    cdef public double deadline
    cdef public long long base_timestamp
    cdef public long long max_timestamp
    cdef public long long last_timestamp
    cdef public bytearray records
    cdef public int count
    cdef public Py_ssize_t size
    cdef public bytearray data
    cdef public long long producer_id
    cdef public int producer_epoch
    cdef public int base_sequence
    cdef public int attempts
    cdef public bint is_maybe_written
    cdef public bint has_ended
    cdef public long long base_offset
    cdef public long long append_time
    cdef public object error
    cdef public bint is_failure_noted
    cdef public int read_count
    cdef public object moved
    cdef public object end_event

    cpdef append(self, object key, object value, long long timestamp, object headers, Py_ssize_t size)


cdef class UnplacedRecords(ProduceBatch):
    cdef public list waiting

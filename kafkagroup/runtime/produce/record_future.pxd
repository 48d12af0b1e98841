# The types of `record_future` where it is compiled.

from kafkagroup.produce.batch cimport ProduceBatch


cdef class RecordFuture:
    cdef ProduceBatch _batch
    cdef int _index
    cdef long long _timestamp
    cdef int _reader_count

    cdef _follow(self)

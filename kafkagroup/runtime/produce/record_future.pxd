# The types of `record_future` where it is compiled.

cimport cython
from kafkagroup.produce.batch cimport ProduceBatch
from kafkagroup.runtime.produce.batch_end cimport BatchEnd, Waiter


@cython.freelist(128)
cdef class RecordFuture:
    cdef ProduceBatch _batch
    cdef int _index
    cdef long long _timestamp
    cdef object _loop
    cdef int _reader_count

    cdef _follow(self)


cdef _end_of(ProduceBatch batch, object loop)

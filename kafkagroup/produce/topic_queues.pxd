# The types of `topic_queues` where it is compiled.

cimport cython
from kafkagroup.produce.batch cimport ProduceBatch, UnplacedRecords


cdef class TopicQueues:
    cdef readonly object name
    cdef public list queues
    cdef public Py_ssize_t count
    cdef public object available
    cdef public UnplacedRecords unplaced
    cdef public int awaiting_count
    cdef public double used_at
    cdef public double looked_up_at
    cdef object _topic_id
    cdef object _create
    cdef object _random
    cdef object _partitioner
    cdef object _clock
    cdef int _sticky
    cdef Py_ssize_t _left
    cdef list _weights
    cdef Py_ssize_t _draws_left
    cdef double _weights_end_at

    cpdef choose(self, object key, Py_ssize_t size)
    cpdef queue(self, object number, str source=*)
    @cython.locals(drawn=Py_ssize_t)
    cpdef draw(self)
    @cython.locals(most=Py_ssize_t)
    cdef _weigh(self, object numbers)


@cython.locals(open_=ProduceBatch, batch=ProduceBatch, size=Py_ssize_t)
cdef Py_ssize_t _unacknowledged(object queue) except -1

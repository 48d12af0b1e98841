# The types of `accumulator` where it is compiled.

cimport cython
from kafkagroup.produce.batch cimport ProduceBatch, UnplacedRecords
from kafkagroup.produce.topic_queues cimport TopicQueues


cdef int _RECORD_OVERHEAD


cdef class Accumulator:
    cdef public Py_ssize_t used
    cdef public Py_ssize_t limit
    cdef public Py_ssize_t max_record
    cdef public dict topics
    cdef public object on_unplaced
    cdef public object on_open
    cdef public object on_begin
    cdef public object on_full
    cdef public object clock
    cdef Py_ssize_t _needed
    cdef Py_ssize_t _batch_limit
    cdef double _delivery_timeout
    cdef int _max_in_flight
    cdef object _identities
    cdef object _partitioner
    cdef object _wall_clock_ns
    cdef object _random

    @cython.locals(size=Py_ssize_t, ms="long long", ns="long long", batch=ProduceBatch, queues=TopicQueues)
    cpdef ProduceBatch add(
        self,
        object topic,
        object partition,
        object key,
        object value,
        object headers,
        object timestamp,
    )
    @cython.locals(batch=ProduceBatch)
    cdef ProduceBatch _append(
        self,
        object queue,
        object key,
        object value,
        object headers,
        long long timestamp,
        Py_ssize_t size,
        double created_at,
    )
    @cython.locals(unplaced=UnplacedRecords)
    cdef ProduceBatch _wait_for_partitions(
        self,
        TopicQueues queues,
        object partition,
        object key,
        object value,
        object headers,
        long long timestamp,
        Py_ssize_t size,
    )

# C types for record_accumulator.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.client.producer cimport producer_batch, topic_queues
from kcli.format cimport memory_records_builder

cdef Py_ssize_t UNKNOWN_PARTITION

@cython.final
cdef class RecordAccumulator:
    cdef public object config, pool
    cdef public bint is_closed, should_wake_sender
    cdef public object next_expiry_ms
    cdef public dict incomplete
    cdef public list broken
    cdef public object compression_ratios
    cdef object _rng, _sequencer, _backoff
    cdef dict _topics, _drain_indexes, _node_times
    cdef set _muted, _small_topics
    cdef Py_ssize_t _flushes, _batch_size, _max_batch_size, _max_request_size

    @cython.locals(
        queues_of_topic=topic_queues.TopicQueues, queue=topic_queues.PartitionQueue, batch=producer_batch.ProducerBatch, is_sticky=cython.bint,
        is_full=cython.bint, size=Py_ssize_t,
    )
    cpdef producer_batch.ProducerBatch append(
        self, str topic, Py_ssize_t partition, long long timestamp, bytes key, bytes value, tuple headers, callback,
        long long now_ms, cluster)

    @cython.locals(queue=topic_queues.PartitionQueue)
    cdef _topic_ready(self, topic_queues.TopicQueues queues_of_topic, cluster, long long now_ms, set ready_nodes, set unknown_leader_topics)

    @cython.locals(batch=producer_batch.ProducerBatch, is_wanted=cython.bint)
    cdef Py_ssize_t _delay_ms(self, topic_queues.PartitionQueue queue, long long now_ms) except? -9

    @cython.locals(size=Py_ssize_t)
    cdef producer_batch.ProducerBatch _append_to_new_batch(
        self, topic_queues.PartitionQueue queue, long long timestamp, bytes key, bytes value, tuple headers, callback, long long now_ms)

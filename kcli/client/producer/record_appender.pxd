# C types for record_appender.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.client.producer cimport partitioner, producer_batch, record_accumulator

cdef Py_ssize_t UNKNOWN_PARTITION

@cython.final
cdef class RecordAppender:
    cdef public record_accumulator.RecordAccumulator accumulator
    cdef partitioner.RecordPartitioner _partitioner
    cdef object _transactions, _cluster
    cdef bint _is_transactional
    cdef dict _partition_counts

    @cython.locals(batch=producer_batch.ProducerBatch)
    cpdef bint append(
        self, str topic, bytes value, bytes key, tuple headers, Py_ssize_t partition, long long timestamp, on_delivery,
        long long now_ms) except? -9

# C types for producer_batch.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport memory_records_builder

@cython.final
cdef class ProducerBatch:
    cdef public str topic
    cdef public Py_ssize_t partition, reserved_bytes, attempts
    cdef public memory_records_builder.MemoryRecordsBuilder builder
    cdef public long long created_ms, last_attempt_ms, drained_ms, retry_at_ms, leader_epoch
    cdef public long long base_offset, log_append_time_ms
    cdef public int state
    cdef public bint is_split_batch, is_sequence_reset
    cdef public list split_batches
    cdef public object error
    cdef Py_ssize_t _attempts_at_leader_change
    cdef object _record_errors
    cdef list _callbacks

    @cython.locals(size=Py_ssize_t)
    cpdef bint try_append(
        self, long long timestamp, bytes key, bytes value, tuple headers, callback, pool) except? -9

# C types for arrow_appender.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.client.producer cimport arrow_column, producer_batch, record_accumulator
from kcli.format cimport byte_address, memory_records_builder, murmur2

cdef Py_ssize_t UNKNOWN_PARTITION

@cython.final
cdef class ArrowRows:
    cdef public Py_ssize_t count, byte_count
    cdef public arrow_column.BinaryColumn values, keys
    cdef public arrow_column.NumberColumn timestamps, partitions
    cdef public object headers
    cdef byte_address.Bytes value_bytes, key_bytes

@cython.final
cdef class ArrowAppender:
    cdef public Py_ssize_t row
    cdef ArrowRows _rows
    cdef record_accumulator.RecordAccumulator _accumulator
    cdef str _topic
    cdef Py_ssize_t _batch_bytes, _sticky, _sticky_bytes
    cdef object _on_batch, _added
    cdef dict _open

    @cython.locals(
        rows=ArrowRows, end=Py_ssize_t, batch=producer_batch.ProducerBatch, last=Py_ssize_t, partition=Py_ssize_t,
        number=Py_ssize_t, timestamp=cython.longlong, size=Py_ssize_t,
    )
    cpdef bint append(self, Py_ssize_t count, Py_ssize_t most, long long wall_ms, long long now_ms, cluster) except? -9

    @cython.locals(rows=ArrowRows, found=Py_ssize_t, size=Py_ssize_t)
    cdef Py_ssize_t _partition_of(self, Py_ssize_t row, Py_ssize_t count) except? -9

    @cython.locals(
        rows=ArrowRows, key_size=Py_ssize_t, key_start=Py_ssize_t, value_size=Py_ssize_t, value_start=Py_ssize_t,
        size=Py_ssize_t, before=Py_ssize_t, builder=memory_records_builder.MemoryRecordsBuilder,
    )
    cdef Py_ssize_t _put(self, producer_batch.ProducerBatch batch, long long timestamp) except? -9

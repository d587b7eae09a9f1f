# C types for offset_map_builder.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results
from kcli.log.cleaner cimport batch_reader, offset_map, transaction_metadata

cdef class BatchMapper:
    cdef batch_reader.BatchReader reader
    cdef transaction_metadata.CleanedTransactionMetadata transactions
    cdef offset_map.OffsetMap offsets
    cdef long long start_offset
    cdef public int result
    cdef public long long records, without_key, tombstones, work_bytes
    cdef public bint has_transactions

    @cython.locals(reader=batch_reader.BatchReader, header=batch_header.BatchHeader, offsets=offset_map.OffsetMap)
    cpdef Py_ssize_t put_batches(
        self, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit) except? -9

    @cython.locals(
        reader=batch_reader.BatchReader, header=batch_header.BatchHeader, count=Py_ssize_t, key_sizes=cython.longlong[::1],
        value_sizes=cython.longlong[::1], without_key=cython.longlong, tombstones=cython.longlong, index=Py_ssize_t,
    )
    cdef void _put_records(self) except *

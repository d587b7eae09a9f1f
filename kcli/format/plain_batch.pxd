# C types for plain_batch.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_scan

cdef long long MOST_TIMESTAMP

cdef class PlainBatch:
    cdef public batch_header.BatchHeader header
    cdef public record_scan.RecordColumns records
    cdef public long long size_bytes, last_offset_delta, smallest_timestamp, max_timestamp
    cdef public long long producer_id, producer_epoch, base_sequence, null_keys

    @cython.locals(
        header=batch_header.BatchHeader, records=record_scan.RecordColumns, size=Py_ssize_t, count=cython.longlong,
        base_timestamp=cython.longlong,
    )
    cpdef bint read(self, const unsigned char[::1] buffer, view, crc32c) except? -9

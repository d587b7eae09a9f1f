# C types for plain_batch.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_scan

cdef long long MOST_TIMESTAMP

cdef class PlainBatch(batch_header.BatchHeader):
    cdef public record_scan.RecordColumns records

    @cython.locals(records=record_scan.RecordColumns, size=Py_ssize_t, status=cython.int)
    cpdef bint check(self, const unsigned char[::1] buffer, view, crc32c) except? -9

# C types for batch_join.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_copy, record_scan, structs

cdef int MOST_RECORDS
cdef long long MOST_TIMESTAMP
cdef long long UNLIMITED

cdef class JoinSpace:
    cdef public batch_header.BatchHeader header
    cdef public record_scan.RecordColumns columns
    cdef public object kept

cdef class JoinedBatch:
    cdef public long long count, first_offset, next_offset, base_timestamp, max_timestamp, source_bytes, least_offset, stop_offset, most_records
    cdef public Py_ssize_t size, most_bytes, small_bytes
    cdef public int status
    cdef JoinSpace _space
    cdef object _data

    cpdef bint fits(self, Py_ssize_t size_bytes, long long record_count) except? -9

    cpdef begin(self, long long first_offset, long long base_timestamp, long long max_timestamp)

    @cython.locals(size_bytes=Py_ssize_t)
    cpdef bint may_take(self, batch_header.BatchHeader header) except? -9

    @cython.locals(columns=record_scan.RecordColumns, out=cython.uchar[::1])
    cpdef bint take_records(self, const unsigned char[::1] buffer, batch_header.BatchHeader header) except? -9

    @cython.locals(header=batch_header.BatchHeader)
    cpdef Py_ssize_t take(
        self, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, crc32c) except? -9

# C types for batch_header.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport loop_results, structs

cdef long long MOST_OFFSET

@cython.locals(value=cython.longlong)
cpdef long long read_int32(const unsigned char[::1] buffer, Py_ssize_t position) except? -9

@cython.locals(low=cython.longlong)
cpdef long long read_int64(const unsigned char[::1] buffer, Py_ssize_t position) except? -9

cdef class BatchHeader:
    cdef public Py_ssize_t position, records_position, end_position
    cdef public long long base_offset, last_offset, leader_epoch, crc, attributes, base_timestamp, max_timestamp
    cdef public long long producer_id, producer_epoch, base_sequence, record_count
    cdef public int codec
    cdef public bint is_log_append_time, is_transactional, is_control, has_delete_horizon, has_unknown_attributes

    @cython.locals(batch_length=cython.longlong, crc=cython.longlong, attributes=cython.longlong, epoch=cython.longlong)
    cpdef int read(self, const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit) except? -9

    @cython.locals(computed=cython.longlong)
    cpdef bint has_right_crc(self, view, crc32c) except? -9

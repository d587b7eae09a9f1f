# C types for batch_head.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format.batch_scan cimport read_int32, read_int64

cdef class BatchHead:
    cdef public Py_ssize_t position, start, end
    cdef public int codec
    cdef public bint has_append_time, is_transactional, is_control, has_horizon
    cdef public long long base_offset, last_offset, records

    @cython.locals(size=cython.longlong, attributes=cython.longlong)
    cpdef int read(self, const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit) except? -9

    cpdef long long base_timestamp(self, const unsigned char[::1] buffer) except? -9

    cpdef long long max_timestamp(self, const unsigned char[::1] buffer) except? -9

    cpdef long long producer_id(self, const unsigned char[::1] buffer) except? -9

    @cython.locals(stored=cython.longlong, computed=cython.longlong)
    cpdef bint is_sound(self, const unsigned char[::1] buffer, view, crc32c) except? -9

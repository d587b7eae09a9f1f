# C types for record_scan.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results

cdef long long NO_DELTA

cdef class RecordColumns:
    # The columns as Python code uses them, and the same memory as compiled code reads and writes it.
    cdef public object offset, timestamp, key_position, key_size, value_position, value_size
    cdef public object header_position, header_count, record_position
    cdef public long long[::1] offset_view, timestamp_view, key_position_view, key_size_view
    cdef public long long[::1] value_position_view, value_size_view, header_position_view, header_count_view
    cdef public long long[::1] record_position_view, scratch
    cdef public Py_ssize_t capacity, end
    cdef public long long base_offset, base_timestamp, counted, null_keys, smallest_delta, largest_delta, last_delta
    cdef public bint is_renumbered, is_rising

    cpdef begin_batch(self, long long base_offset, long long base_timestamp)

    @cython.locals(
        scratch=cython.longlong[::1], is_kept=cython.bint, counted=cython.longlong, null_keys=cython.longlong,
        smallest=cython.longlong, largest=cython.longlong, last_delta=cython.longlong, start=Py_ssize_t, end=Py_ssize_t,
        wrong_counted=cython.longlong, wrong_start=Py_ssize_t, status=cython.int, byte=cython.int, second=cython.int,
        raw=cython.int, size=cython.longlong, key_size=cython.longlong, key_position=Py_ssize_t,
        value_position=Py_ssize_t, header_count=cython.longlong, header_position=Py_ssize_t, timestamp_delta=cython.longlong,
        offset_delta=cython.longlong, timestamp=cython.longlong, offset=cython.longlong,
    )
    cpdef int scan(
        self, const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, long long wanted, Py_ssize_t row
    ) except? -9

    @cython.locals(status=cython.int)
    cpdef bint scan_batch(
        self, const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t end, batch_header.BatchHeader header
    ) except? -9

@cython.locals(value=cython.ulonglong, shift=cython.int, byte=cython.ulonglong)
cpdef Py_ssize_t read_zigzag(const unsigned char[::1] buffer, Py_ssize_t position, int most_bytes, long long[::1] out) except? -9

@cython.locals(size=cython.longlong)
cpdef Py_ssize_t skip_headers(const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t end, long long count, long long[::1] out) except? -9

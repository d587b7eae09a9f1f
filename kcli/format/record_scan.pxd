# C types for record_scan.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport loop_results

@cython.locals(value=cython.ulonglong, shift=cython.int, byte=cython.ulonglong)
cpdef Py_ssize_t read_zigzag(const unsigned char[::1] buffer, Py_ssize_t position, int most_bytes, long long[::1] out) except? -9

@cython.locals(size=cython.longlong)
cpdef Py_ssize_t skip_headers(const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t end, long long count, long long[::1] out) except? -9

@cython.locals(count=Py_ssize_t)
cpdef Py_ssize_t scan_records(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit,
    long long base_offset, long long base_timestamp, long long wanted,
    columns, long long[::1] scratch) except? -9

@cython.locals(
    index=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, status=cython.int,
    byte=cython.int, second=cython.int, raw=cython.int, size=cython.longlong,
    timestamp_delta=cython.longlong, offset_delta=cython.longlong, is_far=cython.bint,
)
cpdef Py_ssize_t scan_into(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit,
    long long base_offset, long long base_timestamp, long long wanted,
    long long[::1] offsets, long long[::1] timestamps,
    long long[::1] key_positions, long long[::1] key_sizes,
    long long[::1] value_positions, long long[::1] value_sizes,
    long long[::1] header_positions, long long[::1] header_counts,
    long long[::1] record_positions, long long[::1] scratch) except? -9

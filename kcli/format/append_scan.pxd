# C types for append_scan.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results
from kcli.format.record_scan cimport read_zigzag, skip_headers

cdef long long MOST_TIMESTAMP

@cython.locals(
    size=Py_ssize_t, header=batch_header.BatchHeader, count=cython.longlong, base_timestamp=cython.longlong,
    largest=cython.longlong, status=cython.int,
)
cpdef int read_plain_batch(const unsigned char[::1] buffer, long long[::1] out, long long[::1] scratch) except? -9

@cython.locals(
    index=Py_ssize_t, start=Py_ssize_t, wrong_index=Py_ssize_t, wrong_start=Py_ssize_t, end=Py_ssize_t, status=cython.int,
    byte=cython.int, second=cython.int, raw=cython.int, size=cython.longlong,
    delta=cython.longlong, smallest=cython.longlong, largest=cython.longlong,
    null_keys=cython.longlong, renumbered=cython.longlong,
)
cpdef int check_records(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, long long count,
    long long[::1] out, long long[::1] scratch) except? -9

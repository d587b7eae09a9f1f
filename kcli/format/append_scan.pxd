# C types for append_scan.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format.batch_scan cimport read_int32, read_int64
from kcli.format.record_scan cimport read_zigzag, skip_headers

@cython.locals(
    size=Py_ssize_t, delta=cython.longlong, base_timestamp=cython.longlong, max_timestamp=cython.longlong,
    producer_id=cython.longlong, sequence=cython.longlong, crc=cython.longlong, epoch=cython.longlong, status=cython.int,
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

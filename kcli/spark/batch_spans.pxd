# C types for batch_spans.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport loop_results, record_scan

@cython.locals(
    base_offsets=cython.longlong[::1], last_offsets=cython.longlong[::1], attributes=cython.longlong[::1],
    counts=cython.longlong[::1], faults=cython.longlong[::1], row=Py_ssize_t, records=cython.longlong,
    alike=cython.longlong, base=cython.longlong, last=cython.longlong, wanted=cython.longlong,
)
cpdef Py_ssize_t usual_batches(
    batches, Py_ssize_t first, Py_ssize_t rows, long long last_offset, long long first_offset, long long end_offset,
    long long bound_offset, long long refused, long long most_records) except -9

@cython.locals(
    base_offsets=cython.longlong[::1], base_timestamps=cython.longlong[::1], max_timestamps=cython.longlong[::1],
    attributes=cython.longlong[::1], counts=cython.longlong[::1],
    status=cython.int, at=Py_ssize_t, done=Py_ssize_t, row=Py_ssize_t,
    index=Py_ssize_t, wanted=cython.longlong, timestamp=cython.longlong,
)
cpdef Py_ssize_t scan_span(
    const unsigned char[::1] buffer, const long long[::1] starts, const long long[::1] ends, batches, Py_ssize_t first,
    Py_ssize_t count, record_scan.RecordColumns records, long long[::1] scratch) except -9

@cython.locals(done=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, value=cython.longlong)
cpdef put_repeated(
    const long long[::1] values, const long long[::1] counts, Py_ssize_t first, Py_ssize_t count, long long[::1] out,
    Py_ssize_t row)

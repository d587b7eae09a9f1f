# C types for arrow_columns.py when Cython compiles it.
cimport cython
from kcli.format cimport byte_address, loop_results, record_scan

cdef long long INT32_MAX

@cython.locals(
    base_offsets=cython.longlong[::1], last_offsets=cython.longlong[::1], attributes=cython.longlong[::1],
    counts=cython.longlong[::1], faults=cython.longlong[::1], row=Py_ssize_t, records=cython.longlong,
    shared=cython.longlong, base=cython.longlong, last=cython.longlong, fault=cython.longlong,
)
cpdef Py_ssize_t span_length(
    batches, Py_ssize_t first, Py_ssize_t end, long long last_offset, long long first_offset, long long end_offset,
    long long bound_offset, long long excluded, long long max_records) except -9

@cython.locals(
    base_offsets=cython.longlong[::1], base_timestamps=cython.longlong[::1], max_timestamps=cython.longlong[::1],
    attributes=cython.longlong[::1], counts=cython.longlong[::1],
    status=cython.int, at=Py_ssize_t, done=Py_ssize_t, row=Py_ssize_t,
    index=Py_ssize_t, wanted=cython.longlong, timestamp=cython.longlong,
)
cpdef Py_ssize_t scan_span(
    const unsigned char[::1] buffer, const long long[::1] starts, const long long[::1] ends, batches, Py_ssize_t first,
    Py_ssize_t count, record_scan.RecordColumns records, long long[::1] scratch) except -9

cdef int check_rows(Py_ssize_t first, Py_ssize_t count, Py_ssize_t length) except -9

@cython.locals(total=cython.longlong, index=Py_ssize_t, end=Py_ssize_t)
cpdef long long sum_of(const long long[::1] sizes, Py_ssize_t first, Py_ssize_t count) except? -9

@cython.locals(
    at=Py_ssize_t, space=Py_ssize_t, available=Py_ssize_t, nulls=Py_ssize_t, index=Py_ssize_t,
    size=cython.longlong, position=cython.longlong,
)
cpdef Py_ssize_t put_binary(
    const unsigned char[::1] source, const long long[::1] positions, const long long[::1] sizes,
    Py_ssize_t first, Py_ssize_t count, unsigned char[::1] data, int[::1] offsets, unsigned char[::1] validity,
    Py_ssize_t row) except -9

@cython.locals(nulls=Py_ssize_t, index=Py_ssize_t, timestamp=cython.longlong, lowest=cython.longlong, highest=cython.longlong)
cpdef Py_ssize_t put_micros(
    const long long[::1] timestamps, Py_ssize_t first, Py_ssize_t count, long long[::1] out, unsigned char[::1] validity,
    Py_ssize_t row) except -9

@cython.locals(index=Py_ssize_t)
cpdef put_sizes(const long long[::1] sizes, Py_ssize_t first, Py_ssize_t count, int[::1] out, Py_ssize_t row)

@cython.locals(index=Py_ssize_t)
cpdef put_distances(const long long[::1] positions, Py_ssize_t first, Py_ssize_t count, long long end, int[::1] out, Py_ssize_t row)

@cython.locals(index=Py_ssize_t, sequence=cython.longlong)
cpdef put_sequences(
    const long long[::1] offsets, Py_ssize_t first, Py_ssize_t count, long long base_offset, long long base_sequence,
    int[::1] out, Py_ssize_t row)

@cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
cpdef Py_ssize_t count_below(const long long[::1] offsets, Py_ssize_t count, long long limit) except -9

@cython.locals(raw=cython.ulonglong, shift=cython.int, byte=cython.ulonglong)
cdef Py_ssize_t read_size(const unsigned char[::1] source, Py_ssize_t position, long long[::1] out) except -9

@cython.locals(
    child=Py_ssize_t, available=Py_ssize_t, key_space=Py_ssize_t, value_space=Py_ssize_t, nulls=Py_ssize_t, index=Py_ssize_t,
    headers=cython.longlong, position=Py_ssize_t, size=cython.longlong, at=Py_ssize_t, end=Py_ssize_t,
)
cpdef Py_ssize_t put_headers(
    const unsigned char[::1] source, const long long[::1] positions, const long long[::1] counts,
    Py_ssize_t first, Py_ssize_t count, int[::1] lists, unsigned char[::1] list_validity, Py_ssize_t row,
    unsigned char[::1] key_data, int[::1] key_offsets, unsigned char[::1] value_data, int[::1] value_offsets,
    unsigned char[::1] value_validity, long long[::1] scratch) except -9

@cython.locals(done=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, value=cython.longlong)
cpdef put_repeated(
    const long long[::1] values, const long long[::1] counts, Py_ssize_t first, Py_ssize_t count, long long[::1] out,
    Py_ssize_t row)

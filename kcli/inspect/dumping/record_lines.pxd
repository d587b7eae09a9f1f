# C types for record_lines.py when Cython compiles it; the Python source knows nothing of them.
cimport cython

cdef long long INT32_MAX
cdef long long LINE_OVERHEAD_BYTES

@cython.locals(end=Py_ssize_t, byte=cython.uchar)
cpdef Py_ssize_t put_text(unsigned char[::1] out, Py_ssize_t position, bytes text) except? -9

@cython.locals(rest=cython.ulonglong, bound=cython.ulonglong, digits=cython.int, end=Py_ssize_t)
cpdef Py_ssize_t put_int(unsigned char[::1] out, Py_ssize_t position, long long value) except? -9

@cython.locals(index=Py_ssize_t)
cdef inline Py_ssize_t put_again(unsigned char[::1] out, Py_ssize_t position, Py_ssize_t start, Py_ssize_t end) noexcept

cdef inline Py_ssize_t put_next(unsigned char[::1] out, Py_ssize_t position, long long value, Py_ssize_t start, Py_ssize_t end, bint is_next) noexcept

@cython.locals(seen=cython.uchar, byte=cython.uchar, index=Py_ssize_t)
cdef inline Py_ssize_t put_ascii(unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end) noexcept

@cython.locals(index=Py_ssize_t)
cpdef Py_ssize_t first_gap(long long[::1] offsets, Py_ssize_t count) except? -9

@cython.locals(
    position=Py_ssize_t, room=Py_ssize_t, index=Py_ssize_t, start=Py_ssize_t, needed=cython.longlong,
    key_size=cython.longlong, value_size=cython.longlong, offset=cython.longlong, delta=cython.longlong,
    last_offset=cython.longlong, last_line=Py_ssize_t, last_start=Py_ssize_t, last_end=Py_ssize_t, start_of_number=Py_ssize_t,
    sequence=cython.longlong, last_sequence=cython.longlong, sequence_start=Py_ssize_t, sequence_end=Py_ssize_t,
    shared_start=Py_ssize_t, shared_end=Py_ssize_t, timestamp=cython.longlong, shared_timestamp=cython.longlong,
    shared_key_size=cython.longlong, shared_value_size=cython.longlong,
)
cpdef Py_ssize_t put_lines_from(
    unsigned char[::1] out, const unsigned char[::1] data, long long[::1] offsets, long long[::1] timestamps,
    long long[::1] key_positions, long long[::1] key_sizes, long long[::1] value_positions, long long[::1] value_sizes,
    long long[::1] header_counts, Py_ssize_t first, Py_ssize_t count,
    bytes time_label, long long fixed_timestamp, bint has_fixed_timestamp, long long base_offset, long long base_sequence,
    bint with_metadata, bint with_contents, long long[::1] place) except? -9

cpdef Py_ssize_t put_record_lines(
    unsigned char[::1] out, const unsigned char[::1] data, columns, Py_ssize_t first, Py_ssize_t count,
    bytes time_label, long long fixed_timestamp, bint has_fixed_timestamp, long long base_offset, long long base_sequence,
    bint with_metadata, bint with_contents, long long[::1] place) except? -9

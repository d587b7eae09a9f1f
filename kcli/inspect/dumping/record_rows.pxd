# C types for record_rows.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.inspect.dumping.record_lines cimport put_int, put_text

cdef int ROW_OVERHEAD_BYTES
cdef int MOST_ESCAPED_BYTES
cdef long long SEQUENCE_MASK
cdef long long SECONDS_PER_DAY
cdef Py_ssize_t DATE_TIME_BYTES
cdef long long MOST_ISO_MS

@cython.locals(index=Py_ssize_t, byte=cython.uchar, letter=cython.uchar, low=cython.uchar, shift=Py_ssize_t, special=cython.uchar)
cpdef Py_ssize_t put_json_string(unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end) except? -9

@cython.locals(index=Py_ssize_t, byte=cython.uchar, shift=Py_ssize_t, special=cython.uchar)
cpdef Py_ssize_t put_csv_field(unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end) except? -9

@cython.locals(first=Py_ssize_t, index=Py_ssize_t, byte=cython.uchar, needs_quotes=cython.bint)
cdef Py_ssize_t put_quoted(unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end) noexcept

cdef inline Py_ssize_t put_two(unsigned char[::1] out, Py_ssize_t position, int number) noexcept

cdef inline Py_ssize_t put_time(unsigned char[::1] out, Py_ssize_t position, int second_of_day) noexcept

cdef inline Py_ssize_t put_ms(unsigned char[::1] out, Py_ssize_t position, int ms) noexcept

cdef Py_ssize_t put_field(unsigned char[::1] out, Py_ssize_t position, bint is_json, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size) except? -9

@cython.locals(
    offsets=cython.longlong[::1], timestamps=cython.longlong[::1],
    key_positions=cython.longlong[::1], key_sizes=cython.longlong[::1],
    value_positions=cython.longlong[::1], value_sizes=cython.longlong[::1],
    header_counts=cython.longlong[::1], is_json=cython.bint, is_iso=cython.bint,
    timestamp=cython.longlong, second=cython.longlong, day=cython.longlong, time_start=Py_ssize_t, shift=Py_ssize_t, day_text=bytes,
    before_offset=bytes, before_timestamp=bytes, before_key_size=bytes, before_value_size=bytes, before_sequence=bytes,
    no_sequence=bytes, key_open=bytes, key_close=bytes, key_null=bytes, value_open=bytes, value_close=bytes,
    value_null=bytes, row_end=bytes,
    position=Py_ssize_t, room=Py_ssize_t, index=Py_ssize_t, turn=Py_ssize_t, start=Py_ssize_t,
    overhead=cython.longlong, needed=cython.longlong, key_size=cython.longlong, value_size=cython.longlong,
)
cpdef Py_ssize_t put_rows(
    unsigned char[::1] out, const unsigned char[::1] data, columns, const long long[::1] chosen, Py_ssize_t first,
    Py_ssize_t count, form, long long fixed_timestamp, bint has_fixed_timestamp, long long base_offset,
    long long base_sequence, bint with_contents, long long[::1] place) except? -9

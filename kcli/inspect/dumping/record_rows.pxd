# C types for record_rows.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport byte_address
from kcli.inspect.dumping cimport record_lines, text_buffer

cdef int ROW_OVERHEAD_BYTES
cdef int MOST_ESCAPED_BYTES
cdef long long SEQUENCE_MASK
cdef long long SECONDS_PER_DAY
cdef Py_ssize_t DATE_TIME_BYTES
cdef long long MOST_ISO_MS

@cython.locals(index=Py_ssize_t, byte=cython.uchar, letter=cython.uchar, low=cython.uchar, shift=Py_ssize_t, special=cython.uchar)
cdef Py_ssize_t put_json_string(unsigned char* out, Py_ssize_t position, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except? -9

@cython.locals(index=Py_ssize_t, byte=cython.uchar, shift=Py_ssize_t, special=cython.uchar)
cdef Py_ssize_t put_csv_field(unsigned char* out, Py_ssize_t position, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except? -9

@cython.locals(first=Py_ssize_t, index=Py_ssize_t, byte=cython.uchar, needs_quotes=cython.bint)
cdef Py_ssize_t put_quoted(unsigned char* out, Py_ssize_t position, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept

cdef Py_ssize_t put_two(unsigned char* out, Py_ssize_t position, int number) noexcept

cdef Py_ssize_t put_time(unsigned char* out, Py_ssize_t position, int second_of_day) noexcept

cdef Py_ssize_t put_ms(unsigned char* out, Py_ssize_t position, int ms) noexcept

@cython.final
cdef class RecordRows:
    cdef bint is_json, is_iso, is_log_append_time
    cdef bytes before_offset, before_timestamp, before_key_size, before_value_size, before_sequence, no_sequence
    cdef bytes key_open, key_close, key_null, value_open, value_close, value_null, end, day_text
    cdef long long[::1] chosen, offset, timestamp, key_position, key_size, value_position, value_size, header_count
    cdef long long overhead, base_offset, base_sequence, max_timestamp, second, day
    cdef Py_ssize_t date_start

    cpdef begin_batch(self, long long base_offset, long long base_sequence, long long max_timestamp, bint is_log_append_time)

    @cython.locals(memory=cython.p_uchar, contents=byte_address.Bytes, position=Py_ssize_t, end=Py_ssize_t, number=Py_ssize_t, index=Py_ssize_t)
    cpdef Py_ssize_t put(self, text_buffer.TextBuffer out, const unsigned char[::1] data, Py_ssize_t first, Py_ssize_t count) except? -9

    @cython.locals(size=cython.longlong)
    cdef long long row_bytes(self, Py_ssize_t index) noexcept

    @cython.locals(offset=cython.longlong, timestamp=cython.longlong, sequence=cython.longlong)
    cdef Py_ssize_t put_numbers(self, unsigned char* out, Py_ssize_t position, Py_ssize_t index) except? -9

    @cython.locals(second=cython.longlong, shift=Py_ssize_t)
    cdef Py_ssize_t put_instant(self, unsigned char* out, Py_ssize_t position, long long timestamp) except? -9

    @cython.locals(key_size=cython.longlong, value_size=cython.longlong)
    cdef Py_ssize_t put_contents(self, unsigned char* out, Py_ssize_t position, const unsigned char* data, Py_ssize_t index) except? -9

    cdef Py_ssize_t put_field(self, unsigned char* out, Py_ssize_t position, const unsigned char* data, Py_ssize_t start, Py_ssize_t size) except? -9

# C types for record_lines.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport record_scan
from kcli.format cimport byte_address
from kcli.inspect.dumping cimport text_buffer

cdef long long LINE_OVERHEAD_BYTES
cdef long long SEQUENCE_MASK
cdef long long NO_OFFSET

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t put_text(unsigned char* out, Py_ssize_t position, bytes text) noexcept

@cython.locals(rest=cython.ulonglong, bound=cython.ulonglong, digits=cython.int, end=Py_ssize_t)
cdef Py_ssize_t put_int(unsigned char* out, Py_ssize_t position, long long value) noexcept

cdef Py_ssize_t put_number(unsigned char* out, Py_ssize_t position, bytes label, long long value) noexcept

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t copy_within(unsigned char* out, Py_ssize_t position, Py_ssize_t start, Py_ssize_t end) noexcept

@cython.locals(seen=cython.uchar, byte=cython.uchar, index=Py_ssize_t)
cdef Py_ssize_t put_ascii(unsigned char* out, Py_ssize_t position, const unsigned char* data, Py_ssize_t start, Py_ssize_t size) noexcept

@cython.final
cdef class CountingNumber:
    cdef long long value
    cdef Py_ssize_t start, end

    @cython.locals(start=Py_ssize_t)
    cdef Py_ssize_t put(self, unsigned char* out, Py_ssize_t position, long long value) noexcept

@cython.final
cdef class OffsetGaps:
    cdef object note
    cdef public long long last_offset

    cpdef begin_file(self)

    @cython.locals(previous=cython.longlong, offset=cython.longlong, index=Py_ssize_t)
    cpdef add(self, long long[::1] offsets, Py_ssize_t count)

@cython.final
cdef class RecordLines:
    cdef record_scan.RecordColumns columns
    cdef bint with_metadata, with_contents, is_log_append_time
    cdef long long base_offset, base_sequence, max_timestamp
    cdef CountingNumber offset_text, sequence_text
    cdef Py_ssize_t shared_start, shared_end
    cdef long long shared_timestamp, shared_key_size, shared_value_size

    cpdef begin_batch(self, long long base_offset, long long base_sequence, long long max_timestamp, bint is_log_append_time)

    @cython.locals(
        columns=record_scan.RecordColumns, memory=cython.p_uchar, contents=byte_address.Bytes, position=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t,
    )
    cpdef Py_ssize_t put(self, text_buffer.TextBuffer out, const unsigned char[::1] data, Py_ssize_t first, Py_ssize_t count) except? -9

    @cython.locals(size=cython.longlong)
    cdef long long line_bytes(self, Py_ssize_t index) noexcept

    @cython.locals(
        columns=record_scan.RecordColumns, offset=cython.longlong, timestamp=cython.longlong, key_size=cython.longlong,
        value_size=cython.longlong, sequence=cython.longlong,
    )
    cdef Py_ssize_t put_metadata(self, unsigned char* out, Py_ssize_t position, Py_ssize_t index) noexcept

    @cython.locals(
        columns=record_scan.RecordColumns, key_size=cython.longlong, value_size=cython.longlong,
    )
    cdef Py_ssize_t put_contents(self, unsigned char* out, Py_ssize_t position, const unsigned char* data, Py_ssize_t index) noexcept

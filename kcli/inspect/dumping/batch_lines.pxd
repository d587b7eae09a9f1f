# C types for batch_lines.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_scan
from kcli.inspect.dumping cimport record_lines, text_buffer

cdef long long SEQUENCE_MASK
cdef Py_ssize_t BATCH_LINE_BYTES

@cython.final
cdef class BatchLines:
    cdef text_buffer.TextBuffer out
    cdef record_scan.RecordColumns columns
    cdef record_lines.RecordLines lines
    cdef record_lines.OffsetGaps gaps
    cdef batch_header.BatchHeader header
    cdef object crc32c, inflate
    cdef bint with_records
    cdef readonly int result

    @cython.locals(header=batch_header.BatchHeader, start=Py_ssize_t)
    cpdef Py_ssize_t put(self, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, long long file_position) except? -9

    @cython.locals(header=batch_header.BatchHeader)
    cdef bint is_printed_here(self, view) except? -9

    @cython.locals(header=batch_header.BatchHeader, last_sequence=cython.longlong)
    cdef Py_ssize_t put_batch(self, unsigned char* out, Py_ssize_t to, long long file_position) except? -9

    @cython.locals(header=batch_header.BatchHeader)
    cdef bint put_records(self, const unsigned char[::1] buffer, view) except? -9

    @cython.locals(header=batch_header.BatchHeader)
    cdef bint put_plain(self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end) except? -9

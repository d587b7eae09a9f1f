# C types for batch_reader.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_scan
from kcli.format.batch_header cimport read_int32
from kcli.log.cleaner cimport transaction_metadata

cdef int ABORT, COMMIT, NO_MARKER

cdef class BatchReader:
    cdef public batch_header.BatchHeader header
    cdef object crc32c, decompress
    cdef public record_scan.RecordColumns columns
    cdef public Py_ssize_t records_end
    cdef const unsigned char[::1] data

    @cython.locals(header=batch_header.BatchHeader, result=cython.int, is_of_transaction=cython.bint)
    cdef int read_header(
        self, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit,
        transaction_metadata.CleanedTransactionMetadata transactions) except? -9

    @cython.locals(header=batch_header.BatchHeader)
    cdef bint read_records(self, const unsigned char[::1] buffer, view) except? -9

    @cython.locals(header=batch_header.BatchHeader, key=cython.longlong, version=cython.int)
    cdef int read_marker(self, const unsigned char[::1] buffer) except? -9

    cdef bint _scan(self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end) except? -9

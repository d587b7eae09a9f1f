# C types for cut_strides.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, structs
from kcli.log.cleaner cimport batch_filter, batch_strides

cdef class CutStride:
    cdef public batch_strides.Stride passed
    cdef public object rows
    cdef long long[::1] _row_words
    cdef public int why
    cdef public Py_ssize_t used_bytes, row_count
    cdef public long long dead_records, records, stay, tombstones, keyless, dropped_tombstones, discarded, work_bytes
    cdef public bint is_at_stop

    cpdef int begin(self) except? -9

    cpdef int count(self, batch_filter.BatchCutter cutter) except? -9

    @cython.locals(at=Py_ssize_t)
    cpdef int add_row(self, long long size_bytes, long long last_offset, long long max_timestamp) except? -9

@cython.locals(
    out=cython.uchar[::1], head=batch_header.BatchHeader, passed=batch_strides.Stride, behind=Py_ssize_t, used=Py_ssize_t, size=Py_ssize_t, why=cython.int,
)
cpdef Py_ssize_t clean_batches(
    const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t file_limit, int passes_dead,
    batch_filter.BatchCutter cutter, CutStride stride) except? -9

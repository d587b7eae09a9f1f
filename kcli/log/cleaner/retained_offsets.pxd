# C types for retained_offsets.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.log.cleaner cimport batch_reader, offset_map

cdef class RetainedOffsets:
    cdef public long long mapped_start, mapped_end, window_start, window_end, skipped_records
    cdef public bint is_useful
    cdef public unsigned long long[::1] words
    cdef offset_map.OffsetMap _offsets
    cdef object _gathered, _is_first_window

    @cython.locals(
        bits=cython.longlong, bit=cython.longlong, one=cython.ulonglong, words=cython.ulonglong[::1],
    )
    cdef void _gather(self, unsigned long long[::1] table, Py_ssize_t start, Py_ssize_t end) except *

    cpdef bint is_mapped(self, long long first, long long last) except? -9

    cpdef bint is_in_window(self, long long first, long long last) except? -9

    @cython.locals(
        words=cython.ulonglong[::1], first=cython.longlong, last=cython.longlong, mask=cython.ulonglong, word=Py_ssize_t,
        end=Py_ssize_t, rest=cython.longlong, one=cython.ulonglong,
    )
    cpdef bint has_any(self, long long first_offset, long long last_offset) except? -9

    @cython.locals(
        offsets=cython.longlong[::1], value_sizes=cython.longlong[::1], words=cython.ulonglong[::1], flags=cython.uchar[::1],
        bits=cython.longlong, bit=cython.longlong, flag=cython.int, kept=cython.longlong, tombstones=cython.longlong,
        index=Py_ssize_t,
    )
    cdef void retain(
        self, batch_reader.BatchReader batch, Py_ssize_t count, bint keeps_tombstones,
        offset_map.RetainedRecords retained) except *

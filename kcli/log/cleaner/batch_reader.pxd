# C types for batch_reader.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, record_scan
from kcli.format.batch_header cimport read_int32

cdef class StrideColumns:
    cdef public Py_ssize_t room
    cdef public long long[::1] offset, timestamp, key_position, key_size, value_position, value_size
    cdef public long long[::1] header_position, header_count, position, scratch

    @cython.locals(count=Py_ssize_t)
    cpdef bint scan(
        self, const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t end, batch_header.BatchHeader head,
        long long base_timestamp) except? -9

    @cython.locals(key=cython.longlong, version=cython.int)
    cpdef int scan_marker(self, const unsigned char[::1] buffer, batch_header.BatchHeader head) except? -9

cdef class OpenTransactions:
    cdef public long long next_aborted
    cdef public Py_ssize_t aborted_count, open_count
    cdef public long long[::1] aborted_ids, open_ids

    @cython.locals(index=Py_ssize_t)
    cpdef bint is_aborted(self, long long producer_id, long long last_offset) except? -9

    @cython.locals(index=Py_ssize_t)
    cpdef Py_ssize_t find_open(self, long long producer_id) except? -9

    cpdef int note_open(self, long long producer_id) except? -9

    @cython.locals(index=Py_ssize_t)
    cpdef bint close_open(self, long long producer_id) except? -9

cdef class LiveWindow:
    cdef public long long first_mapped, end_mapped, start_offset, end_offset
    cdef public unsigned long long[::1] words

    @cython.locals(
        marked=Py_ssize_t, bits=cython.longlong, bit=cython.longlong, one=cython.ulonglong, words=cython.ulonglong[::1],
    )
    cpdef Py_ssize_t mark(self, unsigned long long[::1] table, Py_ssize_t start, Py_ssize_t end) except? -9

    cpdef bint is_mapped(self, long long first, long long last) except? -9

    cpdef bint holds(self, long long first, long long last) except? -9

    @cython.locals(
        words=cython.ulonglong[::1], first=cython.longlong, last=cython.longlong, mask=cython.ulonglong, word=Py_ssize_t,
        end=Py_ssize_t, left=cython.longlong, one=cython.ulonglong,
    )
    cpdef bint any_live(self, long long first_offset, long long last_offset) except? -9

    @cython.locals(
        offsets=cython.longlong[::1], value_sizes=cython.longlong[::1], words=cython.ulonglong[::1], bits=cython.longlong,
        bit=cython.longlong, stays=cython.int, stay=cython.longlong, tombstones=cython.longlong, index=Py_ssize_t,
    )
    cpdef long long keep(
        self, StrideColumns columns, Py_ssize_t count, int keeps_tombstones, unsigned char[::1] kept,
        long long[::1] counts) except? -9

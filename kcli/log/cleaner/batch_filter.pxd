# C types for batch_filter.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_copy, structs
from kcli.log.cleaner cimport offset_map, batch_reader

cdef class BatchCutter:
    cdef public batch_reader.StrideColumns columns
    cdef public offset_map.OffsetMap offsets
    cdef public batch_reader.LiveWindow live
    cdef public batch_reader.OpenTransactions transactions
    cdef public object marker_ids, out_view, crc32c, inflate
    cdef public long long now_ms, horizon_ms, stop_offset
    cdef public unsigned char[::1] out, kept
    cdef public long long[::1] counts
    cdef public batch_header.BatchHeader head
    cdef public int why
    cdef public long long max_timestamp, base_timestamp
    cdef public long long records, stay, tombstones, keyless, dropped_tombstones, records_bytes
    cdef public bint is_mapped, is_discarded, sets_horizon

    @cython.locals(head=batch_header.BatchHeader, is_of_transaction=cython.bint)
    cpdef int cut(
        self, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t start) except? -9

    @cython.locals(head=batch_header.BatchHeader, marker=cython.int, producer_id=cython.longlong)
    cpdef int _cut_marker(self, const unsigned char[::1] buffer, Py_ssize_t start) except? -9

    @cython.locals(head=batch_header.BatchHeader, sets_horizon=cython.bint)
    cpdef int _cut_records(
        self, const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t start) except? -9

    @cython.locals(head=batch_header.BatchHeader, columns=batch_reader.StrideColumns, counts=cython.longlong[::1])
    cpdef int _choose(self, const unsigned char[::1] buffer, int keeps_tombstones) except? -9

    @cython.locals(
        timestamps=cython.longlong[::1], positions=cython.longlong[::1], kept=cython.uchar[::1], index=Py_ssize_t,
        count=Py_ssize_t, has_append_time=cython.bint, first=cython.longlong, largest=cython.longlong,
        smallest=cython.longlong, out=cython.uchar[::1],
    )
    cpdef int _copy(
        self, const unsigned char[::1] buffer, Py_ssize_t limit, bint sets_horizon, Py_ssize_t start) except? -9

    @cython.locals(
        head=batch_header.BatchHeader, out=cython.uchar[::1], records_position=Py_ssize_t, end_position=Py_ssize_t,
        computed=cython.longlong)
    cpdef int _write_header(self, const unsigned char[::1] buffer, Py_ssize_t start) except? -9

@cython.locals(index=Py_ssize_t)
cpdef Py_ssize_t put_integer(unsigned char[::1] out, Py_ssize_t position, Py_ssize_t size, long long value) except? -9

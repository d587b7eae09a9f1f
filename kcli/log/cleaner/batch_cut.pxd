# C types for batch_cut.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport record_copy, record_scan
from kcli.format.batch_scan cimport read_int32, read_int64
from kcli.log.cleaner cimport batch_strides, offset_map

@cython.locals(
    size=cython.longlong, attributes=cython.longlong, base_offset=cython.longlong, last_offset=cython.longlong,
    count=cython.longlong, end=Py_ssize_t, stored=cython.longlong, computed=cython.longlong, first_held=cython.longlong,
    keeps_tombstones=cython.int, done=Py_ssize_t, producer_id=cython.longlong,
)
cpdef Py_ssize_t cut_batch(
    const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, crc32c, inflate, long long now_ms,
    long long horizon_ms, long long stop_offset, long long held_from, long long held_to, unsigned long long[::1] words,
    long long first_offset, offsets, long long[::1] told, long long[::1] timestamps, long long[::1] key_positions,
    long long[::1] key_sizes, long long[::1] value_positions, long long[::1] value_sizes, long long[::1] header_positions,
    long long[::1] header_counts, long long[::1] positions, unsigned char[::1] kept, long long[::1] counts,
    long long[::1] transactions,
    long long[::1] aborted, long long[::1] open_ids, long long[::1] marker_ids, unsigned char[::1] out, out_view,
    Py_ssize_t start,
    long long[::1] facts) except? -9

@cython.locals(computed=cython.longlong)
cpdef Py_ssize_t write_cut(
    const unsigned char[::1] buffer, Py_ssize_t position, long long attributes, Py_ssize_t done, crc32c,
    unsigned char[::1] out, out_view, Py_ssize_t start, long long[::1] facts) except? -9

@cython.locals(marker=cython.int, producer_id=cython.longlong, index=Py_ssize_t, done=Py_ssize_t)
cpdef Py_ssize_t cut_marker(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t end, long long base_offset, long long attributes,
    long long now_ms, long long horizon_ms, long long stop_offset, long long[::1] told, long long[::1] timestamps,
    long long[::1] key_positions, long long[::1] key_sizes, long long[::1] value_positions, long long[::1] value_sizes,
    long long[::1] header_positions, long long[::1] header_counts, long long[::1] positions, unsigned char[::1] kept,
    long long[::1] counts,
    long long[::1] transactions, long long[::1] open_ids, long long[::1] marker_ids, crc32c, unsigned char[::1] out, out_view,
    Py_ssize_t start, long long[::1] facts) except? -9

@cython.locals(index=Py_ssize_t)
cpdef Py_ssize_t put_integer(unsigned char[::1] out, Py_ssize_t position, Py_ssize_t size, long long value) except? -9

@cython.locals(
    wanted=cython.longlong, count=Py_ssize_t,
    stay=cython.longlong, sets_horizon=cython.int,
)
cpdef Py_ssize_t cut_records(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, long long base_offset, int keeps_tombstones,
    long long attributes, long long horizon_ms, long long stop_offset, unsigned long long[::1] words, long long first_held,
    offsets, long long[::1] told, long long[::1] timestamps, long long[::1] key_positions, long long[::1] key_sizes,
    long long[::1] value_positions, long long[::1] value_sizes, long long[::1] header_positions,
    long long[::1] header_counts, long long[::1] positions, unsigned char[::1] kept, long long[::1] counts,
    unsigned char[::1] out, long long[::1] facts) except? -9

@cython.locals(
    index=Py_ssize_t, first=cython.longlong, largest=cython.longlong, smallest=cython.longlong, base_timestamp=cython.longlong,
)
cpdef Py_ssize_t rebase(
    const unsigned char[::1] buffer, Py_ssize_t limit, Py_ssize_t count, long long attributes, int sets_horizon,
    long long horizon_ms, long long[::1] timestamps, long long[::1] positions, unsigned char[::1] kept,
    unsigned char[::1] out, long long[::1] counts, long long[::1] facts) except? -9

@cython.locals(
    bits=cython.longlong, stay=cython.longlong, tombstones=cython.longlong, index=Py_ssize_t, bit=cython.longlong,
    stays=cython.int,
)
cpdef Py_ssize_t keep_live(
    long long[::1] offsets, long long[::1] value_sizes, Py_ssize_t count, unsigned long long[::1] words,
    long long first_offset, int keeps_tombstones, unsigned char[::1] kept, long long[::1] counts) except? -9

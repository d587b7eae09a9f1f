# C types for batch_strides.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport record_scan
from kcli.format.batch_scan cimport read_int32, read_int64
from kcli.log.cleaner cimport offset_map

@cython.locals(
    offsets=cython.longlong[::1], timestamps=cython.longlong[::1], key_positions=cython.longlong[::1],
    key_sizes=cython.longlong[::1], value_positions=cython.longlong[::1], value_sizes=cython.longlong[::1],
    header_positions=cython.longlong[::1], header_counts=cython.longlong[::1], record_positions=cython.longlong[::1],
    work_bytes=Py_ssize_t, records=cython.longlong, keyless=cython.longlong, tombstones=cython.longlong,
    is_plain=cython.int, why=cython.int, size=cython.longlong,
    attributes=cython.longlong, end=Py_ssize_t, stored=cython.longlong, computed=cython.longlong, base_offset=cython.longlong,
    delta=cython.longlong, count=cython.longlong, base_timestamp=cython.longlong, noted=Py_ssize_t, marker=cython.int,
)
cpdef Py_ssize_t note_batches(
    const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, crc32c, inflate, long long start_offset,
    long long[::1] transactions, long long[::1] aborted, columns, unsigned long long[::1] table, long long[::1] state,
    unsigned long long[::1] secret,
    unsigned long long[::1] hashes, long long[::1] rows,
    long long[::1] places, long long[::1] scratch) except? -9

@cython.locals(
    count=Py_ssize_t, keyless=cython.longlong, tombstones=cython.longlong, index=Py_ssize_t,
)
cpdef Py_ssize_t note_batch(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, long long base_offset, long long last_offset,
    long long base_timestamp, long long wanted, long long start_offset, long long[::1] offsets, long long[::1] timestamps,
    long long[::1] key_positions, long long[::1] key_sizes, long long[::1] value_positions, long long[::1] value_sizes,
    long long[::1] header_positions, long long[::1] header_counts, long long[::1] record_positions,
    unsigned long long[::1] table, long long[::1] state, unsigned long long[::1] secret, unsigned long long[::1] hashes,
    long long[::1] rows, long long[::1] places, long long[::1] scratch) except? -9

@cython.locals(count=Py_ssize_t, key=cython.longlong, version=cython.int)
cpdef int scan_marker(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, long long base_offset, long long base_timestamp,
    long long[::1] offsets, long long[::1] timestamps, long long[::1] key_positions, long long[::1] key_sizes,
    long long[::1] value_positions, long long[::1] value_sizes, long long[::1] header_positions, long long[::1] header_counts,
    long long[::1] record_positions, long long[::1] scratch) except? -9

@cython.locals(index=Py_ssize_t)
cpdef bint is_aborted(
    long long[::1] transactions, long long[::1] aborted, long long producer_id, long long last_offset) except? -9

@cython.locals(index=Py_ssize_t)
cpdef Py_ssize_t find_open(long long[::1] transactions, long long[::1] open_ids, long long producer_id) except? -9

@cython.locals(index=Py_ssize_t)
cpdef bint close_open(long long[::1] transactions, long long[::1] open_ids, long long producer_id) except? -9

cpdef bint note_open(long long[::1] transactions, long long[::1] open_ids, long long producer_id) except? -9

@cython.locals(marked=Py_ssize_t, bits=cython.longlong, bit=cython.longlong, one=cython.ulonglong)
cpdef Py_ssize_t mark_live(
    unsigned long long[::1] table, Py_ssize_t start, Py_ssize_t end, long long first_offset,
    unsigned long long[::1] words) except? -9

@cython.locals(mask=cython.ulonglong, word=Py_ssize_t, end=Py_ssize_t, left=cython.longlong, one=cython.ulonglong)
cpdef bint any_live(unsigned long long[::1] words, long long first, long long last) except? -9

@cython.locals(
    records=cython.longlong, bits=cython.longlong, why=cython.int, size=cython.longlong, base_offset=cython.longlong,
    last_offset=cython.longlong, producer_id=cython.longlong,
)
cpdef Py_ssize_t pass_dead(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t file_limit, long long first_mapped,
    long long stop_offset, unsigned long long[::1] words, long long first_offset, long long[::1] transactions,
    long long[::1] aborted, long long[::1] open_ids, long long[::1] scratch) except? -9

# C types for cut_strides.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.log.cleaner cimport batch_cut, batch_strides

@cython.locals(
    told=cython.longlong[::1], timestamps=cython.longlong[::1], key_positions=cython.longlong[::1],
    key_sizes=cython.longlong[::1], value_positions=cython.longlong[::1], value_sizes=cython.longlong[::1],
    header_positions=cython.longlong[::1], header_counts=cython.longlong[::1], positions=cython.longlong[::1],
    slot=Py_ssize_t, dead_stop=cython.longlong, used=Py_ssize_t, row=Py_ssize_t, work_bytes=Py_ssize_t, why=cython.int,
    behind=Py_ssize_t, size=Py_ssize_t, is_whole=cython.int,
)
cpdef Py_ssize_t clean_batches(
    const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t file_limit, int passes_dead,
    crc32c, inflate, long long now_ms, long long horizon_ms, long long stop_offset, long long held_from, long long held_to,
    unsigned long long[::1] words, long long first_offset, offsets, columns, unsigned char[::1] kept, long long[::1] counts,
    long long[::1] transactions, long long[::1] aborted, long long[::1] open_ids, long long[::1] marker_ids,
    long long[::1] scratch, unsigned char[::1] out, out_view, long long[::1] rows, long long[::1] facts) except? -9

cpdef long long count_cut(long long[::1] facts) except? -9

# C types for batch_strides.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results
from kcli.log.cleaner cimport offset_map, batch_reader

cdef class Stride:
    cdef public batch_header.BatchHeader head
    cdef public int why
    cdef public long long records, keyless, tombstones, last_offset, work_bytes
    cdef public bint is_plain

@cython.locals(head=batch_header.BatchHeader, is_of_transaction=cython.bint)
cpdef Py_ssize_t note_batches(
    const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, crc32c, inflate, long long start_offset,
    batch_reader.OpenTransactions transactions, batch_reader.StrideColumns columns, offset_map.OffsetMap offsets,
    Stride stride) except? -9

@cython.locals(
    head=batch_header.BatchHeader, count=Py_ssize_t, key_sizes=cython.longlong[::1], value_sizes=cython.longlong[::1],
    keyless=cython.longlong, tombstones=cython.longlong, index=Py_ssize_t,
)
cpdef int note_batch(
    const unsigned char[::1] buffer, long long start_offset, batch_reader.StrideColumns columns, offset_map.OffsetMap offsets,
    Stride stride) except? -9

@cython.locals(head=batch_header.BatchHeader, producer_id=cython.longlong)
cpdef Py_ssize_t pass_dead(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t file_limit, long long stop_offset,
    batch_reader.LiveWindow live, batch_reader.OpenTransactions transactions, Stride stride) except? -9

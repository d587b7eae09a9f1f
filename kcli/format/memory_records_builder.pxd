# C types for memory_records_builder.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport byte_address

cdef long long BATCH_OVERHEAD, MOST_OVERHEAD

@cython.locals(raw=cython.ulonglong, size=Py_ssize_t)
cdef Py_ssize_t size_varint(long long value) noexcept

@cython.locals(raw=cython.ulonglong)
cdef Py_ssize_t put_varint(long long value, unsigned char* out, Py_ssize_t position) noexcept

@cython.locals(total=cython.longlong, key=bytes, value=bytes)
cdef Py_ssize_t size_headers(tuple headers) except? -9

@cython.locals(size=cython.longlong)
cpdef Py_ssize_t estimate_size_upper_bound(bytes key, bytes value, tuple headers) except? -9

@cython.final
cdef class MemoryRecordsBuilder:
    cdef public bytearray buffer
    cdef public long long capacity, full_size, write_limit, position, record_count, base_timestamp, max_timestamp
    cdef public bint is_closed
    cdef public int codec
    cdef public object level
    cdef long long _factor
    cdef bytearray _built
    cdef long long _producer_id, _producer_epoch, _base_sequence
    cdef bint _is_transactional

    @cython.locals(
        base_timestamp=cython.longlong, key_size=cython.longlong, value_size=cython.longlong, header_count=cython.longlong,
        body=cython.longlong, size=cython.longlong,
    )
    cpdef Py_ssize_t append(self, long long timestamp, bytes key, bytes value, tuple headers) except? -9

    @cython.locals(
        base_timestamp=cython.longlong, body=cython.longlong, size=cython.longlong, out="unsigned char*", position=Py_ssize_t)
    cdef Py_ssize_t append_parts(
        self, long long timestamp, byte_address.Bytes key, Py_ssize_t key_start, long long key_size, byte_address.Bytes value,
        Py_ssize_t value_start, long long value_size) except? -9

    @cython.locals(out="unsigned char*", position=Py_ssize_t)
    cdef void _put(
        self, long long body, long long timestamp_delta, bytes key, long long key_size, bytes value, long long value_size,
        tuple headers, long long header_count) except *

    @cython.locals(out="unsigned char*", position=Py_ssize_t, key=bytes, value=bytes)
    cdef void _put_headers(self, tuple headers) except *

    cpdef grow(self, long long capacity)

    cpdef Py_ssize_t estimated_size(self) except? -9

    cpdef bint is_full(self) except? -9

    cpdef bytearray build(self)

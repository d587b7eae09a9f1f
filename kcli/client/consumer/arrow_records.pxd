# C types for arrow_records.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport arrow_columns, batch_header, byte_address, record_scan

cdef Py_ssize_t FIRST_ROWS, FIRST_BYTES

@cython.final
cdef class BinaryColumn:
    cdef public long long nulls
    cdef public int[::1] offsets
    cdef public unsigned char[::1] validity, data

    @cython.locals(kept=Py_ssize_t)
    cpdef grow_rows(self, Py_ssize_t rows, Py_ssize_t capacity)

    @cython.locals(used=cython.longlong)
    cdef object reserve(self, Py_ssize_t rows, long long size)

    @cython.locals(used=Py_ssize_t, size=Py_ssize_t)
    cpdef add(self, bytes value, Py_ssize_t row)

    cdef object scan(
        self, const unsigned char[::1] buffer, const long long[::1] positions, const long long[::1] sizes,
        Py_ssize_t first, Py_ssize_t count, Py_ssize_t row)

@cython.final
cdef class ArrowBuilder:
    cdef public str topic
    cdef public int partition
    cdef public Py_ssize_t rows, capacity
    cdef long long[::1] _offsets, _timestamps, _scratch
    cdef signed char[::1] _timestamp_types
    cdef int[::1] _leader_epochs, _lists
    cdef unsigned char[::1] _list_validity
    cdef BinaryColumn _keys, _values, _header_keys, _header_values
    cdef Py_ssize_t _header_capacity

    @cython.locals(
        rows=Py_ssize_t, offsets=cython.longlong[::1], timestamps=cython.longlong[::1], types="signed char[::1]",
        epochs=cython.int[::1], lists=cython.int[::1],
    )
    cpdef reserve(self, Py_ssize_t count)

    cpdef long long size_bytes(self)

    cpdef expect(self, Py_ssize_t count, long long size)

    @cython.locals(row=Py_ssize_t, index=Py_ssize_t, headers=cython.longlong, child=cython.int)
    cpdef add(
        self, const unsigned char[::1] buffer, record_scan.RecordColumns columns, Py_ssize_t first, Py_ssize_t count,
        batch_header.BatchHeader header, int timestamp_type)

    @cython.locals(row=Py_ssize_t, child=Py_ssize_t, size=cython.longlong)
    cdef object _add_headers(
        self, const unsigned char[::1] buffer, record_scan.RecordColumns columns, Py_ssize_t first, Py_ssize_t count,
        long long headers)

    cdef object _reserve_headers(self, Py_ssize_t child, long long headers)

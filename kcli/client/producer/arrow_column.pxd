# C types for arrow_column.py when Cython compiles it; the Python source does not contain them.
cimport cython

@cython.final
cdef class BinaryColumn:
    cdef public Py_ssize_t length, offset
    cdef public bint has_nulls, is_large
    cdef public const unsigned char[::1] validity, data
    cdef public const int[::1] offsets32
    cdef public const long long[::1] offsets64

    @cython.locals(index=Py_ssize_t)
    cpdef Py_ssize_t start(self, Py_ssize_t row) except? -9

    @cython.locals(index=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t)
    cpdef Py_ssize_t size(self, Py_ssize_t row) except? -9

@cython.final
cdef class NumberColumn:
    cdef public Py_ssize_t length, offset
    cdef public bint has_nulls, is_32_bits
    cdef public long long factor, divisor
    cdef public const unsigned char[::1] validity
    cdef public const int[::1] values32
    cdef public const long long[::1] values64

    @cython.locals(index=Py_ssize_t, found=cython.longlong)
    cpdef Py_ssize_t value(self, Py_ssize_t row, Py_ssize_t default) except? -9

# C types for murmur2.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport byte_address

cdef unsigned int SEED, M, MASK

@cython.locals(last=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t, h=cython.uint, k=cython.uint)
cdef unsigned int murmur2_of_part(byte_address.Bytes data, Py_ssize_t start, Py_ssize_t size) noexcept

@cython.locals(size=Py_ssize_t)
cpdef unsigned int murmur2(bytes key) except? 7

cdef Py_ssize_t partition_for_part(
    byte_address.Bytes data, Py_ssize_t start, Py_ssize_t size, Py_ssize_t partition_count) except? -9

cpdef Py_ssize_t partition_for_key(bytes key, Py_ssize_t partition_count) except? -9

# C types for murmur2.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport byte_copy

cdef unsigned int SEED, M, MASK

@cython.locals(
    data=byte_copy.Bytes, size=Py_ssize_t, last=Py_ssize_t, at=Py_ssize_t, h=cython.uint, k=cython.uint,
)
cpdef unsigned int murmur2(bytes key) except? 7

cpdef Py_ssize_t partition_for_key(bytes key, Py_ssize_t partition_count) except? -9

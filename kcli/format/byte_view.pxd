# What byte_view.py is in compiled modules, which include these functions.
from libc.string cimport memcpy

ctypedef const unsigned char* Bytes

cdef inline Bytes readable(const unsigned char[::1] buffer) noexcept:
    return &buffer[0] if buffer.shape[0] else NULL

cdef inline void copy_part(
    unsigned char* out, Py_ssize_t position, Bytes data, Py_ssize_t start, Py_ssize_t size) noexcept:
    memcpy(out + position, data + start, <size_t> size)

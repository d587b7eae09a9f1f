# What byte_address.py is in compiled modules, which include these functions.
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

ctypedef const unsigned char* Bytes

cdef inline Bytes readable(const unsigned char[::1] buffer) noexcept:
    return &buffer[0] if buffer.shape[0] else NULL

cdef inline unsigned char* writable(unsigned char[::1] buffer) noexcept:
    return &buffer[0] if buffer.shape[0] else NULL

cdef inline Bytes readable_bytes(bytes data) noexcept:
    return <Bytes> PyBytes_AS_STRING(data)

cdef inline unsigned char* writable_bytearray(bytearray data) noexcept:
    return <unsigned char*> PyByteArray_AS_STRING(data)

cdef inline object resize(bytearray data, Py_ssize_t size):
    PyByteArray_Resize(data, size)

cdef inline unsigned int uint32(Bytes data, Py_ssize_t position) noexcept:
    return (
        <unsigned int> data[position] | <unsigned int> data[position + 1] << 8
        | <unsigned int> data[position + 2] << 16 | <unsigned int> data[position + 3] << 24
    )

cdef inline bytes part(const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char*> &data[0] + position, size)

cdef inline void copy_bytes(unsigned char* out, Py_ssize_t at, bytes data, Py_ssize_t size) noexcept:
    memcpy(out + at, PyBytes_AS_STRING(data), <size_t> size)

cdef inline void copy_range(unsigned char* out, Py_ssize_t at, Bytes data, Py_ssize_t position, Py_ssize_t size) noexcept:
    memcpy(out + at, data + position, <size_t> size)

cdef inline void copy_part(
    unsigned char[::1] out, Py_ssize_t at, const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t size
) noexcept:
    if size > 0:
        memcpy(&out[0] + at, &data[0] + position, <size_t> size)

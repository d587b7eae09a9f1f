# What byte_address.py is in compiled modules, which include these functions. An empty buffer has no address.

ctypedef const unsigned char* Bytes

cdef inline unsigned char* writable(unsigned char[::1] buffer) noexcept:
    return &buffer[0] if buffer.shape[0] else NULL

cdef inline Bytes readable(const unsigned char[::1] buffer) noexcept:
    return &buffer[0] if buffer.shape[0] else NULL

# C types for record_copy.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format.record_scan cimport read_zigzag

cdef int MOST_GROWTH_BYTES
cdef int MOST_RENUMBERED_GROWTH_BYTES
cdef int KEEP_OFFSET_DELTAS

@cython.locals(done=Py_ssize_t, index=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t)
cpdef Py_ssize_t copy_unchanged(
    const unsigned char[::1] buffer, long long[::1] positions, Py_ssize_t end, Py_ssize_t count,
    const unsigned char[::1] kept, unsigned char[::1] out) except? -9

@cython.locals(raw=cython.ulonglong)
cpdef Py_ssize_t put_zigzag(long long value, unsigned char[::1] out, Py_ssize_t position) except? -9

@cython.locals(raw=cython.ulonglong, size=Py_ssize_t)
cpdef Py_ssize_t size_zigzag(long long value) except? -9

@cython.locals(
    done=Py_ssize_t, index=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, attributes_at=Py_ssize_t, size=Py_ssize_t,
    delta=cython.longlong, is_renumbered=cython.bint,
)
cpdef Py_ssize_t copy_rebased(
    const unsigned char[::1] buffer, long long[::1] positions, long long[::1] timestamps, Py_ssize_t end, Py_ssize_t count,
    const unsigned char[::1] kept, long long base_timestamp, long long offset_delta, unsigned char[::1] out,
    long long[::1] scratch) except? -9

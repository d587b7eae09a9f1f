# C types for text_buffer.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport byte_address

@cython.final
cdef class TextBuffer:
    cdef object _write, _view
    cdef unsigned char* memory
    cdef readonly Py_ssize_t size
    cdef public Py_ssize_t position

    @cython.locals(end=Py_ssize_t)
    cpdef put(self, bytes text)

    cpdef bint flush_if_half_full(self) except? -9

    @cython.locals(end=Py_ssize_t)
    cpdef flush(self)

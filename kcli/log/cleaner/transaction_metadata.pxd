# C types for transaction_metadata.py when Cython compiles it; the Python source knows nothing of them.
cimport cython

cdef class CleanedTransactionMetadata:
    cdef public long long next_aborted
    cdef public Py_ssize_t aborted_count, ongoing_count
    cdef public long long[::1] aborted_ids, ongoing_ids
    cdef object _aborted, _waiting, _retained

    @cython.locals(index=Py_ssize_t)
    cpdef bint may_be_aborted(self, long long producer_id, long long last_offset) except? -9

    @cython.locals(index=Py_ssize_t)
    cpdef Py_ssize_t find_ongoing(self, long long producer_id) except? -9

    cpdef void add_ongoing(self, long long producer_id) except *

    @cython.locals(index=Py_ssize_t)
    cpdef bint complete(self, long long producer_id) except? -9

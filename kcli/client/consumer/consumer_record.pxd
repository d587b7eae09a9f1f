# C types for consumer_record.py when Cython compiles it; the Python source does not contain them.
cimport cython

@cython.final
@cython.freelist(512)
cdef class ConsumerRecord:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly long long offset
    cdef readonly object key, value
    cdef readonly tuple headers
    cdef readonly long long timestamp
    cdef readonly int timestamp_type
    cdef readonly int leader_epoch

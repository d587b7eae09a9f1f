# C types for partitioner.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.format cimport murmur2

cdef Py_ssize_t UNKNOWN_PARTITION

@cython.final
cdef class RecordPartitioner:
    cdef object _partitioner
    cdef bint _ignore_keys

    cpdef Py_ssize_t partition(self, str topic, Py_ssize_t partition, bytes key, bytes value, cluster) except? -9

@cython.final
cdef class BuiltInPartitioner:
    cdef public str topic
    cdef public Py_ssize_t sticky_batch_size, partition, produced_bytes
    cdef Py_ssize_t _sum
    cdef object _rng
    cdef list _sums, _partition_ids

    cpdef Py_ssize_t current_partition(self, cluster) except? -9

    cpdef update(self, Py_ssize_t appended_bytes, cluster, bint can_switch)

    cpdef bint is_switch_due(self) noexcept

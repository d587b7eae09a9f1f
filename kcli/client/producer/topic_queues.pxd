# C types for topic_queues.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.client.producer cimport partitioner, producer_batch

@cython.final
cdef class PartitionQueue:
    cdef public str topic
    cdef public Py_ssize_t partition
    cdef public object batches
    cdef public producer_batch.ProducerBatch last

    cpdef bint has_room(self) except? -9

@cython.final
cdef class TopicQueues:
    cdef public str topic
    cdef public partitioner.BuiltInPartitioner partitioner
    cdef public dict queues

    @cython.locals(found=PartitionQueue)
    cpdef PartitionQueue queue(self, Py_ssize_t partition)

    @cython.locals(found=PartitionQueue)
    cpdef PartitionQueue sticky_queue(self, cluster)

# C types for record_sender.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.client.producer cimport record_accumulator, record_appender
from kcli.client.shell cimport system_clock

cdef Py_ssize_t UNKNOWN_PARTITION

cdef class RecordSender:
    cdef public record_appender.RecordAppender _appender
    cdef public record_accumulator.RecordAccumulator _accumulator
    cdef public object _acquire, _release, _wake, _send_slowly
    cdef public bint _is_plain
    cdef public double _ahead_s

    @cython.locals(now_ms=cython.longlong, wall_ms=cython.longlong, seconds=cython.double)
    cdef bint _append(self, str topic, bytes value, bytes key, Py_ssize_t partition, on_delivery) except? -9

# C types for batch_lines.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_scan
from kcli.inspect.dumping cimport record_lines
from kcli.inspect.dumping.record_lines cimport first_gap, put_int, put_text

cdef long long INT32_MAX

@cython.locals(
    offsets=cython.longlong[::1], timestamps=cython.longlong[::1],
    key_positions=cython.longlong[::1], key_sizes=cython.longlong[::1],
    value_positions=cython.longlong[::1], value_sizes=cython.longlong[::1],
    header_counts=cython.longlong[::1],
    capacity=Py_ssize_t, room=Py_ssize_t, why=cython.int, header=batch_header.BatchHeader, start=Py_ssize_t, to=Py_ssize_t,
    base_offset=cython.longlong, delta=cython.longlong, count=cython.longlong,
    base_sequence=cython.longlong, last_sequence=cython.longlong, label=bytes,
    from_position=Py_ssize_t, to_position=Py_ssize_t, printed=Py_ssize_t, gap=Py_ssize_t,
)
cpdef Py_ssize_t put_batch_lines(
    unsigned char[::1] out, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit,
    long long file_position, crc32c, inflate, note_gap, bint with_records, bint with_metadata, bint with_contents,
    record_scan.RecordColumns records, long long[::1] state, long long[::1] place) except? -9

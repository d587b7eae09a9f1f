# C types for batch_scan.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_scan

cpdef int check_records(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit,
    batches, Py_ssize_t index, records, long long[::1] scratch) except? -9

@cython.locals(
    previous=cython.longlong, largest=cython.longlong, done=cython.longlong,
    count=Py_ssize_t, row=Py_ssize_t, offset=cython.longlong, timestamp=cython.longlong,
)
cpdef int check_into(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit,
    long long base_offset, long long last_offset, long long base_timestamp, long long max_timestamp,
    long long attributes, long long wanted, long long capacity,
    long long[::1] offsets, long long[::1] timestamps,
    long long[::1] key_positions, long long[::1] key_sizes,
    long long[::1] value_positions, long long[::1] value_sizes,
    long long[::1] header_positions, long long[::1] header_counts,
    long long[::1] record_positions, long long[::1] scratch) except? -9

@cython.locals(
    offsets=cython.longlong[::1], timestamps=cython.longlong[::1], found=Py_ssize_t, row=Py_ssize_t,
    smallest=cython.longlong, largest=cython.longlong, timestamp=cython.longlong,
)
cpdef Py_ssize_t summarise(records, Py_ssize_t count, long long previous_offset, long long[::1] out) except? -9

@cython.locals(
    positions=cython.longlong[::1], sizes=cython.longlong[::1], base_offsets=cython.longlong[::1],
    last_offsets=cython.longlong[::1], leader_epochs=cython.longlong[::1], attribute_column=cython.longlong[::1],
    base_timestamps=cython.longlong[::1], max_timestamps=cython.longlong[::1], producer_ids=cython.longlong[::1],
    producer_epochs=cython.longlong[::1], base_sequences=cython.longlong[::1], record_counts=cython.longlong[::1],
    offsets=cython.longlong[::1], timestamps=cython.longlong[::1],
    key_positions=cython.longlong[::1], key_sizes=cython.longlong[::1],
    value_positions=cython.longlong[::1], value_sizes=cython.longlong[::1],
    header_positions=cython.longlong[::1], header_counts=cython.longlong[::1],
    record_positions=cython.longlong[::1], record_capacity=cython.longlong,
    faults=cython.longlong[::1], capacity=Py_ssize_t, index=Py_ssize_t, faulty=Py_ssize_t, stop=cython.int,
    header=batch_header.BatchHeader, fault=cython.int,
)
cpdef Py_ssize_t scan_batches(
    const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, long long file_position, crc32c,
    batches, records, long long[::1] scratch) except? -9

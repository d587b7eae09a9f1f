# C types for batch_scan.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_scan, structs

cdef long long INT64_MAX

cpdef int check_records(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit,
    batches, Py_ssize_t index, record_scan.RecordColumns records) except? -9

@cython.locals(base=cython.longlong)
cpdef int check_into(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, long long last_offset, long long max_timestamp,
    long long attributes, long long wanted, record_scan.RecordColumns records) except? -9

@cython.locals(
    offsets=cython.longlong[::1], timestamps=cython.longlong[::1], found=Py_ssize_t, row=Py_ssize_t,
    smallest=cython.longlong, largest=cython.longlong, timestamp=cython.longlong,
)
cpdef Py_ssize_t summarise(records, Py_ssize_t count, long long previous_offset, long long[::1] out) except? -9

cpdef int fault_of(
    batch_header.BatchHeader header, const unsigned char[::1] buffer, record_scan.RecordColumns records) except? -9

@cython.locals(
    positions=cython.longlong[::1], sizes=cython.longlong[::1], base_offsets=cython.longlong[::1],
    last_offsets=cython.longlong[::1], leader_epochs=cython.longlong[::1], attribute_column=cython.longlong[::1],
    base_timestamps=cython.longlong[::1], max_timestamps=cython.longlong[::1], producer_ids=cython.longlong[::1],
    producer_epochs=cython.longlong[::1], base_sequences=cython.longlong[::1], record_counts=cython.longlong[::1],
    faults=cython.longlong[::1], capacity=Py_ssize_t, index=Py_ssize_t, faulty=Py_ssize_t, stop=cython.int,
    header=batch_header.BatchHeader, fault=cython.int,
)
cpdef Py_ssize_t scan_batches(
    const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, long long file_position, crc32c,
    batches, record_scan.RecordColumns records, long long[::1] scratch) except? -9

@cython.locals(
    base_offsets=cython.longlong[::1], last_offsets=cython.longlong[::1], leader_epochs=cython.longlong[::1],
    attributes=cython.longlong[::1], producer_ids=cython.longlong[::1], producer_epochs=cython.longlong[::1],
    base_sequences=cython.longlong[::1], max_timestamps=cython.longlong[::1], record_counts=cython.longlong[::1],
    faults=cython.longlong[::1], run_ids=cython.longlong[::1], run_epochs=cython.longlong[::1],
    run_attributes=cython.longlong[::1], run_batch_offsets=cython.longlong[::1], run_last_offsets=cython.longlong[::1],
    run_last_sequences=cython.longlong[::1], run_timestamps=cython.longlong[::1], run_records=cython.longlong[::1],
    run_batches=cython.longlong[::1], used=Py_ssize_t, run=Py_ssize_t,
    next_offset=cython.longlong, leader_epoch=cython.longlong, producer_id=cython.longlong, sequence=cython.longlong,
    expected=cython.longlong, last_sequence=cython.longlong,
    stop_offset=cython.longlong, passed=cython.longlong, last_offset=cython.longlong, taken=cython.longlong,
)
cpdef Py_ssize_t next_notable(batches, Py_ssize_t index, Py_ssize_t count, long long[::1] state, runs) except? -9

@cython.locals(
    row_positions=cython.longlong[::1], last_offsets=cython.longlong[::1], slots=Py_ssize_t, target=cython.longlong,
)
cpdef Py_ssize_t match_offset_index(
    batches, Py_ssize_t index, Py_ssize_t count, const int[::1] relative_offsets, const int[::1] positions,
    Py_ssize_t slot, long long base_offset, long long[::1] scratch) except? -9

@cython.locals(slots=Py_ssize_t, at=Py_ssize_t, behind=Py_ssize_t, offset=cython.longlong, last=cython.longlong)
cpdef Py_ssize_t match_headers(
    const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t filled, long long file_position,
    const int[::1] relative_offsets, const int[::1] positions, Py_ssize_t slot, long long base_offset) except? -9

@cython.locals(
    base_offsets=cython.longlong[::1], last_offsets=cython.longlong[::1], max_timestamps=cython.longlong[::1],
    slots=Py_ssize_t, target=cython.longlong, largest=cython.longlong, timestamp=cython.longlong,
)
cpdef Py_ssize_t match_time_index(
    batches, Py_ssize_t index, Py_ssize_t count, const long long[::1] timestamps, const int[::1] relative_offsets,
    Py_ssize_t slot, long long base_offset, long long[::1] scratch) except? -9

cdef class PlainBatch(batch_header.BatchHeader):
    cdef public record_scan.RecordColumns records

    @cython.locals(records=record_scan.RecordColumns, size=Py_ssize_t, status=cython.int)
    cpdef bint check(self, const unsigned char[::1] buffer, view, crc32c) except? -9

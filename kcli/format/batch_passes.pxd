# C types for batch_passes.py when Cython compiles it; the Python source knows nothing of them.
cimport cython

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

@cython.locals(
    base_offsets=cython.longlong[::1], last_offsets=cython.longlong[::1], max_timestamps=cython.longlong[::1],
    slots=Py_ssize_t, target=cython.longlong, largest=cython.longlong, timestamp=cython.longlong,
)
cpdef Py_ssize_t match_time_index(
    batches, Py_ssize_t index, Py_ssize_t count, const long long[::1] timestamps, const int[::1] relative_offsets,
    Py_ssize_t slot, long long base_offset, long long[::1] scratch) except? -9

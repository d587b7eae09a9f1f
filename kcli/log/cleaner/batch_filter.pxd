# C types for batch_filter.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport batch_header, loop_results, record_copy, structs
from kcli.log.cleaner cimport batch_reader, offset_map, retained_offsets, transaction_metadata

cdef long long MOST_TIMESTAMP

cdef class CleanerStats:
    cdef public long long bytes_read, bytes_kept, records_read, records_kept, records_discarded, without_key
    cdef public long long tombstones_kept, tombstones_dropped

cdef class BatchFilter:
    cdef public batch_reader.BatchReader reader
    cdef public offset_map.OffsetMap offsets
    cdef public retained_offsets.RetainedOffsets window
    cdef public transaction_metadata.CleanedTransactionMetadata transactions
    cdef public CleanerStats stats
    cdef public offset_map.RetainedRecords retained
    cdef object marker_ids, stop_offsets, next_stop
    cdef public object out_view, sizes, last_offsets, max_timestamps
    cdef public long long now_ms, horizon_ms, stop_offset
    cdef unsigned char[::1] out
    cdef long long[::1] c_sizes, c_last_offsets, c_max_timestamps
    cdef public int result
    cdef public Py_ssize_t used_bytes, batch_count, records_bytes
    cdef public long long work_bytes, max_timestamp, base_timestamp
    cdef public bint is_mapped, is_discarded, sets_horizon

    @cython.locals(
        header=batch_header.BatchHeader, out=cython.uchar[::1], start=Py_ssize_t, skipped_to=Py_ssize_t, size=Py_ssize_t,
    )
    cpdef Py_ssize_t filter_batches(
        self, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t file_limit) except? -9

    @cython.locals(header=batch_header.BatchHeader, window=retained_offsets.RetainedOffsets, records=cython.longlong)
    cdef Py_ssize_t _skip_batches(
        self, const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t limit, Py_ssize_t file_limit) except? -9

    @cython.locals(stats=CleanerStats, retained=offset_map.RetainedRecords)
    cdef void _count_records(self) except *

    cdef void _add_batch(self, Py_ssize_t size) except *

    @cython.locals(reader=batch_reader.BatchReader, header=batch_header.BatchHeader, result=cython.int)
    cpdef int filter_batch(
        self, const unsigned char[::1] buffer, view, Py_ssize_t position, Py_ssize_t limit) except? -9

    @cython.locals(header=batch_header.BatchHeader, retained=offset_map.RetainedRecords, marker=cython.int)
    cdef int _filter_marker(self, const unsigned char[::1] buffer) except? -9

    @cython.locals(header=batch_header.BatchHeader, retained=offset_map.RetainedRecords, sets_horizon=cython.bint)
    cdef int _filter_records(self) except? -9

    @cython.locals(reader=batch_reader.BatchReader, header=batch_header.BatchHeader)
    cdef void _retain(self, bint keeps_tombstones) except *

    @cython.locals(
        reader=batch_reader.BatchReader, header=batch_header.BatchHeader, timestamps=cython.longlong[::1],
        positions=cython.longlong[::1], flags=cython.uchar[::1], index=Py_ssize_t, count=Py_ssize_t, end=Py_ssize_t,
        base=cython.longlong, largest=cython.longlong, smallest=cython.longlong, out=cython.uchar[::1],
    )
    cdef int _copy_records(self, bint sets_horizon) except? -9

    @cython.locals(
        header=batch_header.BatchHeader, out=cython.uchar[::1], start=Py_ssize_t, records_position=Py_ssize_t,
        end_position=Py_ssize_t, crc=cython.longlong,
    )
    cdef void _write_header(self, const unsigned char[::1] buffer) except *

@cython.locals(index=Py_ssize_t)
cdef void put_integer(unsigned char[::1] out, Py_ssize_t position, Py_ssize_t size, long long value) except *

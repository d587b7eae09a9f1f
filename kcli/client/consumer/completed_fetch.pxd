# C types for completed_fetch.py when Cython compiles it; the Python source does not contain them.
cimport cython
from kcli.client.consumer cimport arrow_records, consumer_record
from kcli.format cimport batch_header, byte_address, loop_results, record_scan

cdef Py_ssize_t MIN_ENTRY_BYTES, SIZE_AT, OVERHEAD_BYTES, MIN_ENTRY_SIZE

@cython.final
cdef class FetchedTransactions:
    cdef list _pending
    cdef dict _begun

    @cython.locals(pending=list)
    cpdef object begin(self, long long last_offset)

    cpdef bint is_aborted(self, long long producer_id) except -9

    cpdef object end(self, long long producer_id)

    cpdef list left(self)


@cython.final
cdef class CompletedFetch:
    cdef public str topic
    cdef public int partition
    cdef public object records, error
    cdef public Py_ssize_t size_bytes
    cdef public long long next_offset, last_epoch
    cdef public bint is_drained
    cdef const unsigned char[::1] _records_view, _buffer
    cdef record_scan.RecordColumns _columns
    cdef batch_header.BatchHeader _header
    cdef bint _checks_crcs
    cdef Py_ssize_t _at, _position, _limit
    cdef FetchedTransactions _transactions
    cdef long long _left, _batch_next_offset
    cdef int _status, _timestamp_type
    cdef object _general

    @cython.locals(header=batch_header.BatchHeader, end=cython.longlong, position=Py_ssize_t, result=cython.int)
    cpdef Py_ssize_t end_offset(self) except? -9

    @cython.locals(before=Py_ssize_t, end=Py_ssize_t)
    cpdef Py_ssize_t take(self, list out, Py_ssize_t most, key_deserializer=*, value_deserializer=*) except -9

    @cython.locals(
        columns=record_scan.RecordColumns, header=batch_header.BatchHeader, count=Py_ssize_t, row=Py_ssize_t,
        offset=cython.longlong, size=cython.longlong, position=cython.longlong, record=consumer_record.ConsumerRecord,
    )
    cdef object _take_scanned(self, list out, Py_ssize_t most, key_deserializer, value_deserializer)

    @cython.locals(scratch=cython.longlong[::1], size=cython.longlong, headers=list, key=bytes)
    cdef tuple _headers(self, Py_ssize_t position, long long count)

    @cython.locals(offset=cython.longlong)
    cdef object _take_general(self, list out, Py_ssize_t end, key_deserializer, value_deserializer)

    @cython.locals(before=Py_ssize_t, end=Py_ssize_t)
    cpdef Py_ssize_t take_columns(self, arrow_records.ArrowBuilder out, Py_ssize_t most, long long enough_bytes) except -9

    @cython.locals(columns=record_scan.RecordColumns, header=batch_header.BatchHeader, count=Py_ssize_t, first=Py_ssize_t)
    cdef object _take_scanned_columns(self, arrow_records.ArrowBuilder out, Py_ssize_t most)

    @cython.locals(columns=record_scan.RecordColumns, header=batch_header.BatchHeader, wanted=cython.longlong)
    cdef Py_ssize_t _scan(self, Py_ssize_t most) except -9

    cdef object _end_scan(self)

    cdef object _end_batch(self)

    @cython.locals(header=batch_header.BatchHeader, end=Py_ssize_t)
    cdef object _begin_batch(self)

    @cython.locals(size=cython.longlong, end=Py_ssize_t)
    cdef Py_ssize_t _entry_end(self) except -9

    @cython.locals(header=batch_header.BatchHeader, transactions=FetchedTransactions)
    cdef bint _is_left_out(self) except -9

    cpdef discard(self)

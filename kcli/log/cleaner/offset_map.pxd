# C types for offset_map.py when Cython compiles it; the Python source knows nothing of them.
cimport cython
from kcli.format cimport record_scan

cdef class RetainedRecords:
    cdef public object flags
    cdef unsigned char[::1] c_flags
    cdef public long long count, tombstones, without_key, dropped_tombstones

@cython.locals(
    one=cython.ulonglong, mask=cython.ulonglong, v0=cython.ulonglong, v1=cython.ulonglong, v2=cython.ulonglong,
    v3=cython.ulonglong, word=cython.ulonglong, byte=cython.ulonglong, index=Py_ssize_t, position=Py_ssize_t,
    size=cython.longlong, left=cython.longlong, finals=cython.int, shift=cython.longlong, rounds=cython.int,
)
cpdef void hash_keys(
    const unsigned char[::1] buffer, long long[::1] key_positions, long long[::1] key_sizes, long long[::1] rows,
    Py_ssize_t count, unsigned long long[::1] secret, unsigned long long[::1] out) except *

@cython.locals(touched=cython.ulonglong, index=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t)
cdef void find_slots(
    unsigned long long[::1] table, unsigned long long slots, unsigned long long[::1] hashes, Py_ssize_t count,
    long long[::1] places) except *

@cython.locals(end=Py_ssize_t, at=Py_ssize_t)
cdef void move_slots(
    unsigned long long[::1] old, Py_ssize_t start, Py_ssize_t stop, unsigned long long[::1] table,
    unsigned long long slots) except *

cdef class OffsetMap:
    cdef public unsigned long long[::1] table, secret, hashes
    cdef public long long[::1] rows, places
    cdef public long long slots, used, most_used, latest_offset
    cdef public bint is_in_order
    cdef long long _last_offset
    cdef object _most_slots, _load_factor, _memory, _old, _moved

    cpdef bint can_put(self, long long count) except? -9

    @cython.locals(
        table=cython.ulonglong[::1], hashes=cython.ulonglong[::1], rows=cython.longlong[::1],
        places=cython.longlong[::1], slots=cython.ulonglong, used=cython.longlong, limit=cython.longlong,
        latest=cython.longlong, most_hashed=Py_ssize_t, end=Py_ssize_t, hashed=Py_ssize_t, done=Py_ssize_t, at=Py_ssize_t,
        offsets=cython.longlong[::1], key_positions=cython.longlong[::1], key_sizes=cython.longlong[::1], index=Py_ssize_t,
    )
    cpdef Py_ssize_t put(
        self, const unsigned char[::1] buffer, record_scan.RecordColumns columns, Py_ssize_t count, long long start_offset,
        Py_ssize_t first=*) except? -9

    @cython.locals(
        table=cython.ulonglong[::1], rows=cython.longlong[::1], places=cython.longlong[::1], flags=cython.uchar[::1],
        latest_offset=cython.longlong, slots=cython.ulonglong, kept=cython.longlong, tombstones=cython.longlong,
        dropped_tombstones=cython.longlong, without_key=cython.longlong, most_hashed=Py_ssize_t, index=Py_ssize_t,
        first=Py_ssize_t, hashed=Py_ssize_t, done=Py_ssize_t, last=cython.longlong, offsets=cython.longlong[::1],
        key_positions=cython.longlong[::1], key_sizes=cython.longlong[::1], value_sizes=cython.longlong[::1],
    )
    cpdef void retain(
        self, const unsigned char[::1] buffer, record_scan.RecordColumns columns, Py_ssize_t count, RetainedRecords retained,
        bint keeps_tombstones) except *

# What system_clock.py is in compiled modules, which include these functions.
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

cdef inline double monotonic_s() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec / 1e9

cdef inline double wall_s() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return now.tv_sec + now.tv_nsec / 1e9

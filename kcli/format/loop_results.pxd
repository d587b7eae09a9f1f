# Generated from the module of the same name: run `python -m kcli.format.layouts` after a change.
cdef enum:
    COMPLETE = 0
    NEED_MORE = 1
    FULL = 2
    USUAL = 3
    OTHER = 4
    ENOUGH = 5
    BAD_LENGTH = 6
    BAD_VARINT = 7
    BAD_HEADERS = 8
    BAD_HEADER_KEY = 9
    OUT_OF_INT64 = 10
    MAP_FULL = 11
    OUTSIDE_WINDOW = 12
    EMPTY = 13
    UNCHANGED = 14
    REWRITTEN = 15

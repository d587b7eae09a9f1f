"""What the compiled loops return, and what they leave in a state: one numbering for all of them.

    result                        a loop that returns it
    ----------------------------  -----------------------------------------------------------------------------------------
    COMPLETE                      did all that it was asked for
    NEED_MORE                     stopped where the buffer ends inside a header, a batch or a record
    FULL                          stopped because its columns or its output are full
    USUAL                         read a header of a batch that it can process
    OTHER                         stopped at a batch that it does not handle: the caller does, with objects
    ENOUGH                        stopped after a slice of work, so that others get their turn
    BAD_LENGTH ... OUT_OF_INT64   stopped at a record that does not parse (kcli.format.record_scan.STATUS_TEXT)
    MAP_FULL                      stopped because the cleaner's offset map may not have enough free slots for the batch
    OUTSIDE_WINDOW                stopped at a batch with offsets outside of the cleaner's window of retained offsets
    EMPTY, UNCHANGED, REWRITTEN   filtered a batch of which no record, every record or some records are retained

`kcli.format.layouts` generates loop_results.pxd from this module, so that compiled modules have the numbers as constants.
"""

COMPLETE = 0
NEED_MORE = 1
FULL = 2
USUAL = 3
OTHER = 4
ENOUGH = 5
BAD_LENGTH = 6  # the record's fields do not add up to its length
BAD_VARINT = 7  # a varint of more bytes than its type has
BAD_HEADERS = 8  # a negative number of headers, or more than there are bytes
BAD_HEADER_KEY = 9  # a header with a negative key length
OUT_OF_INT64 = 10  # an offset or timestamp beyond 64 bits
MAP_FULL = 11
OUTSIDE_WINDOW = 12
EMPTY = 13
UNCHANGED = 14
REWRITTEN = 15

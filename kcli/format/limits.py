"""The limits of all decoders; sizes are in bytes.

A size that a file states is used only after it was compared with the bytes that are there and with one of these.
"""

# A batch up to this size is held in memory whole; a larger one is read, checked and inflated in windows.
STREAMED_BATCH_BYTES = 8 * 1024 * 1024
# How much of a file is read at a time.
READ_CHUNK_BYTES = 1024 * 1024
# How many records' columns are held at a time.
SCAN_WINDOW_RECORDS = 4096
# How many inflated bytes are held at a time when a batch is opened in windows.
INFLATE_WINDOW_BYTES = 4 * 1024 * 1024
# Code that holds a whole record in memory, to show or copy its key and value, refuses larger ones. Kafka's own limit is that of
# an int32; its brokers accept 1 MB by default. A few hundred compressed bytes may state 2 GiB.
MAX_RECORD_BYTES = 64 * 1024 * 1024
# A larger record is shown with its sizes only, and not searched for keys: it would have to be in memory three times.
MAX_SHOWN_RECORD_BYTES = 8 * 1024 * 1024
# The largest decompressed size of a batch, against decompression bombs; Kafka's own limit is that of a Java array.
MAX_INFLATED_BATCH_BYTES = 2**31 - 1
# The same of a batch that is appended: a broker checks it while its clients wait.
MAX_APPENDED_INFLATED_BYTES = 128 * 1024 * 1024
# The records of a larger batch are not given another codec: they would have to be in memory whole, more than once.
MAX_RECOMPRESSED_BYTES = 64 * 1024 * 1024
# The inflated size of a message set inside a wrapper message of format 0 or 1.
MAX_INFLATED_MESSAGE_SET_BYTES = 512 * 1024 * 1024
# Text files next to the logs (checkpoints, properties): larger ones are refused.
MAX_TEXT_FILE_BYTES = 64 * 1024 * 1024
# Index files and producer snapshots are read whole; an index of the largest segment (2 GiB, an entry every KiB) has 16 MiB.
MAX_INDEX_FILE_BYTES = 256 * 1024 * 1024

"""`kcli-uncleanable-partitions`: the compacted partitions of a log directory that a kcli broker cannot clean, and why.

    line       text
    ---------  ---------------------------------------------------------------------------------------------------
    1          0                                                        the version
    2          <how many entries follow>
    3 ...      <topic> <partition> <time> <dirty offset> <reason>       time in ms since 1970; the dirty offset is the first
                                                                        that no round has cleaned

Kafka keeps this in memory only. kcli writes it, since `describe` reads files, not brokers; nothing else on the disk shows that
a log is not cleaned any more. Kafka ignores unknown files in a log directory. The text is UTF-8 with the layout of a checkpoint
file of version 0, so that a torn file is detected by the number of its lines. A reason is one line of at most
MAX_REASON_CHARACTERS: white space and control characters become blanks. An error names its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from kcli.format.checkpoint import decode_table, encode_table
from kcli.format.java_integers import parse_integer
from kcli.format.primitives import Buffer

MAX_REASON_CHARACTERS = 1000
_NOT_IN_REASONS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


class UncleanablePartition(NamedTuple):
    """A partition that is not cleaned any more; see the head of this module."""

    topic: str
    partition: int
    time_ms: int
    dirty_offset: int
    reason: str


def decode_uncleanable_partitions(data: Buffer) -> tuple[UncleanablePartition, ...]:
    """Decode the bytes of the file. Raises CorruptCheckpointError, which names the line."""
    return decode_table(data, _parse)[0]


def encode_uncleanable_partitions(entries: Iterable[UncleanablePartition]) -> bytes:
    """Return the bytes of the file."""
    return encode_table(
        f"{one.topic} {one.partition} {one.time_ms} {one.dirty_offset} {one_line(one.reason)}".rstrip() for one in entries
    )


def one_line(reason: str) -> str:
    """Return a reason as it is written to the file."""
    sound = reason.encode("utf-8", "backslashreplace").decode()
    return _NOT_IN_REASONS.sub(" ", sound)[:MAX_REASON_CHARACTERS].strip()


def _parse(line: str) -> UncleanablePartition | None:
    words = line.split(" ", 4)
    if len(words) < 4 or not words[0]:
        return None
    partition, time_ms, dirty_offset = parse_integer(words[1], 32), parse_integer(words[2], 64), parse_integer(words[3], 64)
    if partition is None or time_ms is None or dirty_offset is None:
        return None
    return UncleanablePartition(words[0], partition, time_ms, dirty_offset, words[4] if len(words) == 5 else "")

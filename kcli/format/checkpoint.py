"""Checkpoint files, version 0: small tables of text, written whole to a `.tmp` file and renamed.

    line       text                              file
    ---------  --------------------------------  ----------------------------------------------------------------------
    1          0                                 the version
    2          <how many entries follow>
    3 ...      <topic> <partition> <offset>      recovery-point-, log-start-, replication- and cleaner-offset-checkpoint
               <epoch> <start offset>            leader-epoch-checkpoint

Each line ends with a newline. An empty file, and one with the first line only, have no entries: Kafka creates the file
before it first writes it. Read as Kafka reads: UTF-8, any white space between the words, the last of several entries for
one partition counts. A fault names its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from kcli.format import limits
from kcli.format.java_text import parse_integer
from kcli.format.primitives import Buffer, CorruptCheckpointError

VERSION = 0
_WHITE_SPACE = re.compile(r"[ \t\n\x0b\f\r]+")
_LINE_END = re.compile("\r\n|\r|\n")
_DIGITS = re.compile("[0-9]{1,9}")  # fits an int32

_Entry = TypeVar("_Entry")


class PartitionOffset(NamedTuple):
    """One line of an offset checkpoint."""

    topic: str
    partition: int
    offset: int


class EpochStart(NamedTuple):
    """One line of a leader-epoch-checkpoint: the leader of `epoch` wrote its first record at `start_offset`."""

    epoch: int
    start_offset: int


class OffsetCheckpoint(NamedTuple):
    """A decoded offset checkpoint; `head_lines` (0 to 2) distinguishes an empty file from one without entries."""

    entries: tuple[PartitionOffset, ...]
    head_lines: int = 2

    def offsets(self) -> dict[tuple[str, int], int]:
        """Return the offset of each (topic, partition); if it has several lines, the last one counts."""
        return {(entry.topic, entry.partition): entry.offset for entry in self.entries}


class LeaderEpochCheckpoint(NamedTuple):
    """A decoded leader-epoch-checkpoint; `head_lines` as in OffsetCheckpoint."""

    entries: tuple[EpochStart, ...]
    head_lines: int = 2


def decode_offset_checkpoint(data: Buffer) -> OffsetCheckpoint:
    """Decode the bytes of an offset checkpoint. Raises CorruptCheckpointError, which names the line."""
    return OffsetCheckpoint(*decode_table(data, _partition_offset))


def encode_offset_checkpoint(entries: Iterable[PartitionOffset], head_lines: int = 2) -> bytes:
    """Encode an offset checkpoint."""
    return encode_table((f"{topic} {partition} {offset}" for topic, partition, offset in entries), head_lines)


def decode_leader_epochs(data: Buffer) -> LeaderEpochCheckpoint:
    """Decode the bytes of a leader-epoch-checkpoint. Raises CorruptCheckpointError, which names the line."""
    return LeaderEpochCheckpoint(*decode_table(data, _epoch_start))


def encode_leader_epochs(entries: Iterable[EpochStart], head_lines: int = 2) -> bytes:
    """Encode a leader-epoch-checkpoint."""
    return encode_table((f"{epoch} {start_offset}" for epoch, start_offset in entries), head_lines)


def text_lines(data: Buffer) -> list[str]:
    """Return the lines as Java's BufferedReader does. Raises CorruptCheckpointError for its size, or if it is not UTF-8."""
    if len(data) > limits.MAX_TEXT_FILE_BYTES:
        raise CorruptCheckpointError(f"the file has {len(data)} bytes; at most {limits.MAX_TEXT_FILE_BYTES} are read")
    try:
        lines = _LINE_END.split(str(data, "utf-8"))
    except UnicodeDecodeError as error:
        line = bytes(data[: error.start]).count(b"\n") + 1
        raise CorruptCheckpointError(f"line {line} is not UTF-8", error.start) from None
    if not lines[-1]:
        lines.pop()
    return lines


def malformed_line(number: int, line: str) -> CorruptCheckpointError:
    """Return the error for a line that cannot be read; lines are counted from 1."""
    return CorruptCheckpointError(f"line {number} is malformed: {line[:200]!r}")


def decode_table(data: Buffer, parse: Callable[[str], _Entry | None]) -> tuple[tuple[_Entry, ...], int]:
    """Decode a file with this head; return its entries and the number of lines of the head.

    `parse` makes an entry of a line, None of one that is malformed. Raises CorruptCheckpointError, which names the line.
    """
    lines = text_lines(data)
    head = [parse_integer(line, 32) for line in lines[:2]]
    for number, value in enumerate(head, 1):
        if value is None:
            raise malformed_line(number, lines[number - 1])
        if number == 1 and value != VERSION:
            raise CorruptCheckpointError(f"line 1 states version {value}; version {VERSION} is known")
    if len(head) < 2:
        return (), len(head)
    entries: list[_Entry] = []
    for number, line in enumerate(lines[2:], 3):
        entry = parse(line)
        if entry is None:
            raise malformed_line(number, line)
        entries.append(entry)
    if head[1] != len(entries):
        raise CorruptCheckpointError(f"line 2 states {head[1]} entries and {len(entries)} follow")
    return tuple(entries), 2


def encode_table(lines: Iterable[str], head_lines: int = 2) -> bytes:
    """Encode a file of such lines behind the head."""
    entries = list(lines)
    head = [str(VERSION), str(len(entries))]
    return "".join(f"{line}\n" for line in head[: 2 if entries else head_lines] + entries).encode()


def _words(line: str) -> list[str]:
    words = _WHITE_SPACE.split(line)
    while words and not words[-1]:
        words.pop()
    return words


def _partition_offset(line: str) -> PartitionOffset | None:
    words = line.split(" ")
    if len(words) == 3 and words[0].isprintable() and _DIGITS.fullmatch(words[1]) and _DIGITS.fullmatch(words[2]):
        return PartitionOffset(words[0], int(words[1]), int(words[2]))  # the line as brokers write it, four times as fast
    words = _words(line)
    if len(words) != 3:
        return None
    partition, offset = parse_integer(words[1], 32), parse_integer(words[2], 64)
    return None if partition is None or offset is None else PartitionOffset(words[0], partition, offset)


def _epoch_start(line: str) -> EpochStart | None:
    words = _words(line)
    if len(words) != 2:
        return None
    epoch, start_offset = parse_integer(words[0], 32), parse_integer(words[1], 64)
    return None if epoch is None or start_offset is None else EpochStart(epoch, start_offset)

"""One offset checkpoint of a log directory: read tolerantly at the start, written whole while the broker runs.

    file                               holds, for each partition                       missing or malformed
    ---------------------------------  ----------------------------------------------  ------------------------------
    recovery-point-offset-checkpoint   up to where the log is known to be on the disk  0: all is recovered
    log-start-offset-checkpoint        the log start offset, where it lies behind the  that base offset
                                       base offset of the first segment
    replication-offset-checkpoint      the high watermark                              the log start offset
    cleaner-offset-checkpoint          up to where the cleaner has been                the log start offset

All are caches of what the logs could tell at some cost, so that a malformed one is reported and taken for empty, as Kafka
does with the first two. (With a malformed third Kafka gives up the log directory; with its last checkpoint gone a leader
raises the high watermark again by itself.) A write goes by way of `<name>.tmp`, see kcli.log.flush_request; while one is on
its way the next one waits, and one that would change nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.format import limits
from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.file_names import FileKind
from kcli.format.primitives import FormatError
from kcli.log.disk import Disk
from kcli.log.flush_request import FlushRequest, replace_file
from kcli.log.log_directory import join_path
from kcli.log.report_line import Line

TopicPartition = tuple[str, int]


class OffsetCheckpointFile:
    """The checkpoint of one kind in the log directory `directory`."""

    __slots__ = ("_disk", "_in_flight", "_next", "_written", "path")

    def __init__(self, disk: Disk, directory: str, kind: FileKind) -> None:
        self.path = join_path(directory, kind.value)
        self._disk = disk
        self._written: bytes | None = None
        self._in_flight = False
        self._next: bytes | None = None

    def read(self, report: Callable[[str], None]) -> dict[TopicPartition, int]:
        """(topic, partition) -> offset; empty where the file is missing, or malformed, which is reported. Raises OSError."""
        if not self._disk.exists(self.path):
            return {}
        data = self._disk.read_file(self.path, limits.MAX_TEXT_FILE_BYTES)
        try:
            offsets = decode_offset_checkpoint(data).offsets()
        except FormatError as error:
            text = f"{self.path}: {error.message}; it is taken for empty and will be written anew"
            report(Line(text, path=self.path, error=error.message))
            return {}
        self._written = data
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int], done: Callable[[OSError | None], None]) -> FlushRequest | None:
        """Begin to write -> what is to be flushed; None where nothing changed, or where an earlier write comes first.

        `done` is told how it ended. Raises OSError.
        """
        data = _encode(offsets)
        if self._in_flight:
            self._next = data
            return None
        return self._begin(data, done)

    def _begin(self, data: bytes, done: Callable[[OSError | None], None]) -> FlushRequest | None:
        if data == self._written:
            return None
        self._written = None

        def ended(error: OSError | None) -> FlushRequest | None:
            self._in_flight = False
            waiting, self._next = self._next, None
            if error is None:
                self._written = data
                if waiting is not None:
                    try:
                        return self._begin(waiting, done)
                    except OSError as failed:
                        error = failed
            done(error)
            return None

        request = replace_file(self._disk, self.path, data, ended)
        self._in_flight = True
        return request

    def write_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write and wait for the device: at a clean stop. Raises OSError."""
        self._next = None
        data = _encode(offsets)
        if self._in_flight or data != self._written:
            self._disk.write_file(self.path, data)
            self._written = data


def _encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_offset_checkpoint(PartitionOffset(topic, partition, offset) for (topic, partition), offset in offsets.items())

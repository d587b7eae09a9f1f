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
raises the high watermark again by itself.) How one is written is told in kcli.log.files.whole_file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.format import limits
from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.file_names import FileKind
from kcli.format.primitives import FormatError
from kcli.log.disk.flush_request import FlushRequest
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.whole_file import WholeFile
from kcli.log.report_line import WarningLine

TopicPartition = tuple[str, int]


class OffsetCheckpointFile:
    """The checkpoint of one kind in the log directory `directory`; `file` writes it."""

    __slots__ = ("_disk", "file")

    def __init__(self, disk: Disk, directory: str, kind: FileKind) -> None:
        self.file = WholeFile(disk, join_path(directory, kind.value))
        self._disk = disk

    @property
    def path(self) -> str:
        """Where it lies."""
        return self.file.path

    def read(self, report: Callable[[str], None]) -> dict[TopicPartition, int]:
        """(topic, partition) -> offset; empty where the file is missing, or malformed, which is reported. Raises OSError."""
        if not self._disk.exists(self.path):
            return {}
        data = self._disk.read_file(self.path, limits.MAX_TEXT_FILE_BYTES)
        try:
            offsets = decode_offset_checkpoint(data).offsets()
        except FormatError as error:
            text = f"{self.path}: {error.message}; it is taken for empty and will be written anew"
            report(WarningLine(text, path=self.path, error=error.message))
            return {}
        self.file.is_known_to_hold(data)
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int], done: Callable[[OSError | None], None]) -> FlushRequest | None:
        """Begin to write; see WholeFile.write. Raises OSError."""
        return self.file.write(_encode(offsets), done)

    def write_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write and wait for the device: at a clean stop. Raises OSError."""
        self.file.write_now(_encode(offsets))


def _encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_offset_checkpoint(PartitionOffset(topic, partition, offset) for (topic, partition), offset in offsets.items())

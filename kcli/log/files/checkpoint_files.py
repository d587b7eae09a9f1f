"""The offset checkpoints of a log directory, which a broker replaces as a whole while it runs, without waiting for the device.

    file                               contents, per partition                          missing or malformed
    ---------------------------------  -----------------------------------------------  ------------------------------
    recovery-point-offset-checkpoint   the offset below which the log is on the device  0: the whole log is recovered
    log-start-offset-checkpoint        the log start offset, if it is above the base    that base offset
                                       offset of the first segment
    replication-offset-checkpoint      the high watermark                               the log start offset
    cleaner-offset-checkpoint          the end of the cleaned part of the log           the log start offset

Everything in an offset checkpoint can be derived from the logs at some cost. A malformed one is therefore reported and treated
as empty, as Kafka does with the first two. (With a malformed third file Kafka takes the log directory offline; a leader raises
the high watermark again by itself.)

    write                                    effect
    ---------------------------------------  ---------------------------------------------------------------------
    while no other write is in progress      by way of `<name>.tmp`, see kcli.log.disk.flush_request
    while another write is in progress       begins when that one has ended; of several writes only the last is done
    of the bytes that the file has           none
    at a clean stop (`write_now`)            waits for the device
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.format import limits
from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.file_names import FileKind
from kcli.format.primitives import FormatError, TopicPartition
from kcli.log.disk.flush_request import FlushRequest, FlushSequence, begin_flushes, replace_file
from kcli.log.disk.port import Disk, join_path
from kcli.log.report_line import WarningLine

OnError = Callable[[OSError], None]


class OffsetCheckpointFile:
    """One of the four offset checkpoints; `_written` are the bytes that it is known to have."""

    __slots__ = ("_disk", "_in_flight", "_next", "_times_written_now", "_written", "path")

    def __init__(self, disk: Disk, directory: str, kind: FileKind) -> None:
        self.path = join_path(directory, kind.value)
        self._disk = disk
        self._written: bytes | None = None
        self._in_flight = False
        self._next: bytes | None = None
        self._times_written_now = 0

    def read(self, report: Callable[[str], None]) -> dict[TopicPartition, int]:
        """Return the offsets; a malformed file is reported and treated as empty. Raises OSError."""
        if not self._disk.exists(self.path):
            return {}
        data = self._disk.read_file(self.path, limits.MAX_TEXT_FILE_BYTES)
        try:
            offsets = decode_offset_checkpoint(data).offsets()
        except FormatError as error:
            text = f"{self.path}: {error.message}; it is treated as empty and will be rewritten"
            report(WarningLine(text, path=self.path, error=error.message))
            return {}
        self._written = data
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int], on_error: OnError) -> FlushRequest | None:
        """Begin to replace the file; None if nothing changed or an earlier write has to end first.

        `on_error` is called if the disk refuses the file.
        """
        data = _encode(offsets)
        if self._in_flight:
            self._next = data
            return None
        return begin_flushes(self._replace(data, on_error))

    def write_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file and wait for the device. Raises OSError."""
        data = _encode(offsets)
        if self._in_flight or data != self._written:
            self._times_written_now += 1
            self._in_flight = False
            self._disk.write_file(self.path, data)
            self._written = data
        self._next = None

    def _replace(self, data: bytes, on_error: OnError) -> FlushSequence[None]:
        times = self._times_written_now
        while data != self._written:
            self._in_flight, self._written = True, None
            try:
                yield from replace_file(self._disk, self.path, data, lambda: times == self._times_written_now)
            except OSError as error:
                self._in_flight, self._next = False, None
                on_error(error)
                return
            if times != self._times_written_now:
                return  # `write_now` has replaced the file, and the temporary one with it
            self._written = data
            data, self._next = data if self._next is None else self._next, None
        self._in_flight = False


def _encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_offset_checkpoint(PartitionOffset(topic, partition, offset) for (topic, partition), offset in offsets.items())

"""The states of the three coordinators out of their topics: groups, transactional ids, share groups.

    topic                 a partition's log is                                    becomes
    --------------------  ------------------------------------------------------  ------------------------
    __consumer_offsets    read to its end; markers end transactions of the same   a GroupState a partition
                          partition only
    __transaction_state   read to its end; of each key the last record counts     a TransactionState
    __share_group_state   read to its end                                         a ShareGroupState

A coordinator loads its topic in the same way: all that is in the log, not only what is below the high watermark.

Most records of __consumer_offsets are commits that a later one replaced. To decode a record takes some 20 us, to pass over it
less than one, so a commit waits undecoded until its key's last one is known. It may: commits outside of transactions replace
each other whole, and what stands between them looks at them only where it deletes a group, of any kind. Keys that were ever
committed within a transaction do not wait, since there markers decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcli.format.primitives import FormatError
from kcli.format.record_batch import NO_PRODUCER_ID, RecordBatch
from kcli.inspect.description.internal_logs import decoded, is_control, open_log
from kcli.inspect.description.remarks import Remarks
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import PartitionDirectory
from kcli.protocol.control_records import COMMIT, decode_control_record
from kcli.protocol.internal_records import OFFSETS, SHARE_GROUP_STATE, TRANSACTION_LOG, Decoder
from kcli.state.errors import StateError
from kcli.state.group_state import GroupState
from kcli.state.share_group_state import ShareGroupState
from kcli.state.transaction_state import TransactionState

if TYPE_CHECKING:
    from kcli.inspect.description.internal_logs import Header
    from kcli.log.reading.batch_records import RecordWindow

# The first two bytes of a key: the types of OffsetCommitKey, and of the keys that stand for a group itself: GroupMetadataKey,
# ConsumerGroupMetadataKey, ShareGroupMetadataKey, StreamsGroupMetadataKey.
_COMMIT_TYPES = (b"\x00\x00", b"\x00\x01")
_GROUP_TYPES = (b"\x00\x02", b"\x00\x03", b"\x00\x0b", b"\x00\x11")


def read_groups(disk: Disk, partition: PartitionDirectory, remarks: Remarks) -> GroupState:
    """The groups of one partition of __consumer_offsets."""
    reader = _GroupReader(partition.path, remarks)
    for header, window in open_log(disk, partition, remarks):
        if is_control(header):
            reader.apply_markers(header, window)
        else:
            reader.apply_records(header, window)
    reader.apply_waiting()
    return reader.state


class _GroupReader:
    """Applies the records of one partition; `waiting` are commits, undecoded: key -> offset, key and value of the record.

    Keys are told apart by what follows their type, which is laid out alike in both.
    """

    def __init__(self, path: str, remarks: Remarks) -> None:
        self.state = GroupState()
        self.waiting: dict[bytes, tuple[int, bytes, bytes | None]] = {}
        self._path = path
        self._remarks = remarks
        self._transactional_keys: set[bytes] = set()

    def apply_records(self, header: Header, window: RecordWindow) -> None:
        is_transactional = isinstance(header, RecordBatch) and header.is_transactional
        producer_id = header.producer_id if is_transactional and isinstance(header, RecordBatch) else NO_PRODUCER_ID
        for index in range(window.count):
            offset = window.columns.offset[index]
            key, value = window.key(index), window.value(index)
            kind = b"" if key is None else key[:2]
            if key is not None and kind in _COMMIT_TYPES:
                name = key[2:]
                if is_transactional and name not in self._transactional_keys:
                    self._transactional_keys.add(name)
                    self._apply_one_waiting(name)
                if name not in self._transactional_keys:
                    self.waiting[name] = (offset, key, value)
                    continue
            elif kind in _GROUP_TYPES and value is None:
                self.apply_waiting()
            self._apply(offset, key, value, producer_id)

    def apply_waiting(self) -> None:
        """Apply the commits that wait, in the order of their offsets."""
        for offset, key, value in sorted(self.waiting.values(), key=lambda record: record[0]):
            self._apply(offset, key, value, NO_PRODUCER_ID)
        self.waiting.clear()

    def _apply_one_waiting(self, name: bytes) -> None:
        found = self.waiting.pop(name, None)
        if found is not None:
            self._apply(*found, NO_PRODUCER_ID)

    def _apply(self, offset: int, key: bytes | None, value: bytes | None, producer_id: int) -> None:
        record = decoded(OFFSETS, self._path, offset, key, value, self._remarks)
        if record is None or record[0] is None:
            return
        try:
            self.state.apply(record[0], record[1], offset, producer_id)
        except StateError as error:
            self._remarks.problem(self._path, f"the record at offset {offset} does not fit those before it: {error.message}")

    def apply_markers(self, header: Header, window: RecordWindow) -> None:
        """End the transactions that a control batch ends."""
        if not isinstance(header, RecordBatch):
            return
        for index in range(window.count):
            try:
                control = decode_control_record(window.key(index), window.value(index))
            except FormatError as error:
                at = window.columns.offset[index]
                self._remarks.problem(self._path, f"the control record at offset {at} cannot be read: {error.message}")
                continue
            if control.is_marker:
                self.state.apply_marker(header.producer_id, control.type_id == COMMIT)


def read_transactions(disk: Disk, partition: PartitionDirectory, state: TransactionState, remarks: Remarks) -> None:
    """Apply one partition of __transaction_state."""
    last: dict[bytes | None, tuple[int, bytes | None]] = {}
    for header, window in open_log(disk, partition, remarks):
        if not is_control(header):
            for index in range(window.count):
                last[window.key(index)] = (window.columns.offset[index], window.value(index))
    for key, (offset, value) in last.items():
        _apply(TRANSACTION_LOG, state, partition.path, offset, key, value, remarks)


def read_share_state(disk: Disk, partition: PartitionDirectory, state: ShareGroupState, remarks: Remarks) -> None:
    """Apply one partition of __share_group_state."""
    for header, window in open_log(disk, partition, remarks):
        if not is_control(header):
            for index in range(window.count):
                offset = window.columns.offset[index]
                _apply(SHARE_GROUP_STATE, state, partition.path, offset, window.key(index), window.value(index), remarks)


def _apply(
    decoder: Decoder,
    state: TransactionState | ShareGroupState,
    path: str,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    remarks: Remarks,
) -> None:
    record = decoded(decoder, path, offset, key, value, remarks)
    if record is None or record[0] is None:
        return
    try:
        state.apply(record[0], record[1])
    except StateError as error:
        remarks.problem(path, f"the record at offset {offset} does not fit those before it: {error.message}")

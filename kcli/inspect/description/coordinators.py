"""The states of the three coordinators, loaded from their topics: groups, transactional ids, share groups.

    topic                 the log of a partition is                               result
    --------------------  ------------------------------------------------------  ------------------------
    __consumer_offsets    read to its end; markers end transactions of the same   a GroupState a partition
                          partition only
    __transaction_state   read to its end; of each key the last record counts     a TransactionState
    __share_group_state   read to its end                                         a ShareGroupState

A coordinator loads its topic in the same way: all records of the log, also those above the high watermark.

Most records of __consumer_offsets are commits that a later one replaced. Decoding a record takes some 20 us, skipping it less
than one, so commits are kept undecoded, and only the last one of each key is decoded. This does not change the state: a commit
outside of a transaction replaces the one before, and the records between them read commits only when they delete a group. Keys
that were ever committed in a transaction are decoded at once, because there markers decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kcli.format.primitives import FormatError
from kcli.format.record_batch import NO_PRODUCER_ID, RecordBatch
from kcli.inspect.description.internal_logs import decoded, is_control, open_log
from kcli.inspect.description.remarks import Remarks
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import PartitionDirectory
from kcli.protocol.control_records import COMMIT, decode_control_record
from kcli.protocol.internal_records import OFFSETS, SHARE_GROUP_STATE, TRANSACTION_LOG, Decoder
from kcli.state.group_state import GroupState
from kcli.state.share_group_state import ShareGroupState
from kcli.state.state_error import StateError
from kcli.state.transaction_state import TransactionState

if TYPE_CHECKING:
    from kcli.inspect.description.internal_logs import Header
    from kcli.log.reading.batch_records import RecordWindow
    from kcli.protocol.message import Message

# The first two bytes of a key: the types of OffsetCommitKey, and of the keys of a group itself: GroupMetadataKey,
# ConsumerGroupMetadataKey, ShareGroupMetadataKey, StreamsGroupMetadataKey.
_COMMIT_TYPES = (b"\x00\x00", b"\x00\x01")
_GROUP_TYPES = (b"\x00\x02", b"\x00\x03", b"\x00\x0b", b"\x00\x11")


def read_groups(disk: Disk, partition: PartitionDirectory, remarks: Remarks) -> GroupState:
    """Read the groups of one partition of __consumer_offsets."""
    reader = _GroupReader(partition.path, remarks)
    for header, window in open_log(disk, partition, remarks):
        if is_control(header):
            reader.apply_markers(header, window)
        else:
            reader.apply_records(header, window)
    reader.apply_waiting()
    return reader.state


class _GroupReader:
    """Applies the records of one partition. `waiting` has the undecoded commits: offset, key and value of the record by name.

    The name of a commit is its key without the type: both types have the same layout after it.
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
        def apply(decoded_key: Message, decoded_value: Message | None) -> None:
            self.state.apply(decoded_key, decoded_value, offset, producer_id)

        _apply(OFFSETS, apply, self._path, offset, key, value, self._remarks)

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
        _apply(TRANSACTION_LOG, state.apply, partition.path, offset, key, value, remarks)


def read_share_state(disk: Disk, partition: PartitionDirectory, state: ShareGroupState, remarks: Remarks) -> None:
    """Apply one partition of __share_group_state."""
    for header, window in open_log(disk, partition, remarks):
        if not is_control(header):
            for index in range(window.count):
                offset = window.columns.offset[index]
                _apply(SHARE_GROUP_STATE, state.apply, partition.path, offset, window.key(index), window.value(index), remarks)


def _apply(
    decoder: Decoder,
    apply: Callable[[Message, Message | None], None],
    path: str,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    remarks: Remarks,
) -> None:
    """Decode a record and apply it; what cannot be decoded or applied becomes a remark."""
    record = decoded(decoder, path, offset, key, value, remarks)
    if record is None or record[0] is None:
        return
    try:
        apply(record[0], record[1])
    except StateError as error:
        remarks.problem(path, f"the record at offset {offset} does not fit those before it: {error.message}")

"""Makes the records that consumer, share and streams groups have alike in __consumer_offsets (KIP-848, KIP-932, KIP-1071).

record (key, value)                     has                                        of
--------------------------------------  -----------------------------------------  -------------------------
<kind>TargetAssignmentMetadata          the epoch of the target, and its time      all
<kind>TargetAssignmentMember            the partitions that a member is to have    consumer and share groups
any other                               (the modules of the kinds)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.state.groups import Partitions


class GroupRecordMaker:
    """Makes records whose names begin with `kind`: ConsumerGroup, ShareGroup or StreamsGroup."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def record(self, name: str, key: Mapping[str, str], value: Mapping[str, Any] | None) -> CoordinatorRecord:
        """Make a record, a tombstone if `value` is None."""
        made = None if value is None else message_type("group_records", f"{self._kind}{name}Value").new(**value)
        return CoordinatorRecord(message_type("group_records", f"{self._kind}{name}Key").new(**key), made)

    def struct(self, name: str, struct: str, /, **fields: Any) -> Message:
        """Make a struct of a value."""
        return message_type("group_records", f"{self._kind}{name}Value").classes[struct](**fields)

    def target_epoch(self, group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
        """Make the record of the epoch of the target assignment, which was made at `now_ms` on the wall clock."""
        value = {"assignment_epoch": epoch, "assignment_timestamp": now_ms}
        return self.record("TargetAssignmentMetadata", {"group_id": group_id}, value)

    def target(self, group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
        """Make the record of a member's target."""
        topics = [
            self.struct("TargetAssignmentMember", "TopicPartition", topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
        key = {"group_id": group_id, "member_id": member_id}
        return self.record("TargetAssignmentMember", key, {"topic_partitions": topics})

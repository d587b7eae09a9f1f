"""The settings of one share group: those of the group, else those of the broker (Kafka: ShareGroupConfigProvider, GroupConfig).

key of a group                    default
--------------------------------  --------------------------------------
share.record.lock.duration.ms     group.share.record.lock.duration.ms
share.delivery.count.limit        group.share.delivery.count.limit
share.partition.max.record.locks  group.share.partition.max.record.locks
share.isolation.level             read_uncommitted
share.auto.offset.reset           latest
share.renew.acknowledge.enable    true
errors.deadletterqueue.*          see kcli.server.replication.share.dead_letters
"""

from __future__ import annotations

import re

from kcli.server.config.group_configs import GroupConfigs

LATEST, EARLIEST = "latest", "earliest"
_BY_DURATION = "by_duration:"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", re.IGNORECASE)


class ShareGroupConfig(GroupConfigs):
    """The present settings of share groups by the id of the group."""

    def record_lock_duration_ms(self, group_id: str) -> int:
        """Return how long a member holds records that it has acquired, in ms."""
        return self.get_int(group_id, "group.share.record.lock.duration.ms")

    def delivery_count_limit(self, group_id: str) -> int:
        """Return how often a record is delivered at most."""
        return self.get_int(group_id, "group.share.delivery.count.limit")

    def max_record_locks(self, group_id: str) -> int:
        """Return how many records of a partition may be in flight."""
        return self.get_int(group_id, "group.share.partition.max.record.locks")

    def is_renew_enabled(self, group_id: str) -> bool:
        """Return whether members may renew their acquisition locks."""
        return bool(self.own(group_id, "share.renew.acknowledge.enable"))

    def is_read_committed(self, group_id: str) -> bool:
        """Return whether the group gets the records of committed transactions only."""
        return str(self.own(group_id, "share.isolation.level")).lower() == "read_committed"

    def dead_letter_topic(self, group_id: str) -> str:
        """Return the topic of a group's dead letter queue, "" if it has none."""
        return str(self.own(group_id, "errors.deadletterqueue.topic.name") or "")

    def copies_dead_letters(self, group_id: str) -> bool:
        """Return whether the records in a group's dead letter queue have the keys and values of the records that failed."""
        return bool(self.own(group_id, "errors.deadletterqueue.copy.record.enable"))

    def auto_offset_reset(self, group_id: str) -> str | int:
        """Return where a group begins in a partition: LATEST, EARLIEST, or how many ms ago."""
        text = str(self.own(group_id, "share.auto.offset.reset"))
        return duration_ms(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else text


def duration_ms(text: str) -> int:
    """Return an ISO 8601 duration of days, hours, minutes and seconds in ms. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as PT1H")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    fraction_ms = int((found[5] or "0").ljust(9, "0")) // 1_000_000
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms

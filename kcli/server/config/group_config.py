"""The configuration of groups: valid names and values, the bounds that the brokers set, and the settings of one group.

Kafka: GroupConfig, GroupConfigManager, ShareGroupConfigProvider.

    key of a group                        range
    ------------------------------------  -----------------------------------------------------------------------------
    <kind>.session.timeout.ms             from group.<kind>.min.session.timeout.ms to group.<kind>.max...; above the
                                          heartbeat interval
    <kind>.heartbeat.interval.ms          from group.<kind>.min.heartbeat.interval.ms to group.<kind>.max...
    <kind>.assignment.interval.ms         from group.<kind>.min.assignment.interval.ms to group.<kind>.max...
    share.record.lock.duration.ms         from group.share.min.record.lock.duration.ms to ...max...
    share.delivery.count.limit            from group.share.min.delivery.count.limit to ...max...
    share.partition.max.record.locks      from group.share.min.partition.max.record.locks to ...
    streams.num.standby.replicas          up to group.streams.max.standby.replicas
    streams.assignor.name                 one of group.streams.assignors
    streams.rack.aware.assignment.tags    no tag twice
    errors.deadletterqueue.topic.name     does not begin with __

<kind> is consumer, share or streams. A setting of a group is the group's own, else that of the broker's key, which is the same
with `group.` before it: consumer.session.timeout.ms, group.consumer.session.timeout.ms. Keys of a share group without a broker
key have these defaults: share.isolation.level read_uncommitted, share.auto.offset.reset latest, share.renew.acknowledge.enable
true; errors.deadletterqueue.*: see kcli.server.replication.share.dead_letters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kcli.server.config.definitions import GROUP_KEYS
from kcli.server.config.request_errors import invalid_config, requested_value
from kcli.server.config.server_config import ConfigReader, ServerConfig
from kcli.server.config.values import ConfigValue, as_int, as_list, default_value, is_repeated, parse_value
from kcli.server.metadata_cache import MetadataCache
from kcli.state.metadata_values import ConfigResource

KINDS = ("consumer", "share", "streams")
# A group's key -> the broker keys of its lowest and highest value; "" for none.
_BOUNDS = {
    f"{kind}.{what}": (f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
    for kind in KINDS
    for what in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
} | {
    f"share.{what}": (f"group.share.min.{what}", f"group.share.max.{what}")
    for what in ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks")
}
_BOUNDS["streams.num.standby.replicas"] = ("", "group.streams.max.standby.replicas")
_BOUNDS["streams.num.warmup.replicas"] = ("", "group.streams.max.warmup.replicas")
_BOUNDS["streams.task.offset.interval.ms"] = ("group.streams.min.task.offset.interval.ms", "")


def group_defaults(config: ServerConfig) -> dict[str, ConfigValue]:
    """Return the values of a group's keys if the group sets none."""
    return {key.name: config[key.broker_keys[0]] if key.broker_keys else default_value(key) for key in GROUP_KEYS.definitions()}


def check_group_config(config: ServerConfig, overrides: Mapping[str, str]) -> None:
    """Check a group's configuration. Raises ConfigRequestError (INVALID_CONFIG)."""
    values = group_defaults(config)
    for name, text in overrides.items():
        values[name] = requested_value(GROUP_KEYS, "groups", name, text)
    for name in overrides:
        for bound_key, sign, word in zip(_BOUNDS.get(name, ()), (1, -1), ("below", "above")):
            if bound_key and sign * as_int(values[name]) < sign * config.get_int(bound_key):
                raise invalid_config(f"{name}={values[name]} must not be {word} {bound_key}={config[bound_key]} of the brokers")
    assignor, assignors = overrides.get("streams.assignor.name"), config.get_list("group.streams.assignors")
    if assignor is not None and assignor.strip() not in assignors:
        raise invalid_config(f"streams.assignor.name={assignor} is not one of group.streams.assignors={','.join(assignors)}")
    if overrides.get("errors.deadletterqueue.topic.name", "").strip().startswith("__"):
        raise invalid_config("errors.deadletterqueue.topic.name must not begin with __")
    if is_repeated(overrides.get("streams.rack.aware.assignment.tags", "")):
        raise invalid_config("streams.rack.aware.assignment.tags must not contain a tag twice")
    for kind in KINDS:
        session, heartbeat = as_int(values[f"{kind}.session.timeout.ms"]), as_int(values[f"{kind}.heartbeat.interval.ms"])
        if session <= heartbeat:
            raise invalid_config(f"{kind}.session.timeout.ms={session} must be above {kind}.heartbeat.interval.ms={heartbeat}")


_BROKER_PREFIX = "group."


class GroupConfigs:
    """The present settings of groups by the id of the group."""

    def __init__(self, config: ConfigReader, metadata: MetadataCache) -> None:
        self._config = config
        self._metadata = metadata

    def _value(self, group_id: str, name: str) -> ConfigValue | None:
        """Return the value that the group has set, None if it has not."""
        configs = self._metadata.image.configs.get(ConfigResource("GROUP", group_id))
        text = None if configs is None else configs.get(name)
        return None if text is None else parse_value(GROUP_KEYS[name], text)

    def get_int(self, group_id: str, broker_key: str) -> int:
        """Return a setting of the group, or the broker's, whose key begins with `group.`."""
        value = self._value(group_id, broker_key.removeprefix(_BROKER_PREFIX))
        return self._config.get_int(broker_key) if value is None else as_int(value)

    def get_list(self, group_id: str, broker_key: str) -> list[str]:
        """Return a setting of the group that is a list, or the broker's."""
        value = self._value(group_id, broker_key.removeprefix(_BROKER_PREFIX))
        return self._config.get_list(broker_key) if value is None else as_list(value)

    def own(self, group_id: str, name: str) -> ConfigValue:
        """Return a setting that only groups have, or its default."""
        value = self._value(group_id, name)
        return default_value(GROUP_KEYS[name]) if value is None else value


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

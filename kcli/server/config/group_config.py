"""A group's configuration: valid names and values, and the bounds that the brokers set (Kafka's GroupConfig.validate).

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

<kind> is consumer, share or streams. The defaults of a group's keys are the values of broker keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.server.config.definitions import GROUP_KEYS
from kcli.server.config.request_errors import invalid_config, requested_value
from kcli.server.config.server_config import ServerConfig
from kcli.server.config.values import ConfigValue, as_int, default_value, is_repeated

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

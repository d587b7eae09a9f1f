"""A topic's configuration: what stands for it in the broker's, what it is in effect, and what it may be set to.

    a topic key's value comes from, first found wins     as
    ---------------------------------------------------  ------------------------------------------------------------
    the topic's own configuration (ConfigRecords)        text, kept as it was sent
    the broker keys behind it (keys.txt)                 log.retention.ms|minutes|hours for retention.ms, ...
    keys.txt                                             its default

Rules for new values (Kafka's LogConfig.validate): names must be Kafka's, values valid each by itself, and together
min.compaction.lag.ms may not be above max.compaction.lag.ms; with remote.storage.enable, which needs tiered storage, a few
more. A null is refused by whoever reads the request.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.server.config.definitions import TOPIC_KEYS
from kcli.server.config.request_errors import invalid_config
from kcli.server.config.server_config import ConfigReader
from kcli.server.config.values import ConfigError, ConfigValue, format_value, nearest_name, parse_value


def topic_defaults(config: ConfigReader) -> dict[str, str]:
    """What a topic's keys are where it has no configuration of its own, as text."""
    derived = config.current.derived
    found = derived.get("topic defaults")
    if found is None:
        found = {}
        for key in TOPIC_KEYS.definitions():
            text = format_value(config[key.broker_keys[0]]) if key.broker_keys else key.default
            if text is not None:
                found[key.name] = text
        derived["topic defaults"] = found
    return dict(found)


def effective_topic_config(config: ConfigReader, overrides: Mapping[str, str]) -> dict[str, str]:
    """What a topic's keys are in effect, as text: for LogConfig.of."""
    return {**topic_defaults(config), **overrides}


def check_topic_config(config: ConfigReader, overrides: Mapping[str, str]) -> None:
    """Refuse a topic's configuration that is not valid. Raises ConfigRequestError (INVALID_CONFIG)."""
    parsed: dict[str, ConfigValue] = {}
    for name, text in effective_topic_config(config, overrides).items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            raise invalid_config(f"{name} is no configuration of topics{nearest_name(name, TOPIC_KEYS)}")
        try:
            parsed[name] = parse_value(key, text)
        except ConfigError as error:
            raise invalid_config(str(error)) from error
    lowest, highest = parsed["min.compaction.lag.ms"], parsed["max.compaction.lag.ms"]
    if lowest > highest:
        raise invalid_config(f"min.compaction.lag.ms={lowest} must not be above max.compaction.lag.ms={highest}")
    if parsed["remote.storage.enable"] and not config["remote.log.storage.system.enable"]:
        raise invalid_config("remote.storage.enable=true needs tiered storage, which this cluster does not have")

"""The refusal of a request about configurations: one of Kafka's error codes, and a sentence; the check of one value."""

from __future__ import annotations

from kcli.protocol.error_codes import INVALID_CONFIG, INVALID_REQUEST
from kcli.server.config.definitions import ConfigTable
from kcli.server.config.values import ConfigError, ConfigValue, nearest_name, parse_value


class ConfigRequestError(Exception):
    """A refused request, or its part for one resource; `code` is Kafka's error code."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def invalid_config(sentence: str) -> ConfigRequestError:
    """Return the error for an invalid name, value or combination of values."""
    return ConfigRequestError(INVALID_CONFIG, sentence)


def invalid_request(sentence: str) -> ConfigRequestError:
    """Return the error for an invalid request."""
    return ConfigRequestError(INVALID_REQUEST, sentence)


def requested_value(table: ConfigTable, resources: str, name: str, text: str) -> ConfigValue:
    """Parse a value for a key of `resources` ("topics"). Raises ConfigRequestError (INVALID_CONFIG)."""
    key = table.get(name)
    if key is None:
        raise invalid_config(f"{name} is not a configuration of {resources}{nearest_name(name, table)}")
    try:
        return parse_value(key, text)
    except ConfigError as error:
        raise invalid_config(str(error)) from error

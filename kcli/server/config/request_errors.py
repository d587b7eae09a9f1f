"""The refusal of a request about configurations: one of Kafka's error codes, and a sentence."""

from __future__ import annotations

from kcli.protocol.error_codes import INVALID_CONFIG, INVALID_REQUEST


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

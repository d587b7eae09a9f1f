"""What a request about configurations is refused with: one of Kafka's error codes, and a sentence."""

from __future__ import annotations

from kcli.protocol.error_codes import INVALID_CONFIG, INVALID_REQUEST


class ConfigRequestError(Exception):
    """A request, or the part of it for one resource, that is refused; `code` is Kafka's."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def invalid_config(sentence: str) -> ConfigRequestError:
    """A configuration whose value, name or combination is not valid."""
    return ConfigRequestError(INVALID_CONFIG, sentence)


def invalid_request(sentence: str) -> ConfigRequestError:
    """A request that asks for what cannot be."""
    return ConfigRequestError(INVALID_REQUEST, sentence)

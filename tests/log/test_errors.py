"""Protects the error codes of log/: they are Kafka's, and those of kcli.protocol, which log/ may not import."""

from __future__ import annotations

from kcli.log import errors
from kcli.log.errors import AppendError, LogError, StorageError
from kcli.protocol import error_codes


def test_codes_are_those_of_the_protocol() -> None:
    """The docstring of each class begins with Kafka's name of its code, and kcli.protocol has the same number for that name."""
    classes = [
        found
        for found in vars(errors).values()
        if isinstance(found, type)
        and issubclass(found, (LogError, StorageError))
        and found not in (LogError, AppendError, StorageError)
    ]
    assert len(classes) == 26
    for found in classes:
        kafka_name, separator, _ = (found.__doc__ or "").partition(":")
        assert separator
        assert getattr(error_codes, kafka_name) == found.code

"""Protects the error codes of log/: they are Kafka's, and those of kcli.protocol, which log/ may not import."""

from __future__ import annotations

from kcli.log import errors
from kcli.log.errors import AppendError, LogError, StorageError
from kcli.protocol import error_codes


def test_codes_are_those_of_the_protocol() -> None:
    """The table at the head of the module names each class, its code and Kafka's name, and all three are true."""
    rows = [line.split() for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    named = {row[0]: (int(row[1]), row[2]) for row in rows if row[0].endswith("Error")}
    classes = {
        name: found
        for name, found in vars(errors).items()
        if isinstance(found, type)
        and issubclass(found, (LogError, StorageError))
        and found not in (LogError, AppendError, StorageError)
    }
    assert named.keys() == classes.keys()
    for name, (code, kafka_name) in named.items():
        assert classes[name].code == code
        assert getattr(error_codes, kafka_name) == code

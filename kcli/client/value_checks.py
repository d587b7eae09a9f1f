"""Checks of what an application passes to a client, so that it fails in its own call and not in a later request.

value             range
----------------  ---------------------------------
topic             kcli.state.topic_names; as from a broker, the error is INVALID_TOPIC_EXCEPTION
partition         0 to 2**31 - 1
offset            0 to 2**63 - 1
leader epoch      -1 (not known) to 2**31 - 1
timestamp (ms)    -2**63 to 2**63 - 1

The arguments of the many operations of an admin client are held to their annotations: a text is not a list of texts.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union, get_args, get_origin

from kcli.client.cluster import NO_EPOCH
from kcli.client.errors import KafkaError
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.state.topic_names import topic_name_fault

MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, or a committed one: that of the next record; `leader_epoch` is that of the record before it.

    `metadata` is a text that the group keeps with the offset. The order is that of Kafka's OffsetAndMetadata.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


def _check(value: int, lowest: int, highest: int, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ValueError(f"{what} must be a whole number from {lowest} to {highest}, not {value!r}")


def check_topic(topic: str) -> None:
    """Check the name of a topic. Raises TypeError, KafkaError."""
    if not isinstance(topic, str):
        raise TypeError(f"the name of a topic is a text, not {topic!r}")
    fault = topic_name_fault(topic)
    if fault is not None:
        raise KafkaError(error_codes.INVALID_TOPIC_EXCEPTION, fault)


def checked_topics(topics: Iterable[str]) -> frozenset[str]:
    """Return the topics of a subscription. Raises TypeError, also for a text, whose letters would be topics; KafkaError."""
    if isinstance(topics, str):
        raise TypeError(f"subscribe takes a list of topics, not a text: [{topics!r}]")
    wanted = list(topics)
    for topic in wanted:
        check_topic(topic)
    return frozenset(wanted)


def checked_partitions(partitions: Iterable[TopicPartition] | str) -> list[TopicPartition]:
    """Return partitions as plain pairs. Raises TypeError, ValueError, KafkaError."""
    if isinstance(partitions, str):
        raise TypeError(f"partitions are a list of (topic, number), not a text: [({partitions!r}, 0)]")
    if not isinstance(partitions, Iterable):
        raise TypeError(f"partitions are a list of (topic, number), not {partitions!r}")
    found = []
    for one in partitions:
        if not isinstance(one, Sequence) or isinstance(one, str) or len(one) != 2:
            raise TypeError(f"a partition is a pair (topic, number), not {one!r}")
        topic, number = one
        check_topic(topic)
        _check(number, 0, MAX_INT32, f"the number of a partition of {topic}")
        found.append((topic, number))
    return found


def check_offset(offset: int, leader_epoch: int = NO_EPOCH) -> None:
    """Check a position. Raises ValueError."""
    _check(offset, 0, MAX_INT64, "an offset")
    _check(leader_epoch, NO_EPOCH, MAX_INT32, "a leader epoch")


def check_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Check offsets that are to be committed. Raises TypeError, ValueError, KafkaError."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are a dict of (topic, number) to OffsetAndMetadata, not {offsets!r}")
    checked_partitions(offsets)
    for one in offsets.values():
        if not isinstance(one, OffsetAndMetadata):
            raise TypeError(f"an offset to commit is an OffsetAndMetadata, not {one!r}")
        check_offset(one.offset, one.leader_epoch)
        if not isinstance(one.metadata, str):
            raise TypeError(f"the metadata of an offset is a text, not {one.metadata!r}")


def check_callable(function: object, what: str) -> None:
    """Check a callback that may be None. Raises TypeError."""
    if function is not None and not callable(function):
        raise TypeError(f"{what} is a function or None, not {function!r}")


def check_timeout(timeout: float | None) -> None:
    """Check a time to wait, in seconds. Raises TypeError."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout):
        raise TypeError(f"a timeout is a number of seconds, not {timeout!r}")


def check_times(times: Mapping[TopicPartition, int]) -> None:
    """Check times of records, in ms. Raises TypeError, ValueError, KafkaError."""
    if not isinstance(times, Mapping):
        raise TypeError(f"timestamps are a dict of (topic, number) to ms, not {times!r}")
    checked_partitions(times)
    for time in times.values():
        _check(time, 0, MAX_INT64, "a timestamp")


def check_timestamps(timestamps: Mapping[TopicPartition, int]) -> None:
    """Check timestamps to find offsets by. Raises TypeError, ValueError, KafkaError."""
    checked_partitions(timestamps)
    for timestamp in timestamps.values():
        _check(timestamp, -MAX_INT64 - 1, MAX_INT64, "a timestamp")


# ---------------------------------------------------------------------------------------------------------- annotations

_NAMES: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "truth value", bytes: "bytes"}


@functools.cache
def _annotations(function: Callable[..., object]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return the signature of a function and the types of its parameters, without those that only type checkers know."""
    signature, names = inspect.signature(function), function.__globals__
    found: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        try:
            found[name] = eval(parameter.annotation, names) if isinstance(parameter.annotation, str) else parameter.annotation
        except NameError:
            continue
    return signature, found


def check_arguments(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Hold the arguments of a call to the annotations of a function. Raises TypeError, as the call itself does."""
    signature, annotations = _annotations(function)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        wanted = annotations.get(name)
        if wanted is not None and not _fits(value, wanted):
            raise TypeError(f"{function.__name__}: {name} is {_described(wanted)}, not {value!r}")


def _fits(value: object, wanted: Any) -> bool:
    """Return whether a value has a type; types that are not known here fit, and iterators are not looked into."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in parts)
    if wanted in (None, types.NoneType):
        return value is None
    if wanted in (int, float):
        return isinstance(value, int if wanted is int else int | float) and not isinstance(value, bool)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        inner = [parts[0]] * len(value) if parts[-1:] == (...,) else parts
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if origin is not None and issubclass(origin, Iterable):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            return False
        return not isinstance(value, Collection) or all(_fits(one, parts[0]) for one in value)
    return not isinstance(wanted, type) or isinstance(value, wanted)


def _described(wanted: Any, article: str = "a ") -> str:
    """Return a type in words."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return " or ".join(_described(one, article) for one in parts)
    if wanted in (None, types.NoneType):
        return "None"
    if origin is tuple:
        return f"{article}pair of {' and '.join(_described(one, '') for one in parts)}"
    if origin is not None and issubclass(origin, Mapping):
        return f"{article}dict of {_described(parts[0], '')} to {_described(parts[1], '')}"
    if origin is not None and issubclass(origin, Iterable):
        return f"{article}list of {_described(parts[0], '')}"
    return article + _NAMES.get(wanted, getattr(wanted, "__name__", str(wanted)))

"""Spark's filters that allow the source to skip partitions, segments or offsets.

    filter on                                        reduces
    -----------------------------------------------  ------------------------------------------------------------------
    topic, partition: =, <=>, in, >, >=, <, <=       the partitions that are opened
    offset: =, <=>, in, >, >=, <, <=                 the bytes of their segments that are read
    timestamp: =, <=>, >, >=, <, <=                  the segments that are read, by the largest timestamp in the time index;
                                                     whole segments only, since timestamps need not ascend
    other columns                                    nothing

Spark still applies each filter, so the source may return more rows than pass the filter.

Filter push-down is only correct for a DataFrame that one query uses once. Spark 4.3.0 keeps the filters that a query has pushed
into a Python source for all later uses of the same DataFrame, also in another branch of the same query; the other filters are
not pushed, so rows are missing there. So push-down is off by default. The options for topics, offsets and times are safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from kcli.format.primitives import INT64_MAX


class Pushed(NamedTuple):
    """The topics and partitions (None: all), offsets [first, end) and least timestamp in ms (None: all) that filters allow."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    least_partition: int = 0
    most_partition: int = INT64_MAX
    first_offset: int = 0
    end_offset: int = INT64_MAX
    least_timestamp_ms: int | None = None

    def allows(self, topic: str, partition: int) -> bool:
        """Return True if records of the partition may pass the filters."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.least_partition <= partition <= self.most_partition
        )


def push_filters(filters: Iterable[Filter]) -> Pushed:
    """Return what a conjunction of filters allows."""
    pushed = Pushed()
    for given in filters:
        attribute: tuple[str, ...] = getattr(given, "attribute", ())
        if len(attribute) == 1:
            pushed = _narrow(pushed, attribute[0], given)
    return pushed


def _narrow(pushed: Pushed, column: str, given: Filter) -> Pushed:
    values = _values(given)
    if column == "topic" and values is not None:
        topics = frozenset(values)
        return pushed._replace(topics=topics if pushed.topics is None else topics & pushed.topics)
    if column == "partition" and values is not None:
        partitions = frozenset(values)
        return pushed._replace(partitions=partitions if pushed.partitions is None else partitions & pushed.partitions)
    low, high = _bounds(given)
    if column == "partition":
        return pushed._replace(
            least_partition=max(pushed.least_partition, low), most_partition=min(pushed.most_partition, high)
        )
    if column == "offset":
        return pushed._replace(first_offset=max(pushed.first_offset, low), end_offset=min(pushed.end_offset, high + 1))
    has_least = isinstance(given, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual)
    if column == "timestamp" and has_least and isinstance(given.value, datetime):
        least = int(given.value.timestamp() * 1000) - 1
        return pushed._replace(least_timestamp_ms=max(least, pushed.least_timestamp_ms or least))
    return pushed


def _values(given: Filter) -> tuple[Any, ...] | None:
    """Return the values that a column may have, or None if the filter does not list them."""
    if isinstance(given, EqualTo | EqualNullSafe):
        return (given.value,)
    if isinstance(given, In):
        return tuple(given.value)
    return None


def _bounds(given: Filter) -> tuple[int, int]:
    """Return the least and the largest number that pass the filter; 0 and INT64_MAX if the filter has no such bound."""
    values = _values(given)
    if values is not None:
        are_numbers = values and all(type(value) is int for value in values)
        return (min(values), max(values)) if are_numbers else (0, INT64_MAX)
    value = getattr(given, "value", None)
    if type(value) is int:
        if isinstance(given, GreaterThan | GreaterThanOrEqual):
            return value + isinstance(given, GreaterThan), INT64_MAX
        if isinstance(given, LessThan | LessThanOrEqual):
            return 0, value - isinstance(given, LessThan)
    return 0, INT64_MAX

"""Spark's filters as far as they let segments and partitions be passed over.

    filter on                                        narrows
    -----------------------------------------------  ------------------------------------------------------------------
    topic, partition: =, <=>, in, >, >=, <, <=       which partitions are opened
    offset: =, <=>, in, >, >=, <, <=                 which bytes of their segments are read
    timestamp: =, <=>, >, >=, <, <=                  which segments are read, by the largest timestamp that their time index
                                                     knows (times need not ascend, so no bytes within one)
    anything else                                    nothing

Each filter is still applied by Spark, so all that is here may be cautious.

This is for DataFrames that one query uses once. Spark 4.3.0 keeps what a query has pushed into a Python source for whatever
uses the same DataFrame later (or in another branch of the same query), whose other filters then never reach the source: such
a query lacks rows. So pushing down must be asked for; the options that choose topics, offsets and times have no such trap.
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
    """What filters leave: topics and partitions (None: any), offsets [first, end) and a least timestamp in ms (None: any)."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    least_partition: int = 0
    most_partition: int = INT64_MAX
    first_offset: int = 0
    end_offset: int = INT64_MAX
    least_timestamp_ms: int | None = None

    def takes(self, topic: str, partition: int) -> bool:
        """True where records of the partition may pass the filters."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.least_partition <= partition <= self.most_partition
        )


def push_filters(filters: Iterable[Filter]) -> Pushed:
    """What a conjunction of filters leaves."""
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
            least_partition=max(pushed.least_partition, _or(low, 0)),
            most_partition=min(pushed.most_partition, _or(high, INT64_MAX)),
        )
    if column == "offset":
        return pushed._replace(
            first_offset=max(pushed.first_offset, _or(low, 0)),
            end_offset=min(pushed.end_offset, INT64_MAX if high is None else high + 1),
        )
    if column == "timestamp" and isinstance(low_time := _low_time(given), datetime):
        least = int(low_time.timestamp() * 1000) - 1
        return pushed._replace(least_timestamp_ms=max(least, pushed.least_timestamp_ms or least))
    return pushed


def _values(given: Filter) -> tuple[Any, ...] | None:
    """The values that a column may have, where the filter names them."""
    if isinstance(given, EqualTo | EqualNullSafe):
        return (given.value,)
    if isinstance(given, In):
        return tuple(given.value)
    return None


def _bounds(given: Filter) -> tuple[int | None, int | None]:
    """The least and the largest whole number that pass, None where there is no such bound."""
    values = _values(given)
    if values is not None:
        numbers = [value for value in values if type(value) is int]
        return (min(numbers), max(numbers)) if numbers and len(numbers) == len(values) else (None, None)
    value = getattr(given, "value", None)
    if type(value) is not int:
        return None, None
    if isinstance(given, GreaterThan):
        return value + 1, None
    if isinstance(given, GreaterThanOrEqual):
        return value, None
    if isinstance(given, LessThan):
        return None, value - 1
    if isinstance(given, LessThanOrEqual):
        return None, value
    return None, None


def _low_time(given: Filter) -> Any:
    if isinstance(given, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        return given.value
    return None


def _or(number: int | None, otherwise: int) -> int:
    return otherwise if number is None else number

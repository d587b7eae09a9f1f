"""The rules for topic names, and Kafka's internal topics.

rule                      reason
------------------------  ------------------------------------------------------------------------------------------
1 to 249 characters       the name of a partition directory, with a number and a suffix, has at most 255 characters
ASCII letters, digits,    they are in directory names
  `.`, `_` and `-`
not `.` or `..`           they are directory names
no two that differ only   Kafka's metrics write `.` as `_`; only CreateTopics checks this
  in `.` and `_`
"""

from __future__ import annotations

import re
from collections.abc import Iterable

INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
# Topics that their coordinators create as compacted topics.
COMPACTED_INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state"))
MAX_TOPIC_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Return why a topic cannot have a name, as one sentence, or None if it can."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"the topic name has {len(name)} characters; {MAX_TOPIC_NAME_LENGTH} are allowed"
    if not _LEGAL.fullmatch(name):
        return f"the topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def metric_name(name: str) -> str:
    """Return the name of a topic in metrics; topics with equal metric names collide."""
    return name.replace(".", "_")


def colliding_topic(name: str, others: Iterable[str]) -> str | None:
    """Return one of `others` that collides with `name`, or None."""
    written = metric_name(name)
    return next((other for other in others if metric_name(other) == written), None)

"""Which names topics may have, and which topics are Kafka's own.

rule                      because
------------------------  ------------------------------------------------------------------------------------------
1 to 249 characters       a partition's directory, with its number and a suffix, is to fit into 255
ASCII letters, digits,    they are in directory names
  `.`, `_` and `-`
not `.` or `..`           likewise
no two that differ in     Kafka's metrics write `.` as `_`; only CreateTopics looks at this
  `.` and `_` alone
"""

from __future__ import annotations

import re
from collections.abc import Iterable

INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
# Compacted whatever is known of their settings: their coordinators make them so.
COMPACTED_INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state"))
MAX_TOPIC_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Why a topic cannot have that name, as a sentence; None where it can."""
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
    """A topic's name as metrics write it; topics whose metric names are equal collide."""
    return name.replace(".", "_")


def colliding_topic(name: str, others: Iterable[str]) -> str | None:
    """One of `others` that collides with `name`, or None."""
    written = metric_name(name)
    return next((other for other in others if metric_name(other) == written), None)

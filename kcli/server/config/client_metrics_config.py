"""Client metrics subscriptions (KIP-714): which clients push which metrics, and how often.

    key          text                                                         default
    -----------  -----------------------------------------------------------  --------------------
    interval.ms  100 to 3600000                                               300000
    metrics      a list of prefixes of metric names; "*" means all            none
    match        a list of selector=pattern; a client must match all of them  every client

Selectors are client_instance_id, client_id, client_software_name, client_software_version, client_source_address and
client_source_port; patterns are regular expressions: Java's in Kafka, Python's in kcli.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kcli.server.config.definitions import CLIENT_METRICS_KEYS
from kcli.server.config.request_errors import invalid_config, invalid_request, requested_value
from kcli.server.config.values import as_int, nearest_name, split_list

MIN_INTERVAL_MS = 100
MAX_INTERVAL_MS = 3_600_000
SELECTORS = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)


def check_client_metrics_config(overrides: Mapping[str, str]) -> None:
    """Check a subscription. Raises ConfigRequestError."""
    for name, text in overrides.items():
        if name not in CLIENT_METRICS_KEYS:
            raise invalid_request(f"{name} is not a configuration of client metrics{nearest_name(name, CLIENT_METRICS_KEYS)}")
        value = requested_value(CLIENT_METRICS_KEYS, "client metrics", name, text)
        if name == "interval.ms" and not MIN_INTERVAL_MS <= as_int(value) <= MAX_INTERVAL_MS:
            raise invalid_request(f"interval.ms={value} is not valid: it must be from {MIN_INTERVAL_MS} to {MAX_INTERVAL_MS}")
        if name == "match":
            match_patterns(text)


def match_patterns(text: str) -> dict[str, re.Pattern[str]]:
    """Return the pattern of each selector in a value of `match`. Raises ConfigRequestError (INVALID_CONFIG)."""
    patterns = {}
    for item in split_list(text):
        selector, equals, pattern = (part.strip() for part in item.partition("="))
        if not equals or "=" in pattern:
            raise invalid_config(f"match: {item!r} is not valid: it must be selector=pattern")
        if selector not in SELECTORS:
            raise invalid_config(f"match: the selector {selector} is unknown; the selectors are {', '.join(sorted(SELECTORS))}")
        try:
            patterns[selector] = re.compile(pattern)
        except re.error as error:
            raise invalid_config(f"match: {pattern!r} of {selector} is not a regular expression: {error}") from error
    return patterns

"""Settings of a consumer by Kafka's names (ConsumerConfig), with the defaults of Apache Kafka 4.3.1.

The common ones are in kcli.client.client_config. Deserializers, interceptors and rebalance listeners are parameters of the
consumer, not settings.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.client.consumer.subscription_state import parse_reset_strategy
from kcli.client.errors import ConfigError

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
CLASSIC, CONSUMER = "classic", "consumer"  # group.protocol
MEBIBYTE = 1024 * 1024


class ConsumerConfig(NamedTuple):
    """The settings; times are in ms."""

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = CLASSIC
    group_remote_assignor: str | None = None
    partition_assignment_strategy: tuple[str, ...] = ("range", "cooperative-sticky")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: str = "latest"
    exclude_internal_topics: bool = True
    isolation_level: str = READ_UNCOMMITTED
    check_crcs: bool = True
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * MEBIBYTE
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = MEBIBYTE


def check_config(config: ConsumerConfig) -> None:
    """Raise ConfigError for a value that a setting cannot have."""
    parse_reset_strategy(config.auto_offset_reset)
    if config.isolation_level not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise ConfigError(f"isolation.level must be read_committed or read_uncommitted, not {config.isolation_level!r}")
    if config.group_protocol not in (CLASSIC, CONSUMER):
        raise ConfigError(f"group.protocol must be classic or consumer, not {config.group_protocol!r}")
    for name in ("max_poll_records", "max_poll_interval_ms"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name.replace('_', '.')} must be 1 or more, not {getattr(config, name)}")
    for name in ("fetch_min_bytes", "fetch_max_bytes", "fetch_max_wait_ms", "max_partition_fetch_bytes"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name.replace('_', '.')} must be 0 or more, not {getattr(config, name)}")

"""Settings of a share consumer by Kafka's names (ShareConsumerConfig), with the defaults of Apache Kafka 4.3.1.

share.acknowledgement.mode  the records that a poll returned are
--------------------------  ----------------------------------------------------------------------------------------------
implicit                    accepted by the next poll or commit; a close releases them
explicit                    acknowledged one by one by the caller before the next poll

share.acquire.mode          a fetch acquires
--------------------------  ----------------------------------------------------------------------------------------------
batch_optimized             whole batches, which may be more records than max.poll.records
record_limit                max.poll.records records at most, by brokers of Kafka 4.2 and later (KIP-1206)
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.client.errors import ConfigError

IMPLICIT, EXPLICIT = "implicit", "explicit"
ACQUIRE_MODES = {"batch_optimized": 0, "record_limit": 1}
MEBIBYTE = 1024 * 1024


class ShareConsumerConfig(NamedTuple):
    """The settings; times are in ms."""

    group_id: str | None = None
    share_acknowledgement_mode: str = IMPLICIT
    share_acquire_mode: str = "batch_optimized"
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    check_crcs: bool = True
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * MEBIBYTE
    fetch_max_wait_ms: int = 500


def check_share_config(config: ShareConsumerConfig) -> None:
    """Raise ConfigError for a value that a setting cannot have."""
    if not config.group_id:
        raise ConfigError("group.id is empty: a share consumer needs one for its share group")
    if config.share_acknowledgement_mode not in (IMPLICIT, EXPLICIT):
        mode = config.share_acknowledgement_mode
        raise ConfigError(f"share.acknowledgement.mode must be implicit or explicit, not {mode!r}")
    if config.share_acquire_mode.lower() not in ACQUIRE_MODES:
        mode = config.share_acquire_mode
        raise ConfigError(f"share.acquire.mode must be batch_optimized or record_limit, not {mode!r}")
    for name in ("max_poll_records", "max_poll_interval_ms"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name.replace('_', '.')} must be 1 or more, not {getattr(config, name)}")
    for name in ("fetch_min_bytes", "fetch_max_bytes", "fetch_max_wait_ms"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name.replace('_', '.')} must be 0 or more, not {getattr(config, name)}")

"""The settings of the log cleaner; all but log.cleaner.enable may change while the broker runs."""

from __future__ import annotations

from typing import Any

from kcli.server.config.server_config import ConfigReader


def cleaner_settings(config: ConfigReader) -> dict[str, Any]:
    """Return the cleaner's fields of kcli.log.managing.log_registry.LogManagerSettings."""
    return {
        "cleaner_threads": config.get_int("log.cleaner.threads"),
        "cleaner_dedupe_buffer_bytes": config.get_int("log.cleaner.dedupe.buffer.size"),
        "cleaner_io_buffer_bytes": config.get_int("log.cleaner.io.buffer.size"),
        "cleaner_load_factor": config.get_float("log.cleaner.io.buffer.load.factor"),
        "cleaner_max_bytes_per_second": config.get_float("log.cleaner.io.max.bytes.per.second"),
        "cleaner_backoff_ms": config.get_int("log.cleaner.backoff.ms"),
    }

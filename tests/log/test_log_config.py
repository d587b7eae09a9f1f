"""Protects the typed settings of a log: Kafka's defaults, and texts as topic configs hold them."""

from __future__ import annotations

import re

import pytest

from kcli.log.log_config import LogConfig, append_rules
from tests.conftest import SHARED


def test_texts_become_values_of_their_settings_types() -> None:
    """Numbers, words, lists and truth; what is not named keeps its default, what is not known is no matter."""
    config = LogConfig.of(
        {
            "segment.bytes": " 1048576",
            "cleanup.policy": "compact, delete",
            "preallocate": "TRUE",
            "min.cleanable.dirty.ratio": "0.25",
            "compression.type": "lz4",
            "unknown.key": "x",
        }
    )
    expected = LogConfig(
        segment_bytes=1048576,
        cleanup_policy=frozenset(("compact", "delete")),
        preallocate=True,
        min_cleanable_dirty_ratio=0.25,
        compression_type="lz4",
    )
    assert config == expected
    with pytest.raises(ValueError, match="invalid literal"):
        LogConfig.of({"segment.bytes": "much"})


def test_the_internal_size_of_a_segment_counts_where_it_is_set() -> None:
    """It has no lower limit and precedence over segment.bytes."""
    assert LogConfig.of({"segment.bytes": "1048576", "internal.segment.bytes": " 700"}).segment_bytes == 700
    assert LogConfig.of({"segment.bytes": "1048576"}).segment_bytes == 1048576
    with pytest.raises(ValueError, match="invalid literal"):
        LogConfig.of({"internal.segment.bytes": "few"})


def test_compaction_bounds_the_time_of_a_segment() -> None:
    """max.compaction.lag.ms counts where cleanup.policy has compact."""
    config = LogConfig(segment_ms=1000, max_compaction_lag_ms=10)
    assert append_rules(config).max_segment_ms == 1000
    assert append_rules(config._replace(cleanup_policy=frozenset(("compact",)))).max_segment_ms == 10


def test_defaults_are_kafkas() -> None:
    """Each default is that of the table of Kafka's topic settings."""
    table = SHARED / "kafka-tables.txt"
    if not table.exists():
        pytest.skip("../shared/kafka-tables.txt is not beside this checkout")
    text = table.read_text()
    checked = 0
    for field, default in LogConfig._field_defaults.items():
        row = re.search(rf"^{re.escape(field.replace('_', '.'))}[ \t|].*$", text, re.MULTILINE)
        if row is not None:
            checked += 1
            shown = (
                ",".join(default)
                if isinstance(default, frozenset)
                else str(default).lower()
                if default in (True, False)
                else str(default)
            )
            assert shown in row.group(0).replace("[", "").replace("]", ""), (field, shown, row.group(0))
    assert checked

"""Protects the account of buffer.memory and the estimates of compression."""

from __future__ import annotations

import pytest

from kcli.client.producer.buffer_pool import BufferPool
from kcli.client.producer.compression_ratio import CompressionRatioEstimator


def test_memory_is_taken_and_returned() -> None:
    pool = BufferPool(100)
    assert pool.allocate(60) and not pool.allocate(41) and pool.available == 40
    assert pool.allocate(40) and not pool.allocate(1) and pool.allocate(0)
    pool.deallocate(100)
    assert pool.available == pool.total == 100
    with pytest.raises(ValueError, match="1 bytes are returned, but only 0 were taken"):
        pool.deallocate(1)


def test_estimates_rise_faster_than_they_fall() -> None:
    ratios = CompressionRatioEstimator()
    assert ratios.estimation("t") == 1.0
    ratios.update("t", 0.2)
    assert ratios.estimation("t") == pytest.approx(0.995)
    ratios.update("t", 0.994)
    assert ratios.estimation("t") == pytest.approx(0.994), "not below what was observed"
    ratios.update("t", 0.996)
    assert ratios.estimation("t") == pytest.approx(1.044)
    ratios.update("t", 1.5)
    assert ratios.estimation("t") == 1.5
    ratios.update("t", 1.5)
    assert (ratios.estimation("t"), ratios.estimation("u")) == (1.5, 1.0)


@pytest.mark.parametrize(("observed", "after"), [(0.3, 1.0), (1.2, 1.2)])
def test_a_split_begins_anew(observed: float, after: float) -> None:
    ratios = CompressionRatioEstimator()
    for _ in range(100):
        ratios.update("t", 0.3)
    ratios.reset("t", observed)
    assert ratios.estimation("t") == after

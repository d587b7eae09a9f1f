"""Protects the hash of keys: equal keys share a partition with those of Kafka's other clients.

tests/oracle/test_client_partitioner.py compares with Java; the numbers here are those of Kafka's own tests (UtilsTest).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import murmur2
from tests.interpreted import interpreted

INTERPRETED = interpreted(murmur2)
WAYS: dict[str, Any] = {"as installed": murmur2, "interpreted": INTERPRETED}
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("way", WAYS)
def test_known_hashes(way: str) -> None:
    for key, number in KNOWN.items():
        assert WAYS[way].murmur2(key) == number & 0xFFFF_FFFF
        assert WAYS[way].partition_for_key(key, 7) == (number & 0x7FFF_FFFF) % 7


@given(st.binary(max_size=200), st.integers(1, 2**31 - 1))
def test_both_ways_agree(key: bytes, count: int) -> None:
    assert murmur2.murmur2(key) == INTERPRETED.murmur2(key)
    assert murmur2.partition_for_key(key, count) == INTERPRETED.partition_for_key(key, count) < count


@pytest.mark.parametrize("way", WAYS)
def test_what_has_no_hash(way: str) -> None:
    """A topic without partitions must not divide by zero in C, which would end the process."""
    for count in (0, -1):
        with pytest.raises(ValueError, match="has no partition for a key"):
            WAYS[way].partition_for_key(b"key", count)
    with pytest.raises(TypeError):
        WAYS[way].murmur2(None)

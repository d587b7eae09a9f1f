"""Protects the printed form of Kafka's ids, in which they stand in partition.metadata and in every dump."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import FormatError


def test_an_id_prints_as_kafka_prints_it() -> None:
    assert str(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert str(Uuid(b"\xff" * 15 + b"\xfe")) == "_____________________g"
    assert f"{Uuid.parse('kcliKcliKcliKcliKcliKg')}" == "kcliKcliKcliKcliKcliKg"


@given(st.binary(min_size=16, max_size=16))
def test_the_printed_form_reads_back(raw: bytes) -> None:
    assert Uuid.parse(str(Uuid(raw))) == raw


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 23, "AAAAAAAAAAAAAAAAAAAA!A", "é" * 22, "A" * 21])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        Uuid.parse(text)

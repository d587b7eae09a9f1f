"""The producer's modules as they are installed, compiled where there is a compiler, and interpreted: both do the same."""

from __future__ import annotations

from typing import Any, NamedTuple

from kcli.client.producer import partitioner, producer_batch, record_accumulator, topic_queues
from kcli.format import memory_records_builder, murmur2
from tests.interpreted import interpreted


class Way(NamedTuple):
    """The modules of one kind."""

    builder: Any
    partitioner: Any
    batch: Any
    accumulator: Any


def _interpreted() -> Way:
    builder = interpreted(memory_records_builder)
    choice = interpreted(partitioner, murmur2=interpreted(murmur2))
    batch = interpreted(producer_batch, memory_records_builder=builder)
    parts = {"partitioner": choice, "producer_batch": batch, "memory_records_builder": builder}
    parts["topic_queues"] = interpreted(topic_queues, partitioner=choice, producer_batch=batch)
    return Way(builder, choice, batch, interpreted(record_accumulator, **parts))


WAYS = {
    "as installed": Way(memory_records_builder, partitioner, producer_batch, record_accumulator),
    "interpreted": _interpreted(),
}

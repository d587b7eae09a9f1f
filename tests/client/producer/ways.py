"""The producer's modules as they are installed, compiled where there is a compiler, and interpreted: both do the same."""

from __future__ import annotations

from typing import Any, NamedTuple

from kcli.client.producer import (
    arrow_appender,
    arrow_column,
    partitioner,
    producer_batch,
    record_accumulator,
    record_appender,
    topic_queues,
)
from kcli.format import memory_records_builder, murmur2
from tests.interpreted import interpreted


class Way(NamedTuple):
    """The modules of one kind."""

    builder: Any
    partitioner: Any
    batch: Any
    accumulator: Any
    appender: Any
    arrow: Any


def _interpreted() -> Way:
    builder = interpreted(memory_records_builder)
    hashes = interpreted(murmur2)
    choice = interpreted(partitioner, murmur2=hashes)
    batch = interpreted(producer_batch, memory_records_builder=builder)
    parts = {"partitioner": choice, "producer_batch": batch, "memory_records_builder": builder}
    parts["topic_queues"] = interpreted(topic_queues, partitioner=choice, producer_batch=batch)
    accumulator = interpreted(record_accumulator, **parts)
    arrow = {"producer_batch": batch, "record_accumulator": accumulator, "murmur2": hashes, "memory_records_builder": builder}
    return Way(
        builder,
        choice,
        batch,
        accumulator,
        interpreted(record_appender),
        interpreted(arrow_appender, arrow_column=interpreted(arrow_column), **arrow),
    )


WAYS = {
    "as installed": Way(
        memory_records_builder, partitioner, producer_batch, record_accumulator, record_appender, arrow_appender
    ),
    "interpreted": _interpreted(),
}

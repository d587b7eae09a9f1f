"""What a member of a share group says about the records that it holds, and how that is encoded.

    kind     meaning                                     share of the records
    -------  ------------------------------------------  ----------------------------------------------------------------
    accept   the record is processed                     most; all that are acknowledged while the workload drains
    release  it is to be delivered again                 some
    reject   it cannot be processed                      a few
    renew    the member needs more time                  a few, and in a request of version 2 only
    gap      the log has no record at the offset         all such offsets
    none     the member says nothing until its lock ends a few

A run of offsets with one kind is one batch: with one type for all of them, as a client sends that acknowledges implicitly, or
with a type for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from kcli.format.primitives import TopicPartition
from kcli.simulator.coordination.share_history import ACCEPT, GAP, REJECT, RELEASE, RENEW, Delivery

_KINDS: tuple[int | None, ...] = (ACCEPT, RELEASE, REJECT, RENEW, None)
_WEIGHTS = (45, 22, 9, 14, 10)


class Choice(NamedTuple):
    """What a member says about a delivery."""

    delivery: Delivery
    kind: int


def choose(
    rng: Random, held: Mapping[TopicPartition, Mapping[int, Delivery]], *, is_draining: bool
) -> dict[TopicPartition, list[Choice]]:
    """Return what a member says about the records that it holds, by partition, in the order of the offsets."""
    found: dict[TopicPartition, list[Choice]] = {}
    for partition, deliveries in sorted(held.items()):
        is_implicit = is_draining or rng.random() < 0.3  # everything that was delivered is accepted
        choices = []
        for _, delivery in sorted(deliveries.items()):
            kind = ACCEPT if is_implicit else rng.choices(_KINDS, _WEIGHTS)[0]
            if kind is not None:
                choices.append(Choice(delivery, kind if delivery.value is not None else GAP))
        if choices:
            found[partition] = choices
    return found


def encode_batches(rng: Random, choices: Sequence[Choice]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield batches of acknowledgements: first offset, last offset, and one type or one for each offset."""
    start = 0
    has_all_types = rng.random() < 0.5
    for end in range(1, len(choices) + 1):
        if end < len(choices) and choices[end].delivery.offset == choices[end - 1].delivery.offset + 1:
            is_same_kind = choices[end].kind == choices[end - 1].kind
            if has_all_types or is_same_kind:
                continue
        run = choices[start:end]
        types = [one.kind for one in run]
        yield run[0].delivery.offset, run[-1].delivery.offset, types if has_all_types else types[:1]
        start = end

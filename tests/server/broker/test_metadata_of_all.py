"""Protects the kept answer about all topics: it is made once for a state of the metadata, and never an old one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.protocol.apis import API_KEYS, METADATA
from kcli.server.apis import metadata
from tests.server.whole_node import WholeNode

VERSION = 12


def answer(node: WholeNode, version: int = VERSION, **options: Any) -> Any:
    pending = node.send(METADATA, version, API_KEYS[METADATA].request.new(topics=None, **options))
    node.until(lambda: pending.answer is not None)
    return pending.result()


def shown(found: Any) -> dict[str, list[tuple[int, int]]]:
    return {topic.name: [(part.partition_index, part.leader_id) for part in topic.partitions] for topic in found.topics}


def test_it_is_made_once_for_a_state_of_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = WholeNode(tmp_path / "data")
    node.create_topic("a", 3)
    made: list[int] = []
    fill = metadata._fill

    def counted(*args: Any) -> Iterator[None]:
        made.append(1)
        return fill(*args)

    monkeypatch.setattr(metadata, "_fill", counted)
    first = shown(answer(node))
    assert [index for index, _ in first["a"]] == [0, 1, 2] and made == [1]
    errors = dict(node.broker.metrics.errors.counts)
    assert shown(answer(node)) == first and made == [1]
    assert node.broker.metrics.errors.counts[METADATA, 0] > errors[METADATA, 0]
    node.advance(5_000)  # records without a change
    assert shown(answer(node)) == first and made == [1]
    # Another version and other options have answers of their own.
    with_operations = answer(node, 8, include_topic_authorized_operations=True)
    assert with_operations.topics[0].topic_authorized_operations > 0 and made == [1, 1]
    assert answer(node).topics[0].topic_authorized_operations < 0
    node.create_topic("b", 1)
    assert set(shown(answer(node))) == {"a", "b"}
    node.delete_topic("a")
    node.until(lambda: "a" not in node.broker.image.topic_ids)
    assert set(shown(answer(node))) == {"b"}

"""Protects a whole node against requests of any form: each is answered or its connection closed, and none finds a fault.

The requests are well formed or damaged, their values random: what a client should never send. Topics that exist are among
the names, so that the requests reach further than their first check.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kcli.protocol.apis import API_KEYS, Api
from kcli.protocol.framing import encode_request
from kcli.server.apis.registry import SERVED
from tests.protocol import random_messages
from tests.protocol.random_messages import RandomMessages
from tests.server.whole_node import Closed, WholeNode, batch

FAST_SEEDS, CI_SEEDS = 2, 150
FORMS = [
    (API_KEYS[key], version)
    for key in sorted(SERVED)
    for version in range(API_KEYS[key].lowest_version, API_KEYS[key].highest_version + 1)
]
# What a request may wait at most.
WAIT_MS = 40_000


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("topic-1", 2)
    made.produce("topic-1", 0, batch(b"0", b"1", b"2"))
    monkeypatch.setattr(
        random_messages, "TEXTS", ("", "a", "topic-1", "topic-1", "1", "é😀", "y" * 127, "bad name", "retention.ms")
    )
    monkeypatch.setattr(random_messages, "BLOBS", (b"", b"\0", b"\xff" * 126, batch(b"x"), batch(b"y") * 2, batch(b"z")[:-1]))
    return made


def send(node: WholeNode, api: Api, version: int, frame: bytes) -> Any:
    """What a frame is answered with: a message, Closed, or the mark for no answer."""
    pending = node.send_frame(frame, api.key, version)
    node.until(lambda: pending.answer is not None, WAIT_MS)
    return pending.answer


def check(node: WholeNode, api: Api, version: int, seeds: range) -> int:
    """Send random requests of one form -> how many were answered."""
    answered = 0
    for seed in seeds:
        rng = Random(f"{api.name} {version} {seed}")
        message = RandomMessages(rng, unknown_tags=True).message(api.request, version)
        # Long waits only make the test long.
        for name in ("timeout_ms", "max_wait_ms"):
            if hasattr(message, name):
                setattr(message, name, rng.choice((-1, 0, 10)))
        frame = bytearray(encode_request(77, api, version, "test", message)[4:])
        if seed % 2:
            for _ in range(rng.choice((1, 3))):
                frame[rng.randrange(4, len(frame))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            frame[4:8] = (77).to_bytes(4, "big")
        answer = send(node, api, version, bytes(frame))
        answered += not isinstance(answer, Closed)
        faults = [line for line in node.lines if "fault" in line]
        assert not faults, (api, version, seed, faults, message)
    return answered


def check_all(node: WholeNode, forms: list[tuple[Api, int]], seeds: range) -> None:
    assert sum(check(node, api, version, seeds) for api, version in forms) > len(forms) // 2
    # It serves as before.
    produced = node.produce("topic-1", 1, batch(b"after"))
    node.until(lambda: produced.answer is not None)
    error = produced.result().responses[0].partition_responses[0].error_code
    # Unless it was told to delete the topic or to forget itself.
    assert error == 0 or "topic-1" not in node.broker.image.topic_ids or node.broker.node_id not in node.broker.image.brokers


def test_random_requests_find_no_fault(node: WholeNode) -> None:
    check_all(node, FORMS, range(FAST_SEEDS))


@pytest.mark.ci
@pytest.mark.parametrize("key", sorted(SERVED), ids=lambda key: API_KEYS[key].name)
def test_many_random_requests_find_no_fault(node: WholeNode, key: int) -> None:
    check_all(node, [(api, version) for api, version in FORMS if api.key == key], range(FAST_SEEDS, CI_SEEDS))

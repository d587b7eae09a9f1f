"""Protects the answers to share groups' requests against those that Apache Kafka 4.3.1 and 4.4.0 gave to the same exchange.

tests/oracle/test_share_group_answers.py recorded them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol.apis import API_KEYS
from kcli.protocol.framing import encode_request
from kcli.protocol.message import Message
from tests.server.apis.asking import upgrade
from tests.server.whole_node import WholeNode
from tests.share_group_exchange import SETTINGS, exchanged, recorded

pytestmark = pytest.mark.ci


class Client:
    """The client of the exchange, on a node in virtual time."""

    def __init__(self, node: WholeNode) -> None:
        self.node = node

    def struct(self, key: int, struct_name: str, /, **fields: Any) -> Message:
        return API_KEYS[key].request.classes[struct_name](**fields)

    def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        frame = encode_request(7, API_KEYS[key], version, "raw", API_KEYS[key].request.new(**fields))
        pending = self.node.send_frame(bytes(frame[4:]), key, version)
        self.node.until(lambda: pending.answer is not None)
        return pending.result()


@pytest.mark.parametrize("is_4_4", [False, True])
def test_the_answers_are_those_that_kafka_gave(tmp_path: Path, is_4_4: bool) -> None:
    node = WholeNode(tmp_path / "data", *SETTINGS)
    if is_4_4:
        upgrade(node)
    answers = exchanged(Client(node), lambda: node.advance(50))
    for ours, kafkas in zip(answers, recorded(is_4_4=is_4_4), strict=True):
        assert ours == kafkas

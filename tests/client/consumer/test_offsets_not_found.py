"""Protects the reason of a lookup that ends without offsets: the error with which the leader answers until the time is over,
not that no answer came. Nobody finds a partition.metadata of another topic by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.client.consumer.subscription_state import EARLIEST_TIMESTAMP
from kcli.client.errors import KafkaTimeoutError
from tests.client.consumer.consumer_app import ConsumerApp
from tests.client.consumer.test_consumer_faults import GROUP_SETTINGS, filled
from tests.client.faulty_node import SHORT_TIMEOUTS
from tests.client.refusing_node import RefusingNode


def test_a_timeout_names_the_error_of_the_leader(tmp_path: Path) -> None:
    node = RefusingNode(tmp_path, *GROUP_SETTINGS)
    for topic in ("t", "u"):
        filled(node, topic)
    node.stop()
    (tmp_path / "t-0" / "partition.metadata").write_bytes((tmp_path / "u-0" / "partition.metadata").read_bytes())
    node = RefusingNode(tmp_path, *GROUP_SETTINGS)
    app = ConsumerApp(node, "c", **SHORT_TIMEOUTS, default_api_timeout_ms=5_000)
    app.do(app.core.assign, [("t", 0), ("t", 1)])
    reason = r"not found in time \(the answer for t-0 is KAFKA_STORAGE_ERROR\)$"
    with pytest.raises(KafkaTimeoutError, match=f"^the position of t-0 was {reason}"):
        app.ask(app.core.position, ("t", 0))
    with pytest.raises(KafkaTimeoutError, match=f"^the offsets of t-0 were {reason}"):
        app.ask(app.core.list_offsets, dict.fromkeys([("t", 0), ("t", 1)], EARLIEST_TIMESTAMP))
    app.close()
    node.clients.clear()
    node.stop()

"""Protects: under random events, each record of a share group ends once: accepted, rejected, or at its delivery limit.

Members join, close, die, lose their connections, hold records past their locks, and acknowledge in all ways; then one member
accepts the rest. What a member does not know the result of may have been applied or not. A run is the same for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import KafkaError
from tests.client.clients_of_node import ClientsOfNode
from tests.client.consumer import test_share_consumer
from tests.client.consumer.test_share_consumer import ACCEPT, LOCK_MS, REJECT, RELEASE, RENEW, ShareApp, send

STEPS = 60
DELIVERY_LIMIT = 5
EVENTS = ("join", "close", "kill", "disconnect", "hold", "send", "send", *["read"] * 8)
node = test_share_consumer.node


class RandomShareGroup:
    """One run: `ended` has the offsets whose final acknowledgement succeeded, `unsure` those without a known result."""

    def __init__(self, node: ClientsOfNode, seed: int) -> None:
        self.rng = random.Random(seed)
        self.node = node
        self.apps: list[ShareApp] = []
        self.sent = 0
        self.count = 0
        self.ended: dict[int, AcknowledgeType] = {}
        self.unsure: set[int] = set()
        self.disconnected: set[ShareApp] = set()  # and may not know yet what it has lost
        self.counts: dict[int, int] = {}

    def step(self) -> None:
        event = self.rng.choice(EVENTS)
        if event == "send":
            many = self.rng.randrange(1, 6)
            send(self.node, *(b"%d" % (self.sent + number) for number in range(many)))
            self.sent += many
        elif event == "join" or not self.apps:
            self.join()
        else:
            self._let(event, self.rng.choice(self.apps))

    def join(self) -> ShareApp:
        self.count += 1
        mode = self.rng.choice(("batch_optimized", "record_limit"))
        app = ShareApp(self.node, f"m{self.count}", seed=self.count, share_acquire_mode=mode, max_poll_records=4)
        self.apps.append(app)
        return app

    def _let(self, event: str, app: ShareApp) -> None:
        if event == "read":
            self.read(app, (ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW))
        elif event == "hold":
            self.read(app, (ACCEPT,), LOCK_MS + 1000)
        elif event == "disconnect":
            self.node.disconnect(app.client)
            self.disconnected.add(app)
        else:
            self.apps.remove(app)
            if event == "close":
                app.close()
            else:
                self.node.remove(app.client)

    def read(self, app: ShareApp, kinds: tuple[AcknowledgeType, ...], holds_ms: int = 0) -> list[ShareRecord]:
        """Poll, hold what was read, acknowledge it, and note the results."""
        found = app.poll(500)
        self.node.advance(holds_ms)
        said = {}
        for record in found:
            assert app in self.disconnected or record.offset not in self.ended, f"{record} was delivered after its end"
            assert 1 <= record.delivery_count <= DELIVERY_LIMIT
            self.counts[record.offset] = max(record.delivery_count, self.counts.get(record.offset, 0))
            said[record.offset] = self.rng.choice(kinds)
            app.acknowledge(said[record.offset], record)
        if not found:
            self.disconnected.discard(app)
        app.commit()
        while app.core.results:
            result = app.core.results.popleft()
            for offset in result.offsets & said.keys():
                kind = said[offset]
                if result.error is None and kind in (ACCEPT, REJECT):
                    assert self.ended.setdefault(offset, kind) is kind
                elif result.error is not None and not isinstance(result.error, KafkaError):
                    self.unsure.add(offset)
        return found

    def end(self) -> None:
        for app in self.apps:
            app.close()
        last = self.join()
        quiet_from_ms = self.node.now_ms
        while self.node.now_ms - quiet_from_ms < 2 * LOCK_MS + 6000:
            if self.read(last, (ACCEPT,)):
                quiet_from_ms = self.node.now_ms
        for offset in range(self.sent):
            is_over = offset in self.ended or offset in self.unsure or self.counts.get(offset) == DELIVERY_LIMIT
            assert is_over, f"the record at {offset} of {self.sent} was lost: {self.counts.get(offset)}"


@pytest.fixture
def group(node: ClientsOfNode, request: pytest.FixtureRequest) -> Iterator[RandomShareGroup]:
    yield RandomShareGroup(node, request.param)


@pytest.mark.parametrize("group", range(3), indirect=True)
def test_random_events(group: RandomShareGroup) -> None:
    for _ in range(STEPS):
        group.step()
    group.end()

"""Protects: under random events, no partition belongs to two members of one generation, and no commit goes backwards.

Members join, close, die, stop polling, lose their connections, change their subscriptions, read and commit; then all is quiet,
and those that are left share all partitions. Each run is the same for the same seed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.client.consumer.membership import CloseOption
from kcli.format.primitives import TopicPartition
from tests.client.clients_of_node import ClientsOfNode
from tests.client.consumer.group_app import GroupApp

PARTITIONS = {("t", partition) for partition in range(5)}
STEPS = 60
DISTURBED_MS = 3000
EVENTS = (
    "join",
    "join",
    "close",
    "kill",
    "stall",
    "wake",
    "disconnect",
    "cut",
    "mend",
    "read",
    "read",
    "commit",
    "wait",
    "wait",
)


class RandomGroup:
    """One run."""

    def __init__(self, directory: Path, seed: int, settings: dict[str, object]) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.node = ClientsOfNode(
            directory,
            "offsets.topic.num.partitions=1",
            "group.initial.rebalance.delay.ms=0",
            "group.consumer.heartbeat.interval.ms=500",
            "group.consumer.min.heartbeat.interval.ms=500",
            "group.consumer.session.timeout.ms=8000",
            "group.consumer.min.session.timeout.ms=8000",
        )
        self.node.create_topic("t", 5)
        self.apps: list[GroupApp] = []
        self.count = 0
        self.committed: dict[TopicPartition, int] = dict.fromkeys(PARTITIONS, -1)
        self.disturbed_until: dict[GroupApp, int] = {}
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.reader = GroupApp(self.node, "reader")
        self.is_classic = settings.get("group_protocol") != "consumer"

    def step(self) -> None:
        event = self.rng.choice(EVENTS)
        if event == "join":
            if len(self.apps) < 4:
                self._join()
        elif self.apps:
            app = self.rng.choice(self.apps)
            if event in ("wake", "mend", "disconnect"):
                self.disturbed_until[app] = self.node.now_ms + DISTURBED_MS
            if event in ("close", "kill"):
                self.apps.remove(app)
                app.client.is_cut |= event == "kill"
                if event == "close" and not app.client.is_cut and app.polls:
                    app.close(self.rng.choice((CloseOption.DEFAULT, CloseOption.LEAVE_GROUP)))
                else:
                    app.kill()
            elif event in ("stall", "wake"):
                app.polls = event == "wake"
            elif event in ("cut", "mend"):
                app.client.is_cut = event == "cut"
                if event == "mend":
                    self.node.disconnect(app.client)
            elif event == "disconnect" and not app.client.is_cut:
                self.node.disconnect(app.client)
            elif event == "read" and app.polls:
                app.read(self.rng.randrange(1, 5))
            elif event == "commit" and app.polls:
                app.member.commit(app.subscription.all_consumed(), lambda error, now_ms: None, self.node.now_ms)
        self.wait(self.rng.choice((0, 10, 300, 3000)))

    def _join(self) -> None:
        self.count += 1
        settings = dict(self.settings)
        if self.rng.random() < 0.2:
            settings["group_instance_id"] = f"static-{self.count}"
        app = GroupApp(
            self.node,
            f"m{self.count}",
            self.count,
            max_poll_interval_ms=12_000,
            session_timeout_ms=8000,
            heartbeat_interval_ms=1000,
            auto_commit_interval_ms=1500,
            **settings,
        )
        self.apps.append(app)
        app.subscribe("t")

    def wait(self, ms: int) -> None:
        end_ms = self.node.now_ms + ms
        while True:
            self.check()
            if self.node.now_ms >= end_ms:
                return
            self.node.advance(min(100, end_ms - self.node.now_ms))

    def check(self) -> None:
        """Check what holds at any time."""
        if self.is_classic:
            for app in self.apps:
                generation = app.member.group_metadata().generation_id
                for partition in app.assigned if generation > 0 and app.member.state.name == "STABLE" else ():  # type: ignore[union-attr]
                    member = app.member.group_metadata().member_id
                    assert self.owners.setdefault((generation, partition), member) == member
        else:
            owned = [one for app in self.apps if self._is_up_to_date(app) for one in app.assigned]
            assert len(owned) == len(set(owned))

    def _is_up_to_date(self, app: GroupApp) -> bool:
        """Return whether the member had time to find out that it was fenced."""
        is_in_group = app.member.group_metadata().generation_id > 0
        return app.polls and not app.client.is_cut and is_in_group and self.node.now_ms >= self.disturbed_until.get(app, 0)

    def check_commits(self) -> None:
        for partition, offset in self.reader.committed(*PARTITIONS).items():
            if offset is not None:
                assert offset >= self.committed[partition], f"{partition} went back"
                self.committed[partition] = offset

    def end(self) -> None:
        for app in self.apps:
            app.polls = True
            if app.client.is_cut:
                app.client.is_cut = False
                self.node.disconnect(app.client)
        if not self.apps:
            self._join()
        self.node.until(self._is_settled, 120_000)
        self.check_commits()

    def _is_settled(self) -> bool:
        return (
            len({app.member.group_metadata().generation_id for app in self.apps}) == 1
            and sorted(one for app in self.apps for one in app.assigned) == sorted(PARTITIONS)
            and all(app.member.next_callback() is None for app in self.apps)
        )


KINDS = {
    "range": {"partition_assignment_strategy": ("range",)},
    "default": {},
    "sticky": {"partition_assignment_strategy": ("sticky",)},
    "cooperative": {"partition_assignment_strategy": ("cooperative-sticky",)},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_random_events(tmp_path: Path, kind: str, seed: int) -> None:
    run = RandomGroup(tmp_path, seed, KINDS[kind])  # type: ignore[arg-type]
    for number in range(STEPS):
        run.step()
        if number % 5 == 0:
            run.check_commits()
    run.end()
    assert not [error for app in run.apps for error in app.errors]

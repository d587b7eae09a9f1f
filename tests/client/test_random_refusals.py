"""Protects: a client that gets error codes again and again, also while it deals with earlier ones, keeps its promises.

Each code alone, at each request, is in tests/client/*/test_*_refusals.py, which have the applications of these tests, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.protocol import error_codes as codes
from kcli.protocol.apis import METADATA, PRODUCE
from tests.client.consumer import test_consumer_refusals as consumers
from tests.client.consumer import test_share_refusals as share_consumers
from tests.client.consumer.test_consumer_faults import GROUP_SETTINGS
from tests.client.consumer.test_share_consumer import SHARE_SETTINGS
from tests.client.producer import test_producer_refusals as producers
from tests.client.refusing_node import Refusal, RefusingNode

pytestmark = pytest.mark.ci

SEEDS = pytest.mark.parametrize("seed", range(1, 9))
ANY = Refusal(PRODUCE, "", codes.NONE)  # not one code, but several
SETTINGS = (*GROUP_SETTINGS, "transaction.state.log.num.partitions=1")


def run(
    directory: Path, refusals: list[Refusal], share: float, seed: int, play: Callable[[RefusingNode], None], *settings: str
) -> None:
    """Let an application run on a node that refuses a share of its requests."""
    node = RefusingNode(directory, *(settings or SETTINGS))
    with node.refusing_at_random([one for one in refusals if one.api_key != METADATA], share, seed):
        play(node)
        assert node.met
    node.clients.clear()
    node.stop()


@SEEDS
def test_an_idempotent_producer(tmp_path: Path, seed: int) -> None:
    def play(node: RefusingNode) -> None:
        _, sent, logs = producers.written(node, 1, ANY)
        assert logs == sent

    run(tmp_path, [*producers.OF_ALL, *producers.OF_IDEMPOTENCE], 0.3, seed, play)


@SEEDS
@pytest.mark.parametrize("version", [1, 2])
def test_a_transactional_producer(tmp_path: Path, seed: int, version: int) -> None:
    def play(node: RefusingNode) -> None:
        application = producers.Application(node, 1, version)
        expected = application.run()
        with node.undisturbed():
            node.advance(3000)
            assert producers.values_in_log(node, application.topic, committed_only=True) == expected

    passing = [*producers.OF_ALL, *producers.PASSING_IN_TRANSACTIONS, *producers.PASSING_IN_VERSION_1]
    run(tmp_path, passing, 0.25, seed, play)


@SEEDS
@pytest.mark.parametrize("kind", ["range", "cooperative", "static", "consumer"])
def test_members_of_a_group(tmp_path: Path, seed: int, kind: str) -> None:
    def play(node: RefusingNode) -> None:
        assert consumers.read_by_two(node, 1, kind, ANY).raised == 0

    passing = [*consumers.PASSING, *consumers.PASSING_IN_GROUPS, *consumers.PASSING_IN_CLASSIC_GROUPS]
    run(tmp_path, [*passing, *consumers.PASSING_IN_GROUPS_OF_848], 0.2, seed, play)


class Shared(share_consumers.Refused):
    """Takes no note of errors of acknowledgements: they have several codes."""

    def check_code(self, code: int) -> None:
        pass


@SEEDS
@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_a_share_consumer(tmp_path: Path, seed: int, mode: str) -> None:
    def play(node: RefusingNode) -> None:
        reading = Shared(node, 1, mode, ANY)
        reading.read(acts=True)
        assert reading.raised == 0

    passing = [one for one in share_consumers.PASSING if not one.is_executed]
    lock = "group.share.min.record.lock.duration.ms=1000", "group.share.record.lock.duration.ms=5000"
    run(tmp_path, passing, 0.15, seed, play, *SHARE_SETTINGS, *lock, "group.share.delivery.count.limit=10")

"""Protects "nothing is lost and nothing is sent twice" if something changes between two runs whose batches are joined.

The limits of the target, the speed, the end of the source: the next run makes the batches that were sent again, as they were.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.selecting.selection import Selection, parse_selection
from tests.log_builder import PartitionBuilder
from tests.replay.fake_cluster import FakeNetwork
from tests.replay.test_cluster_source import Reader
from tests.replay.test_replayer import FaultyDisk, Scene, of_values

VALUES = [b"%03d" % at * 30 for at in range(30)]
# (--join, max.message.bytes of the topic) of a run
RUNS = [(10_000, None), (10_000, 400), (0, None), (700, None), (10_000, 1200), (10_000, 200)]


def change(scene: Scene, join_bytes: int, limit: int | None) -> None:
    scene.join_bytes = join_bytes
    scene.cluster.configs["copy-t"] = {} if limit is None else {"max.message.bytes": str(limit)}


@pytest.mark.parametrize("second", RUNS)
@pytest.mark.parametrize("first", RUNS)
def test_limits_that_change_after_a_run(tmp_path: Path, first: tuple[int, int | None], second: tuple[int, int | None]) -> None:
    """--speed and --rate change --join, too, which is then 0."""
    of_values(tmp_path / "one", VALUES[:20])
    of_values(tmp_path / "two", VALUES)
    scene = Scene(tmp_path / "one", 1, 0.0)
    change(scene, *first)
    scene.run()
    scene.root = tmp_path / "two"
    change(scene, *second)
    scene.is_checked = True
    scene.run()
    assert scene.arrived()["t", 0] == VALUES
    assert not scene.checker.differences and scene.checker.records == 30


@pytest.mark.parametrize("first", RUNS)
def test_limits_that_change_after_a_run_that_was_killed(tmp_path: Path, first: tuple[int, int | None]) -> None:
    """The target has batches above the saved progress: these are found, however large a batch may be now."""
    of_values(tmp_path / "one", VALUES[:20])
    of_values(tmp_path / "two", VALUES)
    unsaved = 0
    for seed in range(12):
        for second in (RUNS[seed % len(RUNS)], RUNS[(seed + 1) % len(RUNS)]):
            scene = Scene(tmp_path / "one", seed, 0.0)
            change(scene, *first)
            unsaved += scene.run(18 + 2 * seed) is None and bool(scene.cluster.logs.get("copy-t"))
            scene.root = tmp_path / "two"
            change(scene, *second)
            scene.run()
            assert scene.arrived()["t", 0] == VALUES
    assert unsaved


@pytest.mark.parametrize("limit", [100, 25])
def test_a_source_that_grows_twice_with_a_limit(tmp_path: Path, limit: int) -> None:
    """--limit counts from the beginning, where the batches of the first runs are made again, one up to each run's end."""
    scene = Scene(tmp_path / "10", 1, 0.0)
    scene.join_bytes = 100_000
    scene.selection = parse_selection(isolation="read_committed", limit=limit)
    for end in (10, 14, 20, 30):
        of_values(tmp_path / str(end), VALUES[:end])
        scene.root = tmp_path / str(end)
        scene.run()
        assert scene.arrived()["t", 0] == VALUES[: min(end, limit)]


def test_records_before_an_error_are_sent(tmp_path: Path) -> None:
    """They are not kept back to be joined with records that cannot be read."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for value in VALUES[:5]:
        builder.append([(b"k", value)])
    builder.roll()
    builder.append([(b"k", VALUES[5])])
    builder.flush()
    last = sorted((tmp_path / "t-0").glob("*.log"))[-1]
    scene = Scene(tmp_path, 1, 0.0)
    scene.join_bytes = 10_000
    scene.selection = Selection()
    scene.disk = FaultyDisk({str(last)})
    scene.run()
    assert scene.problems.damages and scene.arrived()["t", 0] == VALUES[:5]
    scene.disk = OsDisk()
    scene.run()
    assert scene.arrived()["t", 0] == VALUES[:6]


def test_records_before_the_end_of_a_truncated_source_are_sent(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 10_000)
    reader.log.truncate(6)
    stream = reader.read(0)
    assert stream.is_cut and [batch.record_count for batch in stream.queue] == [6]


@pytest.mark.parametrize("kept", ["group", "file"])
@pytest.mark.parametrize("seed", range(20))
def test_two_runs_at_the_same_time(tmp_path: Path, seed: int, kept: str) -> None:
    """Each with a producer id of its own: records that came twice are told, by an error."""
    of_values(tmp_path / "data", VALUES)
    progress = tmp_path / "progress" if kept == "file" else None
    scenes = [Scene(tmp_path / "data", seed, 0.0, progress) for _ in range(2)]
    scenes[1].cluster = scenes[0].cluster
    scenes[1].network = FakeNetwork(scenes[0].cluster, scenes[1].rng, 0.0)
    runs = [(scene, *scene.start()) for scene in scenes]
    while going := [run for run in runs if not run[2]]:
        scene, replayer, ended = scenes[0].rng.choice(going)
        scene.network.run(replayer.poll, lambda ended=ended: bool(ended), 1)
    errors = [str(ended[0]) for _, _, ended in runs if ended[0] is not None]
    assert errors or scenes[0].arrived()["t", 0] == VALUES
    assert not [error for error in errors if "in the target twice" not in error and "is another run" not in error]

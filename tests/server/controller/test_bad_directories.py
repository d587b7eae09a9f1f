"""Protects the start on a directory that cannot be served: one sentence that names the file and what to do, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.server.raft.metadata_batches import SnapshotBatches, new_record
from kcli.server.raft.metadata_log import MetadataLogError
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import formatted

METADATA = "__cluster_metadata-0"


def bootstrap(feature: str, level: int, *, footer: bool = True) -> bytes:
    """A bootstrap.checkpoint that sets one feature besides metadata.version."""
    snapshot = SnapshotBatches(0, 1)
    records = [new_record("FeatureLevelRecord", name="metadata.version", feature_level=30)]
    records.append(new_record("FeatureLevelRecord", name=feature, feature_level=level))
    parts = [snapshot.header(0, 0, ()), *snapshot.batches(records)]
    return b"".join([*parts, snapshot.footer()] if footer else parts)


def write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda directory: [(directory / name).write_bytes(data)].clear()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (write("bootstrap.checkpoint", bootstrap("metadata.version", 34)), r"metadata\.version is 34 \(4\.5-IV0\)"),
        (write("bootstrap.checkpoint", bootstrap("share.version", 3)), r"share\.version is 3.*supports 0 to 2"),
        (write("bootstrap.checkpoint", bootstrap("odd.version", 1)), r"odd\.version is 1.*supports no level"),
        (write("bootstrap.checkpoint", bootstrap("group.version", 1, footer=False)), "is incomplete"),
        (write("bootstrap.checkpoint", bootstrap("group.version", 1)[:-3]), "no complete batch at byte"),
        (write(f"{METADATA}/quorum-state", b"{"), "quorum-state cannot be read"),
        (write(f"{METADATA}/00000000000000000000-0000000000.checkpoint", b"short"), "no complete batch at byte 0"),
    ],
)
def test_one_sentence(tmp_path: Path, damage: Callable[[Path], None], sentence: str) -> None:
    """What is newer than this node, or damaged, is named; the log stays as it was."""
    directory = formatted(tmp_path / "data")
    damage(directory)
    node = ControllerNode(directory)
    with pytest.raises(MetadataLogError, match=sentence) as refused:
        node.start()
    assert str(directory) in str(refused.value)


def test_a_newer_level_in_the_log(tmp_path: Path) -> None:
    """A cluster that was upgraded by something newer is refused when its log is read."""
    directory = formatted(tmp_path / "data")
    node = ControllerNode(directory).start()
    node.core.raft.append([new_record("FeatureLevelRecord", name="metadata.version", feature_level=34)], node.now_ms)
    node.stop()
    with pytest.raises(MetadataLogError, match=r"run the version of kcli or Kafka that wrote it"):
        ControllerNode(directory).start()

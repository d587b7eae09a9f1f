"""Protects the records that a new leader begins with (Kafka: QuorumControllerTest.testActivationRecords...)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.server.controller.controller_server import activation_records
from kcli.server.controller.formatting import FormatPlan, format_directories
from kcli.server.raft.metadata_batches import new_record
from kcli.server.raft.metadata_log import MetadataLogError
from kcli.state.metadata_image import MetadataImage
from tests.server.raft.nodes import START_MS

LEVEL = "FeatureLevelRecord"
BEGIN, END, ABORT = "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"


def begun(directory: Path, image: MetadataImage, metadata_version: int = 30) -> list[str]:
    """The names of the records on a directory that was formatted for a metadata.version."""
    plan = FormatPlan("kcliKcliKcliKcliKcliKg", 1, (str(directory),), str(directory), {"metadata.version": metadata_version})
    format_directories(OsDisk(), plan, lambda count: b"\1" * count, START_MS)
    return [record.STRUCT.name for record in activation_records(image, OsDisk(), str(directory), "1")]


def image_with(metadata_version: int | None, *, is_open: bool) -> MetadataImage:
    image = MetadataImage()
    if metadata_version is not None:
        image.apply(new_record(LEVEL, name="metadata.version", feature_level=metadata_version))
    if is_open:
        image.apply(new_record(BEGIN, name="Bootstrap records"))
        image.apply(new_record(LEVEL, name="metadata.version", feature_level=30))
    return image


@pytest.mark.parametrize(
    ("in_log", "is_open", "formatted_for", "expected"),
    [
        (None, False, 7, [LEVEL]),
        (None, False, 12, [LEVEL]),
        (None, False, 13, [BEGIN, LEVEL, END]),
        (None, True, 30, [ABORT, BEGIN, LEVEL, END]),
        (30, False, 30, []),
        (7, False, 30, []),
        (30, True, 30, [ABORT]),
        (13, True, 30, [ABORT]),
    ],
)
def test_a_leader_begins(tmp_path: Path, in_log: int | None, is_open: bool, formatted_for: int, expected: list[str]) -> None:
    """An empty log gets the records of its format, in a transaction if its level has them; an open one is aborted."""
    assert begun(tmp_path / "data", image_with(in_log, is_open=is_open), formatted_for) == expected


@pytest.mark.parametrize(("in_log", "formatted_for"), [(None, 12), (12, 30)])
def test_a_transaction_at_a_level_without_is_refused(tmp_path: Path, in_log: int | None, formatted_for: int) -> None:
    """Kafka's controller ends; ours says what to do."""
    with pytest.raises(MetadataLogError, match=r"has an open transaction, which its metadata\.version 12 does not have"):
        begun(tmp_path / "data", image_with(in_log, is_open=True), formatted_for)

"""Kafka judges the repair: of every kind of damage, Kafka's own loading of one copy beside our repair of another.

    repair                 Kafka must agree that
    ---------------------  ----------------------------------------------------------------------------------------------
    --like-kafka           every file is, byte for byte, what its own unclean loading makes of the damaged copy: logs,
                           indexes, snapshots, leader epochs; and its offsets and producers are those that it then reads
      where Kafka refuses  what is left loads
    by itself              what is left loads, clean and unclean, to the end that we state: the clean way changes no file,
                           the unclean way no .log; and no sound batch before the damage is gone
    the loader alone       the files after a clean loading, and after one from the last segment on

Kafka refuses to load some kinds of damage at all, so there is nothing to be equal to: REFUSED_BY_KAFKA lists them, and the
test fails when Kafka refuses another. They are the only ones in which --like-kafka is not what Kafka does.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcli.inspect.repairing.repair import LogDirectoryRepair
from kcli.inspect.repairing.repair_plan import PartitionPlan
from kcli.inspect.verification.facts import PartitionOptions
from kcli.inspect.verification.finding_kinds import HOLES, INFO
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.log.disk.file_changes import Discard, apply_changes
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import read_partition
from kcli.log.files.quarantine import Quarantine
from kcli.log.loading.log_loader import LoadSettings, load_log
from kcli.log.loading.recovering_segment import LogRefusedError
from tests.conftest import every_log_set, given_partition
from tests.damage import DAMAGES, NotApplicableError, copy_partition, damaged_copy
from tests.oracle.peer import LoadCase, Peer, digests, stated

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

# Partition -> whether it belongs to the quick tiers.
PARTITIONS = {
    "transactions-0": True,
    "codec-zstd-0": True,
    "compacted-txn-0": False,
    "compacted-0": False,
    "many-segments-0": False,
    "open-transaction-0": False,
    "odd-records-0": False,
}
PARAMETERS = [pytest.param(name, marks=() if quick else pytest.mark.slow) for name, quick in PARTITIONS.items()]
SOUND = "none"
# Kinds at which a broker does not start, or takes the log directory offline, after an unclean shutdown.
REFUSED_BY_KAFKA = {
    "flip_base_offset_high",
    "segment_starts_below_its_name",
    "forged_not_transactional",
    "forged_control_batch",
    "marker_of_unknown_version",
    "stray_log_without_offset",
    "stray_snapshot_without_offset",
    "txnindex_of_unknown_version",
    "txnindex_garbage_old",
    "txnindex_garbage_last",
    "leader_epochs_garbage",
    "leader_epochs_of_unknown_version",
    "leader_epochs_of_wrong_count",
    "leader_epochs_with_words",
    "leader_epochs_negative",
    "partition_metadata_empty",
    "partition_metadata_garbage",
    "partition_metadata_of_zero_id",
}
# What a verifier still finds behind our own repair, by kind, but for the holes that the plan names: records that Kafka's
# producers would not write, whole by their CRC. They cannot be repaired out of the log alone.
LEFT_BEHIND = {
    "forged_max_timestamp": {"batch-max-timestamp"},
    "forged_sequence": {"producer-sequence-gap", "producer-sequence-back"},
    "forged_producer_epoch": {"producer-epoch-back", "producer-sequence-gap"},
}


class Case(NamedTuple):
    """One kind of damage done to copies: Kafka's, ours like Kafka, ours by itself."""

    kind: str
    kafka: Path
    alike: Path
    own: Path


def index_settings(name: str) -> IndexSettings:
    return IndexSettings(1024) if name.startswith("many-segments") else IndexSettings()


def kafka_config(name: str) -> dict[str, str]:
    return {"index.interval.bytes": str(index_settings(name).interval_bytes)}


def make_cases(source: Path, parent: Path) -> list[Case]:
    """Copies of a partition for every kind that it offers something for, and for none."""
    cases = []
    for kind in (SOUND, *DAMAGES):
        copies = []
        for use in ("kafka", "alike", "own"):
            at = parent / kind / use
            try:
                copies.append(copy_partition(source, at) if kind == SOUND else damaged_copy(kind, source, at))
            except NotApplicableError:
                break
        else:
            cases.append(Case(kind, *copies))
    return cases


def repair(directory: Path, name: str, *, like_kafka: bool) -> PartitionPlan:
    """Repair a copy in place, with a quarantine beside it.

    Our own repair does what the directory needs. One that counts as cleanly shut down needs the most: no broker recovers it.
    """
    disk = OsDisk()
    if not like_kafka:
        (directory.parent / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    session = LogDirectoryRepair(disk, str(directory.parent), like_kafka=like_kafka, indexes=index_settings(name))
    quarantine = Quarantine(disk, str(directory.parent.with_suffix(".quarantine")), str(directory.parent))
    plan = session.apply(read_partition(disk, str(directory)), quarantine)
    session.apply_root(quarantine)
    return plan


@pytest.fixture(scope="module", params=PARAMETERS)
def judged(
    request: pytest.FixtureRequest, kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Case, dict[str, Any], PartitionPlan, PartitionPlan]]:
    """Every kind done to one partition: the case, Kafka's answer, our two plans, which were carried out."""
    name = request.param
    cases = make_cases(given_partition(name), tmp_path_factory.mktemp(name))
    answers = kafka_peer.load_logs(LoadCase(case.kafka, False, 0, 0, kafka_config(name)) for case in cases)
    return [
        (case, answer, repair(case.alike, name, like_kafka=True), repair(case.own, name, like_kafka=False))
        for case, answer in zip(cases, answers, strict=True)
    ]


Judged = list[tuple[Case, dict[str, Any], PartitionPlan, PartitionPlan]]


def test_like_kafka_leaves_the_files_that_kafka_leaves(judged: Judged) -> None:
    """--like-kafka: the same bytes in every file, the same offsets, wherever Kafka loads the log at all."""
    assert len(judged) >= 30
    different = {}
    for case, answer, alike, _ in judged:
        refused = "exception" in answer
        assert refused <= (case.kind in REFUSED_BY_KAFKA), f"{case.kind}: Kafka refuses: {answer.get('exception')}"
        if refused:
            continue
        offsets = (answer["log"]["start_offset"], answer["log"]["end_offset"])
        if digests(case.alike) != stated(answer) or (alike.log_start_offset, alike.log_end_offset) != offsets:
            different[case.kind] = (offsets, alike)
    assert different == {}


def test_kafka_reads_the_same_producers_out_of_what_we_leave(judged: Judged, kafka_peer: Peer) -> None:
    """Loaded clean, our copy gives Kafka the producers, epochs and index entries that its own loading ended with."""
    kept = [(case, answer) for case, answer, _, _ in judged if "exception" not in answer]
    copies = [case.alike for case, _ in kept]
    loads = [LoadCase(copy, True, answer["log"]["end_offset"], 0) for copy, (_, answer) in zip(copies, kept, strict=True)]
    for (case, answer), again in zip(kept, kafka_peer.load_logs(loads), strict=True):
        assert "exception" not in again, (case.kind, again)
        assert [again["log"][key] for key in ("start_offset", "end_offset")] == [
            answer["log"][key] for key in ("start_offset", "end_offset")
        ], case.kind
        for part in ("producers", "leader_epochs", "segments"):
            assert without_memory(again[part]) == without_memory(answer[part]), (case.kind, part)


def without_memory(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a producer's batches a snapshot keeps only the last: what a load has read itself it knows more of."""
    return [{**entry, "batches": entry["batches"][-1:]} if "batches" in entry else entry for entry in part]


def test_kafka_loads_whatever_is_repaired(judged: Judged, kafka_peer: Peer, tmp_path: Path) -> None:
    """Where Kafka refused the damage, both repairs leave a log that it loads; our own it loads without a further change."""
    loads: list[LoadCase] = []
    wanted: list[tuple[Case, PartitionPlan, Path, bool]] = []
    for case, answer, alike, own in judged:
        plans = [(case.own, own)] + ([(case.alike, alike)] if "exception" in answer else [])
        for directory, plan in plans:
            for clean in (True, False):
                copy = tmp_path / case.kind / directory.parent.name / str(clean) / directory.name
                shutil.copytree(directory, copy)
                loads.append(LoadCase(copy, clean, plan.log_end_offset, 0))
                wanted.append((case, plan, directory, clean))
    for (case, plan, directory, clean), again in zip(wanted, kafka_peer.load_logs(loads), strict=True):
        where = (case.kind, directory.parent.name, "clean" if clean else "unclean")
        assert "exception" not in again, (where, again["exception"])
        assert (again["log"]["start_offset"], again["log"]["end_offset"]) == (plan.log_start_offset, plan.log_end_offset), where
        before, after = digests(directory), stated(again)
        if clean and plan.changes:  # one that needs no repair has its leftovers, which Kafka removes
            assert {name: before[name] for name in before if name in after} == after or may_differ(before, after), where
        assert logs(before) == logs(after), where


def logs(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if name.endswith(".log")}


def may_differ(before: dict[str, str], after: dict[str, str]) -> bool:
    """What a clean loading changes of a sound directory, too: the epoch that begins at the log's end, stray snapshots."""
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return all(name == "leader-epoch-checkpoint" or (name.endswith(".snapshot") and name not in after) for name in changed)


def test_a_verifier_finds_nothing_in_what_is_repaired(judged: Judged) -> None:
    """Our own repair leaves nothing that `verify` warns of, but for what LEFT_BEHIND lists."""
    for case, _, _, own in judged:
        disk = OsDisk()
        found = verify_partition(disk, read_partition(disk, str(case.own)), PartitionOptions(is_clean=True))
        left = {finding.code for finding in found.findings if finding.severity != INFO}
        assert left - set(HOLES) <= LEFT_BEHIND.get(case.kind, set()), (case.kind, found.findings)
        assert own.holes or not left.intersection(HOLES), (case.kind, found.findings)


def test_a_repaired_directory_needs_no_repair(judged: Judged) -> None:
    """A second repair of ours has nothing to do. (Kafka's loading may have: it can drop epochs that the next one rebuilds.)"""
    for case, _, _, _ in judged:
        disk = OsDisk()
        session = LogDirectoryRepair(disk, str(case.own.parent), indexes=index_settings(case.own.name))
        assert session.plan(read_partition(disk, str(case.own))).changes == [], case.kind


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean from the last segment"])
def test_the_loader_does_as_kafka_in_the_other_modes(kafka_peer: Peer, tmp_path: Path, name: str, clean: bool) -> None:
    """Not what --repair takes for its case, but what a broker does: a clean start, and a crash with a recovery point."""
    source = given_partition(name)
    bases = sorted(int(path.name[:20]) for path in source.glob("*.log"))
    recovery_point = max(int(path.name[:20]) for path in source.glob("*.snapshot")) if clean else bases[-1]
    cases = make_cases(source, tmp_path)
    answers = kafka_peer.load_logs(LoadCase(case.kafka, clean, recovery_point, 0, kafka_config(name)) for case in cases)
    for case, answer in zip(cases, answers, strict=True):
        planned = PlannedDisk(OsDisk())
        settings = LoadSettings(clean, 0, recovery_point, index_settings(name))
        try:
            loaded = load_log(planned, str(case.alike), settings)
        except LogRefusedError:
            assert "exception" in answer, case.kind
            continue
        assert "exception" not in answer, (case.kind, answer["exception"])
        assert loaded.recovery_point == answer["log"]["recovery_point_offset"], case.kind
        apply_changes(OsDisk(), planned.changes(), Discard(OsDisk()))
        assert digests(case.alike) == stated(answer), case.kind


def test_the_log_files_alone_give_what_kafka_makes_of_them(kafka_peer: Peer, tmp_path: Path) -> None:
    """Every given partition, formats 0 and 1 too, with nothing but its .log files: the same files in the end."""
    cases: list[tuple[Path, str]] = []
    for log_set in every_log_set():
        for source in sorted(path for path in log_set.data.iterdir() if path.is_dir()):
            for use in ("kafka", "alike"):
                copy = tmp_path / log_set.data.parent.name / use / source.name / source.name  # no metadata log beside it
                copy.mkdir(parents=True)
                for log in source.glob("*.log"):
                    shutil.copyfile(log, copy / log.name)
            cases.append((tmp_path / log_set.data.parent.name, source.name))
    answers = kafka_peer.load_logs(LoadCase(at / "kafka" / name / name, False, 0, 0, kafka_config(name)) for at, name in cases)
    for (at, name), answer in zip(cases, answers, strict=True):
        repair(at / "alike" / name / name, name, like_kafka=True)
        assert digests(at / "alike" / name / name) == stated(answer), name


def test_an_overflowing_segment_is_split_as_kafka_splits_it(kafka_peer: Peer, tmp_path: Path) -> None:
    """The one refusal that Kafka repairs by itself: a last batch whose offset its segment's indexes cannot hold."""
    source = given_partition("codec-zstd-0")
    alike, judge = copy_partition(source, tmp_path / "alike"), copy_partition(source, tmp_path / "kafka")
    for copy in (alike, judge):
        DAMAGES["last_batch_overflows"](copy, random.Random(1))
    (answer,) = kafka_peer.load_logs([LoadCase(judge, False, 0, 0)])
    repair(alike, "codec-zstd-0", like_kafka=True)
    assert len(answer["segments"]) == 2
    assert digests(alike) == stated(answer)

"""Files that are no logs: entries as Kafka's dump tool has them, and a sentence for what is wrong with one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.inspect.dumping.renderer import Entry
from tests.conftest import LogSet, every_log_set
from tests.inspect.seen import Seen, dumped
from tests.log_builder import PartitionBuilder

DUMPED = [
    pytest.param(given_set, path, id=f"{given_set.data.parent.name}-{path}")
    for given_set in every_log_set()
    for path in given_set.dumped_paths()
    if path.endswith((".index", ".timeindex", ".txnindex", ".snapshot"))
]


def kafka_line(entry: Entry) -> str:
    """An entry as Kafka's dump tool prints it."""
    kind, fields = entry
    if kind == "offsetIndexEntry":
        return "offset: {offset} position: {position}".format(**fields)
    if kind == "timeIndexEntry":
        return "timestamp: {timestamp} offset: {offset}".format(**fields)
    if kind == "abortedTransaction":
        line = "version: 0 producerId: {producerId} firstOffset: {firstOffset} lastOffset: {lastOffset} "
        return (line + "lastStableOffset: {lastStableOffset}").format(**fields)
    first = fields["currentTxnFirstOffset"]
    line = (
        "producerId: {producerId} producerEpoch: {producerEpoch} coordinatorEpoch: {coordinatorEpoch} "
        f"currentTxnFirstOffset: {'OptionalLong.empty' if first is None else f'OptionalLong[{first}]'} "
        "lastTimestamp: {lastTimestamp} "
    ).format(**fields)
    if fields["lastOffset"] is None:
        return line
    return line + (
        "firstSequence: {firstSequence} lastSequence: {lastSequence} lastOffset: {lastOffset} offsetDelta: {offsetDelta} "
        "timestamp: {lastTimestamp}"
    ).format(**fields)


@pytest.mark.parametrize(("given_set", "path"), DUMPED)
def test_entries_are_kafkas(given_set: LogSet, path: str) -> None:
    """Indexes and producer snapshots give the lines of Kafka's own dump, in order."""
    lines = given_set.golden(path).decode().split("\n")[1:-1]
    lines = [line for line in lines if not line.endswith(" is empty.")]
    seen = dumped(given_set.data / path)
    assert [kafka_line(entry).strip() for _, entry in seen.entries_seen] == [line.strip() for line in lines]
    assert not seen.damages and not seen.problems


def entries_of(path: Path) -> list[Entry]:
    seen = dumped(path)
    assert not seen.damages and not seen.problems
    return [entry for _, entry in seen.entries_seen]


def test_text_files() -> None:
    """Checkpoints, leader epochs, ids and the election state, against the text of the files themselves."""
    data = every_log_set()[0].data
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "cleaner-offset-checkpoint"):
        rows = [line.split() for line in (data / name).read_text().split("\n")[2:-1]]
        found = [entry.fields for entry in entries_of(data / name)]
        assert [[row["topic"], str(row["partition"]), str(row["offset"])] for row in found] == rows
        assert rows
    epochs = data / "orders-0" / "leader-epoch-checkpoint"
    rows = [tuple(map(int, line.split())) for line in epochs.read_text().split("\n")[2:-1]]
    assert [(entry.fields["epoch"], entry.fields["startOffset"]) for entry in entries_of(epochs)] == rows
    topic_id = re.search(r"topic_id: (\S+)", (data / "orders-0" / "partition.metadata").read_text())
    assert topic_id
    assert entries_of(data / "orders-0" / "partition.metadata") == [
        Entry("partitionMetadata", {"version": 0, "topicId": topic_id[1]})
    ]
    [meta] = entries_of(data / "meta.properties")
    assert f"node.id={meta.fields['nodeId']}" in (data / "meta.properties").read_text()
    assert f"directory.id={meta.fields['directoryId']}" in (data / "meta.properties").read_text()
    [state] = entries_of(data / "__cluster_metadata-0" / "quorum-state")
    assert f'"leaderEpoch":{state.fields["leaderEpoch"]}' in (data / "__cluster_metadata-0" / "quorum-state").read_text()


def written(directory: Path, name: str, data: bytes) -> Seen:
    path = directory / name
    path.write_bytes(data)
    seen = dumped(path)
    assert len(seen.files) == 1
    return seen


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("00000000000000000000.index", bytes(12), "4 bytes after the last whole entry"),
        ("00000000000000000000.timeindex", bytes(13), "1 bytes after the last whole entry"),
        ("00000000000000000000.txnindex", bytes(35), "1 bytes after the last whole entry"),
        ("00000000000000000000.txnindex", b"\x01" + bytes(33), "entry 0 has version 1"),
        ("00000000000000000005.snapshot", b"\x00\x01garbage", "Snapshot failed schema validation"),
        ("00000000000000000005.snapshot", b"", "Snapshot failed schema validation"),
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n", "line 2 states 2 entries and 1 follow"),
        ("recovery-point-offset-checkpoint", b"1\n0\n", "line 1 states version 1"),
        ("replication-offset-checkpoint", b"\xff\xff", "line 1 is not UTF-8"),
        ("partition.metadata", b"version: 0\n", "line 2 is missing"),
        ("meta.properties", b"version=1\n", "node.id is missing"),
        ("quorum-state", b"{", "not JSON"),
        (".kafka_cleanshutdown", b"[]", "not a JSON object"),
    ],
)
def test_damage_is_a_sentence(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    """What is wrong is told with the byte, where it is known; what is whole before it is shown."""
    seen = written(tmp_path, name, data)
    assert seen.result is not None and not seen.result.is_sound
    [(_, damage)] = seen.damages
    assert sentence in damage.message and 0 <= damage.position <= len(data) == damage.end_position


def test_a_file_of_an_earlier_version_is_named_and_not_read(tmp_path: Path) -> None:
    seen = written(tmp_path, "kcli-uncleanable-partitions", b"torn")
    assert seen.result is not None and seen.result.is_sound and not seen.entries_seen


def test_preallocated_indexes_are_no_damage(tmp_path: Path) -> None:
    """The zeros behind the entries of an active segment's index are part of its size, and neither damage nor a remark."""
    seen = written(tmp_path, "00000000000000000007.index", (3).to_bytes(4, "big") + (61).to_bytes(4, "big") + bytes(80))
    assert [entry.fields for _, entry in seen.entries_seen] == [{"offset": 10, "position": 61}]
    assert seen.result is not None and seen.result.is_sound
    assert not seen.notes and (seen.files[0].size_bytes, seen.files[0].preallocated_bytes) == (88, 80)


@pytest.mark.parametrize(("suffix", "entry_bytes"), [("index", 8), ("timeindex", 12)])
def test_an_index_of_zeros_has_no_entries(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], suffix: str, entry_bytes: int
) -> None:
    """A broker has preallocated it and not written to it; one entry of zeros alone is what a broker closed."""
    seen = written(tmp_path, f"00000000000000000007.{suffix}", bytes(10 * entry_bytes))
    assert seen.entries_seen == [] and not seen.notes
    assert (seen.files[0].size_bytes, seen.files[0].preallocated_bytes) == (10 * entry_bytes, 10 * entry_bytes)
    path = tmp_path / f"00000000000000000007.{suffix}"
    assert main(["dump-log", "--output", "text", str(path)]) == 0
    assert f", no entries in use (preallocated: {10 * entry_bytes} B)" in capfd.readouterr().out
    closed = written(tmp_path, f"00000000000000000008.{suffix}", bytes(entry_bytes))
    assert [entry.fields["offset"] for _, entry in closed.entries_seen] == [8] and closed.files[0].preallocated_bytes == 0


def test_a_live_directory_is_not_all_preallocated_indexes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each topic of a running broker has two indexes of 10 MiB: no line on each, and no size that they make."""
    for number in range(3):
        log = PartitionBuilder(tmp_path / f"topic-{number}")
        log.append([(b"k", b"v")] * 20)
        log.append([(b"k", b"v")] * 20)
        log.flush()
        for suffix, entry_bytes in ((".index", 8), (".timeindex", 12)):
            os.truncate(log.path(suffix), 10 * 1024 * 1024 // entry_bytes * entry_bytes)
    for words in (["dump-log", "--output", "text"], ["describe"]):
        assert main([*words, str(tmp_path)]) == 0
        out, err = capfd.readouterr()
        assert err == "" and "MiB, " not in out and "after the last entry" not in out
        assert out.count("10.0 MiB") == (6 if words[0] == "dump-log" else 0), "as a remark on the size only"
    assert main(["dump-log", "--output", "text", str(tmp_path / "topic-0")]) == 0
    assert ".index  an offset index: where in its segment the batches of some offsets begin, 8 B (preallocated: 10.0 MiB)" in (
        capfd.readouterr().out
    )
    assert main(["dump-log", "--output", "json", str(tmp_path / "topic-0")]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert not [line for line in lines if line["type"] == "note"]
    (index,) = [line for line in lines if line.get("kind") == "index"]
    assert (index["sizeInBytes"], index["preallocatedBytes"]) == (10_485_760, 10_485_752)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("00000000000000000000.index.deleted", "marked to be deleted"),
        ("00000000000000000000.timeindex.swap", "about to replace"),
        ("00000000000000000000.txnindex.cleaned", "unfinished output of the log cleaner"),
        ("leader-epoch-checkpoint.tmp", "a temporary file"),
        (".lock", "the lock"),
    ],
)
def test_leftovers_are_known_by_name(tmp_path: Path, name: str, sentence: str) -> None:
    """A suffix does not hide what a file is."""
    seen = written(tmp_path, name, b"")
    assert sentence in seen.files[0].sentence
    assert seen.result is not None and seen.result.is_sound


def test_a_file_of_another_program_is_called_so_in_a_directory(tmp_path: Path) -> None:
    """Only a file that the command line names must be Kafka's."""
    (tmp_path / "t-0").mkdir()
    for name in ("notes.txt", f"{0:020}.log"):
        (tmp_path / "t-0" / name).write_bytes(b"")
    seen = dumped(tmp_path / "t-0")
    assert sorted("not a file that Kafka writes" in file.sentence for file in seen.files) == [False, True]
    assert seen.result is not None and seen.result.is_sound
    assert dumped(tmp_path / "t-0" / "notes.txt").problems


def test_half_written_leftovers_are_no_damage(tmp_path: Path) -> None:
    """What Kafka drops at its start may be half written: that is noted."""
    seen = written(tmp_path, "leader-epoch-checkpoint.tmp", b"0\n2\n0 0\n")
    assert seen.result is not None and seen.result.is_sound
    assert "unfinished" in seen.notes[0][1]


@pytest.mark.parametrize(
    "name",
    ["00000000000000000000.index", "00000000000000000000.txnindex", "00000000000000000009.snapshot", "meta.properties"],
)
@pytest.mark.parametrize(
    "data", [b"\xff" * 1000, bytes(1000), b"0\n" * 500, b"{" * 1000], ids=["ff", "zeros", "text", "braces"]
)
def test_garbage_makes_nothing_fall(tmp_path: Path, name: str, data: bytes) -> None:
    """Any bytes under any name end in entries or in damage."""
    seen = written(tmp_path, name, data)
    assert seen.result is not None

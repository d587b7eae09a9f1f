"""Protects the reading of small files and of names against Kafka itself: thousands of sound and spoilt ones, seeded, must
be taken or refused by both, and mean the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcli.format import checkpoint, file_names, metadata_files
from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import AbortedTxn, OffsetIndex, TimeIndex, TransactionIndex, overlapping_transactions
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import FormatError
from kcli.format.producer_snapshot import ProducerEntry, decode_producer_snapshot, encode_producer_snapshot
from kcli.log.disk.os_disk import OsDisk
from kcli.log.log_segment import LogSegment
from tests.oracle.peer import Peer

pytestmark = pytest.mark.oracle

CASES = 400
NAMES = ("directory", "offset", "checkpoint")


def ask(peer: Peer, cases: list[tuple[str, bytes, tuple[int, ...]]], work_dir: Path) -> list[str]:
    """Kafka's answers, "ok ..." or "error ...", one a case; each names the file that it read `FILE`."""
    lines = "".join(" ".join([kind, data.hex(), *map(str, numbers)]) + "\n" for kind, data, numbers in cases)
    ran = peer.run_java("SmallFiles", [str(work_dir)], lines.encode())
    assert ran.exit_code == 0, ran.stderr
    answers = [bytes.fromhex(line).decode() for line in ran.stdout.decode("ascii").split("\n")[:-1]]
    assert len(answers) == len(cases)
    return [answer.replace(str(work_dir / "file"), "FILE") for answer in answers]


def spoil(dice: random.Random, data: bytes) -> bytes:
    """`data`, or it cut, flipped, or with something put in or taken out."""
    out = bytearray(data)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
        at = dice.randrange(len(out) + 1)
        match dice.choice(["cut", "flip", "insert", "insert", "remove", "replace"]):
            case "cut":
                del out[at:]
            case "flip" if at < len(out):
                out[at] ^= 1 << dice.randrange(8)
            case "insert":
                out[at:at] = dice.choice(
                    [b" ", b"\n", b"\r\n", b"-", b"+", b"0", b"9", b"_", b"\t", b":", b"=", b"\\", b'"', b"}"]
                )
            case "remove":
                del out[at : at + dice.randrange(1, 4)]
            case "replace" if at < len(out):
                out[at : at + 1] = bytes((dice.choice(b' 0a-\n:"{},.'),))
    return bytes(out)


def compare(peer: Peer, work_dir: Path, kind: str, sound: list[bytes], ours: Callable[[bytes], str]) -> None:
    """Both refuse, or both give the same."""
    dice = random.Random(kind)
    inputs = sound + [spoil(dice, dice.choice(sound)) for _ in range(CASES)]
    inputs = [data for data in inputs if not (kind in NAMES and (b"/" in data or b"\0" in data or not data))]
    answers = ask(peer, [(kind, data, ()) for data in inputs], work_dir)
    differing = []
    for data, answer in zip(inputs, answers, strict=True):
        try:
            mine = "ok " + ours(data)
        except FormatError:
            mine = "error"
        kafkas = "error" if answer.startswith("error") else answer
        if mine != kafkas:
            differing.append((data, mine, answer))
    assert not differing, differing[:5]
    assert sum(answer.startswith("ok") for answer in answers) > len(sound)


@pytest.mark.ci
def test_checkpoints(kafka_peer: Peer, tmp_path: Path) -> None:
    sound = [b"", b"0\n0\n", b"0\n2\nt 0 5\na-b 12 900\n", b"0\n1\nsome.topic 3 -1\n"]

    def offsets(data: bytes) -> str:
        found = {
            f"{topic}-{partition}": offset
            for (topic, partition), offset in checkpoint.decode_offset_checkpoint(data).offsets().items()
        }
        return "{" + ", ".join(f"{key}={found[key]}" for key in sorted(found)) + "}"

    compare(kafka_peer, tmp_path, "offsets", sound, offsets)
    epochs = [b"", b"0\n0\n", b"0\n2\n0 0\n2 402\n", b"0\n1\n7 9223372036854775807\n"]

    def starts(data: bytes) -> str:
        return "[" + ", ".join(f"{epoch} {start}" for epoch, start in checkpoint.decode_leader_epochs(data).entries) + "]"

    compare(kafka_peer, tmp_path, "epochs", epochs, starts)


@pytest.mark.ci
def test_metadata_files(kafka_peer: Peer, tmp_path: Path) -> None:
    topic_id = Uuid(range(16))

    def partition(data: bytes) -> str:
        return metadata_files.encode_partition_metadata(metadata_files.decode_partition_metadata(data)).decode()

    compare(
        kafka_peer,
        tmp_path,
        "partition",
        [f"version: 0\ntopic_id: {topic_id}".encode(), f"version: 3\nx:  {topic_id}\n\n".encode()],
        partition,
    )

    def meta(data: bytes) -> str:
        found = metadata_files.decode_meta_properties(data)
        parts = {"clusterId": found.cluster_id, "nodeId": found.node_id, "directoryId": found.directory_id}
        text = "".join(f", {key}={value}" for key, value in parts.items() if value is not None)
        return f"MetaProperties(version={found.version}{text})"

    sound = [
        f"#\n#Sat Nov 21 03:50:00 UTC 2026\nnode.id=1\ndirectory.id={topic_id}\nversion=1\ncluster.id=abc\n".encode(),
        b"broker.id=0\nversion=0\ncluster.id=EIPBVNaKSzu0b9_FRUzpFg\n",
        b"version = 1\nnode.id : 5\ncluster.id a\\\n  b\\u0041\n",
    ]
    compare(kafka_peer, tmp_path, "meta", sound, meta)

    def clean(data: bytes) -> str:
        try:
            epoch = metadata_files.decode_clean_shutdown(data).broker_epoch
        except FormatError:
            epoch = None  # Kafka goes on without one
        return "OptionalLong.empty" if epoch is None else f"OptionalLong[{epoch}]"

    sound = [b"", b'{"version":0,"brokerEpoch":130}', b'{"brokerEpoch":-1,"other":[]}']
    compare(kafka_peer, tmp_path, "clean", sound, clean)


@pytest.mark.ci
def test_quorum_states(kafka_peer: Peer, tmp_path: Path) -> None:
    """Taken and refused alike; Kafka's answer leaves out the applied offset and the cluster."""
    directory_id = Uuid(range(16))
    states = [
        metadata_files.QuorumStateData(0, 1, 2, -1, current_voters=(1, 2)),
        metadata_files.QuorumStateData(0, -1, 7, 2, cluster_id="abc", current_voters=(1,)),
        metadata_files.QuorumStateData(1, 1, 2, -1),
        metadata_files.QuorumStateData(1, -1, 2, 3, voted_directory_id=directory_id),
    ]
    dice = random.Random("quorum")
    sound = [metadata_files.encode_quorum_state(state) for state in states]
    inputs = sound + [spoil(dice, dice.choice(sound)) for _ in range(CASES)]
    for data, answer in zip(inputs, ask(kafka_peer, [("quorum", data, ()) for data in inputs], tmp_path), strict=True):
        try:
            state = metadata_files.decode_quorum_state(data)
        except FormatError:
            assert answer.startswith("error"), data
            continue
        leader = "OptionalInt.empty" if state.leader_id == -1 else f"OptionalInt[{state.leader_id}]"
        assert f"Election(epoch={state.leader_epoch}, leaderId={leader}" in answer, (data, answer)


@pytest.mark.ci
def test_directory_names(kafka_peer: Peer, tmp_path: Path) -> None:
    sound = [
        b"a-0",
        b"__consumer_offsets-49",
        b"a-b.c-7.0123456789abcdef0123456789abcdef-delete",
        b"t-1.0f-future",
        b"t-1.0f-stray",
        b"x-2147483647",
    ]

    def directory(data: bytes) -> str:
        found = file_names.parse_partition_directory(data.decode("utf-8", "replace"))
        return f"{found.topic}-{found.partition}"

    compare(kafka_peer, tmp_path, "directory", sound, directory)


@pytest.mark.ci
def test_file_names(kafka_peer: Peer, tmp_path: Path) -> None:
    def offset(data: bytes) -> str:
        # Any extension that makes a segment's file does; names of cached remote indexes are another matter.
        found = file_names.parse_file_name(data.decode("utf-8", "replace") + ".log").base_offset
        if found is None or b"." not in data or b"_" in data.partition(b".")[0]:
            raise FormatError("no number")
        return str(found)

    compare(
        kafka_peer,
        tmp_path,
        "offset",
        [b"00000000000000000123.log", b"-7.x", b"9223372036854775807.index"],
        offset,
    )

    def snapshot(data: bytes) -> str:
        name = data.decode("utf-8", "replace")
        found = file_names.parse_file_name(name)
        if found.kind is not file_names.FileKind.METADATA_SNAPSHOT:
            if ".checkpoint" not in name or not name.endswith((".checkpoint", ".checkpoint.part", ".checkpoint.deleted")):
                return "none"
            raise FormatError("no snapshot")
        state = f"{found.state is FileState.PARTIAL} {found.state is FileState.DELETED}".lower()
        return f"OffsetAndEpoch[offset={found.base_offset}, epoch={found.epoch}] {state}"

    stem = b"00000000000000000100-0000000002"
    sound = [stem + b".checkpoint", stem + b"-17.checkpoint.part", stem + b".checkpoint.deleted", stem + b".log"]
    compare(kafka_peer, tmp_path, "checkpoint", sound, snapshot)


def random_indexes(dice: random.Random) -> Iterator[tuple[str, bytes, tuple[int, ...], str]]:
    """Index files of every kind of order and disorder -> (kind, bytes, numbers, what we say of them)."""
    for _ in range(CASES):
        base, count = dice.choice([0, 1000, 2**40]), dice.choice([0, 1, 2, 3, 10, 700, 1500])
        keys = [dice.randrange(-5, 3000) for _ in range(count)]
        if dice.random() < 0.6:
            keys = sorted({abs(key) for key in keys})
        tail = bytes(dice.choice([0, 0, 0, 3, 8, 24]))
        target = base + dice.randrange(-10, 3100)
        data = b"".join(key.to_bytes(4, "big", signed=True) + (i * 7).to_bytes(4, "big") for i, key in enumerate(keys)) + tail
        index = OffsetIndex.decode(data, base)
        found, sanity = index.lookup(target), sanity_of(index)
        index.truncate_to(target)
        yield "index", data, (base, target), f"{found.offset} {found.position} {len(index)} {sanity}"
        times = [dice.randrange(0, 3000) for _ in keys] if dice.random() < 0.4 else keys
        data = b"".join(
            time.to_bytes(8, "big", signed=True) + key.to_bytes(4, "big", signed=True)
            for time, key in zip(times, keys, strict=True)
        )
        time_index = TimeIndex.decode(data + tail, base)
        seen, sanity = time_index.lookup(target - base), sanity_of(time_index)
        yield "timeindex", data + tail, (base, target - base), f"{seen.timestamp} {seen.offset} {{}} {sanity}"


def sanity_of(index: OffsetIndex | TimeIndex | TransactionIndex) -> str:
    try:
        index.sanity_check("FILE")
    except FormatError as error:
        return error.message
    return "sound"


@pytest.mark.ci
def test_index_lookups_truncations_and_checks(kafka_peer: Peer, tmp_path: Path) -> None:
    cases = list(random_indexes(random.Random("indexes")))
    answers = ask(kafka_peer, [case[:3] for case in cases], tmp_path)
    for (kind, data, numbers, expected), answer in zip(cases, answers, strict=True):
        if kind == "timeindex":
            index = TimeIndex.decode(data, numbers[0])
            index.truncate_to(numbers[1])
            expected = expected.format(len(index))
        assert answer == f"ok {expected}", (kind, data.hex(), numbers)


def test_transaction_indexes(kafka_peer: Peer, tmp_path: Path) -> None:
    """A search finds the aborted transactions that Kafka finds: in any entries, and by bisection in a broker's own files."""
    dice = random.Random("txnindex")
    cases, expected = [], []
    for case in range(CASES):
        base = dice.choice([0, 50])
        entries = [
            AbortedTxn(dice.choice([0, 0, 0, 0, 0, 1]), dice.randrange(9), first, last, first + dice.randrange(80))
            for first, last in random_transactions(dice, base)
        ]
        start = dice.randrange(200)
        end = start + dice.randrange(100)
        whole = TransactionIndex(base, entries).encode()
        found, complete = overlapping_transactions(whole, start, end)
        tail = bytes(dice.choice([0, 0, 5]))
        cases.append(("txnindex", whole + tail, (base, start, end)))
        expected.append(answer_for(found, complete, sanity_of(TransactionIndex(base, entries, tail))))

        # A broker appends when a marker is written: last offsets rise, and the last stable offset is not beyond the marker.
        last_offsets = sorted({last for _, last in random_transactions(dice, base) if last >= base})
        entries = [
            AbortedTxn(0, 7, dice.randrange(base, last + 1), last, dice.randrange(base, last + 2)) for last in last_offsets
        ]
        segment = LogSegment(str(tmp_path / str(case)), base)
        Path(segment.log_path).parent.mkdir()
        data = TransactionIndex(base, entries, tail).encode()
        Path(segment.path(FileKind.TXN_INDEX)).write_bytes(data)
        found, complete = segment.aborted_transactions(OsDisk(), start, end)
        cases.append(("txnindex", data, (base, start, end)))
        expected.append(answer_for(found, complete, "sound"))
    assert ask(kafka_peer, cases, tmp_path) == expected


def random_transactions(dice: random.Random, base: int) -> Iterator[tuple[int, int]]:
    """Draw first and last offsets; a fifth of the last ones is too low."""
    for _ in range(dice.randrange(6)):
        first = base + dice.randrange(100)
        yield first, first + dice.randrange(60) - dice.choice([0, 0, 0, 0, 80])


def answer_for(found: list[AbortedTxn], complete: bool, sanity: str) -> str:
    return f"ok [{', '.join(map(str, found))}] {str(complete).lower()} {sanity}"


@pytest.mark.ci
def test_producer_snapshots(kafka_peer: Peer, tmp_path: Path) -> None:
    dice = random.Random("snapshot")
    sound = [
        encode_producer_snapshot([ProducerEntry(dice.randrange(9), 0, 5, 10, 2, 7, -1, -1) for _ in range(count)])
        for count in (0, 1, 3)
    ]
    inputs = sound + [spoil(dice, dice.choice(sound)) for _ in range(CASES)]
    expected = []
    for data in inputs:
        try:
            expected.append(f"ok {len(decode_producer_snapshot(data).entries)}")
        except FormatError as error:
            expected.append(f"error {error.message}")
    assert ask(kafka_peer, [("snapshot", data, ()) for data in inputs], tmp_path) == expected

"""Protects: on damage `--output kafka` prints what kafka-dump-log 4.3.1 prints, up to where that tool dies; then it goes on.

And what kcli writes, that tool reads: batches with every codec and attribute, message sets of formats 0 and 1.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.format.compression import CODECS, deflate, inflate
from kcli.format.limits import MAX_INFLATED_BATCH_BYTES
from kcli.format.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    NewRecordBatch,
    RecordBatch,
    empty_batch,
    read_header,
)
from kcli.format.records import Header, Record, encode_records
from tests.conftest import every_log_set, given_partition
from tests.damage import DAMAGES, NotApplicableError, damaged_copy
from tests.damage.random_bytes import mutate
from tests.message_sets import NewLegacyRecord, encode_message_set
from tests.oracle.dump_cases import LOG_SUFFIXES, TOPIC_DECODERS, DumpCases
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

PARTITIONS = ["codec-zstd-0", "compacted-txn-0", "odd-records-0", "transactions-0", "magic1-gzip-0", "__transaction_state-1"]
LOG_OPTIONS = [
    [],
    ["--deep-iteration"],
    ["--print-data-log"],
    ["--print-data-log", "--skip-record-metadata"],
    ["--max-bytes", "700", "--deep-iteration"],
]
INDEX_OPTIONS = [[], ["--index-sanity-check"], ["--verify-index-only"], ["--max-message-size", "1000"]]
INDEX_SUFFIXES = (".index", ".timeindex")
STRING, INTEGER, LONG = (f"org.apache.kafka.tools.api.{kind}Decoder" for kind in ("String", "Integer", "Long"))


def given_files(*suffixes: str) -> list[Path]:
    """Every given file of these kinds that has a byte; of copies with the same content one."""
    found = {path.read_bytes(): path for given in every_log_set() for path in sorted(given.data.rglob("*"), reverse=True)
             if path.is_file() and path.suffix in suffixes and path.stat().st_size}  # fmt: skip
    return sorted(found.values())


def option_sets(partition: str, name: str) -> list[list[str]]:
    """The options that matter to a file of that name in that partition."""
    if not name.endswith(LOG_SUFFIXES):
        return INDEX_OPTIONS if name.endswith(INDEX_SUFFIXES) else [[]]
    decoder = TOPIC_DECODERS.get(partition.rpartition("-")[0])
    return LOG_OPTIONS if decoder is None else [*LOG_OPTIONS, [decoder]]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def touched(sound: dict[str, bytes], damaged: dict[str, bytes]) -> list[str]:
    """The files that a damage changed, and the indexes beside a log that it changed."""
    changed = {name for name in sound.keys() | damaged.keys() if sound.get(name) != damaged.get(name)}
    stems = {name.split(".")[0] for name in changed}
    beside = {name for name in damaged if name.endswith(INDEX_SUFFIXES) and name.split(".")[0] in stems}
    return sorted((changed | beside) & damaged.keys())


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_kind_of_damage(kafka_peer: Peer, name: str, tmp_path: Path) -> None:
    """All files that a damage touches, with every set of options: Kafka's bytes up to where it dies."""
    partition = given_partition(name)
    sound = contents(partition)
    cases = DumpCases(tmp_path / "cases")
    for kind in DAMAGES:
        try:
            copy = damaged_copy(kind, partition, tmp_path / kind)
        except NotApplicableError:
            continue
        damaged = contents(copy)
        for file_name in touched(sound, damaged):
            beside = {other: content for other, content in damaged.items() if other.split(".")[0] == file_name.split(".")[0]}
            # A log is only read, so a link will do; Kafka's tool trims indexes.
            files = {other: copy / other if other.endswith(".log") else content for other, content in beside.items()}
            for options in option_sets(name, file_name):
                cases.add(kind, file_name, files, options)
    assert len(cases.cases) > 100
    assert cases.differences(kafka_peer) == []


def head_of(log: bytes, most_batches: int = 4, most_bytes: int = 12_000) -> bytes:
    """The first few batches of a log."""
    end = 0
    for _ in range(most_batches):
        if end + 12 > len(log):
            break
        behind = end + 12 + int.from_bytes(log[end + 8 : end + 12], "big")
        if end and behind > most_bytes:
            break
        end = behind
    return log[:end]


def some_options(path: Path, rng: random.Random, wrong_decoder: float = 0.15) -> list[str]:
    """Options that fit a log most of the time; now and then the decoder of another topic."""
    fitting = option_sets(path.parent.name, path.name)
    if fitting[-1][0] in TOPIC_DECODERS.values() and rng.random() < 0.7:
        return fitting[-1]
    if rng.random() < wrong_decoder:
        return [rng.choice(list(TOPIC_DECODERS.values()))]
    if rng.random() < 0.1:
        return ["--max-bytes", str(rng.randrange(3000)), "--print-data-log"]
    return rng.choice(fitting)


def test_random_damage_of_logs(kafka_peer: Peer, tmp_path: Path) -> None:
    """The first batches of every given log with random damage, dumped in every way."""
    rng = random.Random(7)
    cases = DumpCases(tmp_path)
    for path in given_files(*LOG_SUFFIXES):
        head = head_of(path.read_bytes())
        for _ in range(25):
            cases.add(str(path), path.name, {path.name: mutate(head, rng)}, some_options(path, rng))
    assert cases.differences(kafka_peer) == []


def test_random_damage_of_indexes_and_snapshots(kafka_peer: Peer, tmp_path: Path) -> None:
    """Every given index and snapshot with random damage to it, to the log beside it, or with a file missing."""
    rng = random.Random(8)
    cases = DumpCases(tmp_path)
    for path in given_files(*INDEX_SUFFIXES, ".txnindex", ".snapshot"):
        beside = {other.name: other.read_bytes() for other in path.parent.glob(f"{path.stem}.*")}
        if len(beside.get(f"{path.stem}.log", b"")) > 600_000:
            continue  # Kafka's tool walks the whole log again for each entry of a time index
        for _ in range(12):
            files = dict(beside)
            spoilt = rng.choice([path.name, path.name, path.name, *files])
            files[spoilt] = mutate(files[spoilt], rng) if rng.random() < 0.9 else files[spoilt] + bytes(rng.choice((8, 24, 99)))
            missing = rng.choice(list(files))
            if missing != path.name and rng.random() < 0.1:
                del files[missing]
            cases.add(str(path), path.name, files, rng.choice(option_sets(path.parent.name, path.name)))
    assert cases.differences(kafka_peer) == []


def batches_of(log: bytes) -> Iterator[tuple[RecordBatch, bytes]]:
    """The batches of a sound log of format 2, with the bytes of their records as they were before a codec."""
    position = 0
    while position < len(log):
        header = read_header(log, position, position)
        payload = log[position + HEADER_BYTES : header.end_position]
        yield header, bytes(inflate(header.codec, payload, limit=MAX_INFLATED_BATCH_BYTES)) if header.codec else payload
        position = header.end_position


def forged_batch(header: RecordBatch, records: bytes, rng: random.Random) -> bytes:
    """The batch with damaged records, another codec, count or flags, and a CRC that fits: what no checksum sees."""
    if rng.random() < 0.8:
        records = mutate(records, rng)
    codec = rng.choice((0, 0, header.codec, *CODECS))
    payload = bytes(deflate(codec, records)) if codec else records
    if codec and rng.random() < 0.25:
        payload = mutate(payload, rng)
    count = header.record_count + rng.choice((0, 0, 0, 0, 1, -1, -header.record_count))
    flags = rng.choice((0, 0, 0, LOG_APPEND_TIME_FLAG, CONTROL_FLAG, DELETE_HORIZON_FLAG))
    return NewRecordBatch(
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        record_count=count,
        records=payload,
        attributes=header.attributes & ~CODEC_MASK | codec | flags,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    ).encode()


def test_damage_that_no_checksum_sees(kafka_peer: Peer, tmp_path: Path) -> None:
    """Records that lie inside sound batches, plain and compressed: which records are printed before the tool dies."""
    rng = random.Random(9)
    cases = DumpCases(tmp_path)
    decoders = [["--value-decoder-class", LONG], ["--key-decoder-class", INTEGER], ["--value-decoder-class"]]
    for path in given_files(".log"):
        head = head_of(path.read_bytes(), most_bytes=40_000)
        if head[16] != 2:
            continue
        batches = list(batches_of(head))
        for _ in range(25):
            log = b"".join(forged_batch(*batch, rng) for batch in rng.sample(batches, min(2, len(batches))))
            options = rng.choice(decoders) if rng.random() < 0.2 else some_options(path, rng, wrong_decoder=0.0)
            cases.add(str(path), path.name, {path.name: log}, options)
    assert cases.differences(kafka_peer) == []


# ------------------------------------------------------------------------------------------- what kcli writes, Kafka reads

KEYS = [b"key", None, b"", "schlüssel-鍵".encode(), bytes(4), bytes(8)]
VALUES = [b"value " * 40, None, b"", "wert-🔑".encode(), (7).to_bytes(4, "big"), (2**40).to_bytes(8, "big")]
HEADERS = [(), (Header(b"", b""), Header(b"twice", None), Header(b"twice", b"\x00")), (Header("ü".encode(), b"x"),)]


def written_batch(base_offset: int, codec: int, flags: int, *, producer_id: int = -1, base_sequence: int = -1) -> bytes:
    """A batch as a producer and a broker would write it, with every odd key, value and set of headers."""
    records = [
        Record(i, 10 * i - 20, key, value, HEADERS[i % len(HEADERS)], attributes=0)
        for i, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]
    encoded = encode_records(records)
    return NewRecordBatch(
        base_offset=base_offset,
        last_offset_delta=len(records) - 1,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_030,
        record_count=len(records),
        records=deflate(codec, encoded) if codec else encoded,
        attributes=codec | flags,
        partition_leader_epoch=3,
        producer_id=producer_id,
        producer_epoch=2 if producer_id >= 0 else -1,
        base_sequence=base_sequence,
    ).encode()


def marker_batch(base_offset: int, *, committed: bool) -> bytes:
    """The control batch that ends a transaction."""
    record = Record(0, 0, bytes((0, 0, 0, int(committed))), bytes((0, 0, 0, 0, 0, 9)))
    flags = CONTROL_FLAG | TRANSACTIONAL_FLAG
    return NewRecordBatch(
        base_offset, 0, 1_700_000_000_000, 1_700_000_000_000, 1, encode_records([record]), flags, 3, 77, 2
    ).encode()


def test_kafka_reads_batches_that_kcli_writes(kafka_peer: Peer, tmp_path: Path) -> None:
    """Every codec with every flag, sequences that wrap, markers and empty batches: the same lines, each one valid."""
    cases = DumpCases(tmp_path)
    options = [["--print-data-log"], ["--deep-iteration"], ["--value-decoder-class", STRING], []]
    name, batches, records = f"{0:020}.log", 0, 0
    for codec in CODECS:
        for flags in (
            0,
            LOG_APPEND_TIME_FLAG,
            TRANSACTIONAL_FLAG,
            DELETE_HORIZON_FLAG,
            TRANSACTIONAL_FLAG | LOG_APPEND_TIME_FLAG,
        ):
            batch = written_batch(0, codec, flags, producer_id=77 if flags else -1, base_sequence=2**31 - 3 if flags else -1)
            log = batch + empty_batch(read_header(batch))._replace(base_offset=6).encode()
            log += marker_batch(12, committed=True) + marker_batch(13, committed=False)
            for words in options:
                cases.add(f"codec {codec} flags {flags}", name, {name: log}, words)
    assert cases.differences(kafka_peer) == []
    for outcome, case in zip(kafka_peer.dump_many(cases.cases, tmp_path), cases.cases, strict=True):
        assert (outcome.exit_code, outcome.stdout.count(b"isvalid: true"), outcome.stdout.count(b"isvalid: false")) == (0, 4, 0)
        assert outcome.stdout.count(b"\n| offset: ") == (0 if len(case) == 2 else 8)
        batches, records = batches + 4, records + outcome.stdout.count(b"\n| offset: ")
    assert (batches, records) == (400, 600)


@pytest.mark.parametrize("decoder", [INTEGER, LONG])
def test_kafka_and_kcli_decode_numbers_alike(kafka_peer: Peer, tmp_path: Path, decoder: str) -> None:
    """Keys and values that are numbers, of the right size and larger; one that is too short ends both."""
    size_bytes = 4 if decoder == INTEGER else 8
    numbers = [number.to_bytes(size_bytes, "big", signed=True) for number in (0, 1, -1, 2**31 - 1, -(2**31))]
    values = [*numbers, numbers[1] + b"more", b"\x01\x02"]
    records = encode_records(Record(i, 0, numbers[i % 5], value) for i, value in enumerate(values))
    log = NewRecordBatch(0, len(values) - 1, 5, 5, len(values), records).encode()
    name = f"{0:020}.log"
    cases = DumpCases(tmp_path)
    for options in (["--key-decoder-class", decoder], ["--value-decoder-class", decoder], ["--key-decoder-class", decoder] * 2):
        cases.add(
            decoder, name, {name: log}, options[:2] if len(options) == 2 else [*options[:2], "--value-decoder-class", decoder]
        )
    assert cases.differences(kafka_peer) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_kafka_reads_message_sets_that_kcli_writes(kafka_peer: Peer, tmp_path: Path, magic: int) -> None:
    """Formats 0 and 1, plain and in a wrapper of each codec, at offset 0 and above, by either clock."""
    cases = DumpCases(tmp_path)
    for codec in (0, 1, 2, 3):
        for first in (0, 5_000_000_000):
            for append_time_ms in (None, 1_700_000_000_999):
                rows = enumerate(zip(KEYS, VALUES, strict=True))
                records = [NewLegacyRecord(first + i, 1_700_000_000_000 + i, key, value) for i, (key, value) in rows]
                log = encode_message_set(records, magic=magic, codec=codec, log_append_time_ms=append_time_ms)
                name = f"{first:020}.log"
                for options in (["--print-data-log"], ["--deep-iteration"], ["--print-data-log", "--skip-record-metadata"]):
                    cases.add(f"magic {magic} codec {codec}", name, {name: log}, options)
    assert cases.differences(kafka_peer) == []
    for outcome, case in zip(kafka_peer.dump_many(cases.cases, tmp_path), cases.cases, strict=True):
        assert outcome.exit_code == 0
        assert b"isvalid: false" not in outcome.stdout
        assert b"isValid: false" not in outcome.stdout
        # Without metadata nothing but an empty line is printed of the record that has neither key nor value.
        assert outcome.stdout.count(b"\n|") == len(KEYS) - ("--skip-record-metadata" in case)

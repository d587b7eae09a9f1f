"""Kafka judges appends: the same batches through its log and through ours, sound, odd and damaged ones, under many settings.

The same codes, offsets and named records come back, and where no codec writes anything anew the same files are left. Where we
differ on purpose stands in `differs_on_purpose`.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcli.format.compression import inflate
from kcli.format.primitives import FormatError, crc32c
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, check_batch
from kcli.format.records import Header, Record, encode_records, read_records
from kcli.log.errors import AppendError
from kcli.log.log_config import LogConfig
from tests.log.live_logs import NOW_MS, LiveLog, new_batch
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

SETTINGS = (
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"cleanup.policy": "compact"},
    {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
    {"max.message.bytes": "300", "segment.bytes": "1048576"},
    {"segment.bytes": "1048576", "index.interval.bytes": "200"},
    {"compression.type": "uncompressed"},
    {"compression.type": "zstd"},
    {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"},
)
LEADER_EPOCH = 5
SEQUENCES = 400


class Sequence(NamedTuple):
    """A topic's settings and the batches that come one after the other."""

    settings: dict[str, str]
    batches: list[bytes]

    def line(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{settings}\t{LEADER_EPOCH}\t{NOW_MS}\t{','.join(batch.hex() for batch in self.batches)}\n"


def random_batch(dice: random.Random, sequences: dict[int, int]) -> bytearray:
    """Mostly a sound batch, of a producer whose sequence mostly goes on."""
    count = dice.choice((1, 1, 2, 3, 70))
    producer = None
    if dice.random() < 0.5:
        producer_id = dice.choice((7, 8))
        sequence = sequences.get(producer_id, 0) + dice.choice((0, 0, 0, 0, 0, 1, -count, 5))
        sequences[producer_id] = max(0, sequence) + count
        producer = (producer_id, dice.choice((0, 0, 0, 0, 1)), max(0, sequence))
    near = dice.choice((0, 0, 0, 10, 999, 1000, 1001, 3_600_000, 3_600_001))
    stamps = [NOW_MS + dice.choice((-1, 1)) * dice.randint(0, near) for _ in range(count)]
    if dice.random() < 0.1:
        stamps[dice.randrange(count)] = -1
    return bytearray(
        new_batch(
            [dice.choice((None, b"", b"v" * dice.randint(0, 200))) for _ in range(count)],
            keys=[dice.choice((b"k", b"k", b"k", b"", None)) if dice.random() < 0.3 else b"k" for _ in range(count)],
            timestamps=stamps,
            codec=dice.choice((0, 0, 0, 1, 2, 3, 4)),
            attributes=dice.choice((0, 0, 0, 0, 0, 0, 0, 8)),
            producer=producer,
            headers=(Header(b"h", b"v"),) if dice.random() < 0.2 else (),
            max_timestamp=None if dice.random() < 0.9 else NOW_MS + 7,
        )
    )


def damage(dice: random.Random, batch: bytearray) -> bytes:
    """A byte or a field changed, bytes lost or added; with a right CRC or not."""
    kind = dice.choice(("byte", "header", "header", "records", "cut", "longer", "twice", "records_count", "control"))
    if kind == "byte":
        batch[dice.randrange(len(batch))] ^= 1 << dice.randrange(8)
    elif kind == "header":
        batch[dice.randrange(HEADER_BYTES)] ^= 1 << dice.randrange(8)
    elif kind == "records":
        batch[dice.randrange(HEADER_BYTES, len(batch))] ^= 1 << dice.randrange(8)
    elif kind == "records_count":
        change = dice.choice((-1, 1))
        for at in (23, 57):
            batch[at : at + 4] = (int.from_bytes(batch[at : at + 4], "big") + change).to_bytes(4, "big", signed=True)
    elif kind == "control":
        batch[22] |= 0x20
    if dice.random() < 0.7:
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    whole = bytes(batch)
    return {"cut": whole[: dice.randrange(1, len(whole))], "longer": whole + b"\0" * 5, "twice": whole * 2}.get(kind, whole)


def is_numbered(batch: bytes | bytearray) -> bool:
    """Whether the records, as far as they can be read, have the offsets 0, 1, 2 ...; see the last test."""
    try:
        header = check_batch(batch)
        body = inflate(header.codec, memoryview(batch)[HEADER_BYTES:], limit=1 << 20)
        return all(record.offset_delta == at for at, record in enumerate(read_records(body, header.record_count)))
    except FormatError:
        return True


def sequences() -> list[Sequence]:
    dice = random.Random(20)
    found = []
    for number in range(SEQUENCES):
        known: dict[int, int] = {}
        batches = []
        for _ in range(dice.randint(1, 8)):
            batch = random_batch(dice, known)
            damaged = damage(dice, bytearray(batch)) if dice.random() < 0.3 else batch
            batches.append(bytes(damaged if is_numbered(damaged) else batch))
        found.append(Sequence(dict(SETTINGS[number % len(SETTINGS)]), batches))
    return found


def appended(log: LiveLog, batch: bytes) -> dict[str, Any]:
    try:
        info = log.log.append_as_leader(memoryview(bytearray(batch)), LEADER_EPOCH, NOW_MS)
    except AppendError as error:
        found: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.record_errors:
            found["record_errors"] = [each.batch_index for each in error.record_errors]
        return found
    return {
        "code": 0,
        "first_offset": info.first_offset,
        "last_offset": info.last_offset,
        "log_append_time_ms": info.log_append_time_ms,
    }


def differs_on_purpose(ours: dict[str, Any]) -> bool:
    """A codec that does not exist has a code of its own with us; Kafka answers with UNKNOWN_SERVER_ERROR."""
    return int(ours["code"]) == 76


def test_appends_get_kafkas_answers_and_leave_kafkas_files(kafka_peer: Peer, tmp_path: Path) -> None:
    """Sequences of random batches, a third of them damaged: code, offsets, record errors, and the files."""
    cases = sequences()
    listed = tmp_path / "cases"
    listed.write_text("".join(case.line() for case in cases))
    ran = kafka_peer.run_java("AppendLog", [str(listed), str(tmp_path / "kafka")])
    answers = [json.loads(line) for line in ran.stdout.decode().splitlines()]
    assert len(answers) == len(cases), ran.stderr[-2000:]
    codes: set[int] = set()
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        live = LiveLog(tmp_path / "own" / str(number) / "t-0", LogConfig.of(case.settings))
        for at, (batch, theirs) in enumerate(zip(case.batches, answer["appends"], strict=True)):
            ours = appended(live, batch)
            codes.add(theirs["code"])
            if differs_on_purpose(ours):
                continue
            where = (number, at, case.settings, batch.hex(), ours, theirs)
            assert {**ours, "message": ""} == {**theirs, "message": ""}, where
        assert live.log.log_end_offset == answer["end_offset"]
        live.log.close()
        if case.settings.get("compression.type", "uncompressed") == "uncompressed":
            own = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in live.directory.iterdir()}
            assert own == answer["files"], (number, case.settings)
    assert {0, 2, 10, 32, 45, 47, 87} <= codes, "the cases reach every kind of answer"


def test_records_that_are_not_numbered_are_kept_by_kafka(kafka_peer: Peer, tmp_path: Path) -> None:
    """Why we number them anew: Kafka writes uncompressed records with one offset twice as they came."""
    rows = [Record(0, 0, b"k", b"a"), Record(0, 3, b"k", b"b")]
    batch = NewRecordBatch(0, 1, NOW_MS, NOW_MS + 3, 2, encode_records(rows)).encode()
    listed = tmp_path / "cases"
    listed.write_text(Sequence({}, [batch]).line())
    ran = kafka_peer.run_java("AppendLog", [str(listed), str(tmp_path / "kafka")])
    answer = json.loads(ran.stdout)
    assert (answer["appends"][0]["code"], answer["end_offset"]) == (0, 2)
    written = (tmp_path / "kafka" / "0" / "t-0" / f"{0:020d}.log").read_bytes()
    assert written[HEADER_BYTES:] == batch[HEADER_BYTES:]

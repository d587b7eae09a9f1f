"""Protects the producer's batches against Kafka: its dump tool reads them, and its own builder makes the same bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kcli.client.cluster import Cluster, PartitionInfo
from kcli.client.producer.accumulator_config import AccumulatorConfig
from kcli.client.producer.record_accumulator import RecordAccumulator
from kcli.format.compression import CODECS
from kcli.format.structs import LOG_OVERHEAD
from tests.client.producer.batches import Sequencer
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

RECORDS = 200
CLUSTER = Cluster([PartitionInfo("t", 0, 1)])
TIMESTAMP = 1_700_000_000_000


def log_of(codec: int, rng: random.Random) -> tuple[bytes, list[str], list[int]]:
    """A log as a broker would write it, the lines of its records, and the sizes of its batches in records."""
    accumulator = RecordAccumulator(AccumulatorConfig(batch_size=2000, codec=codec, linger_ms=0), rng, Sequencer())
    lines = []
    for number in range(RECORDS):
        timestamp = TIMESTAMP + rng.randrange(-100_000, 100_000)
        key = None if rng.random() < 0.3 else b"key-%d" % number
        value = None if rng.random() < 0.1 else b"value-%d " % number * rng.choice((0, 1, 9, 40, 400))
        headers = tuple((b"h%d" % index, None if index else b"x") for index in range(rng.randrange(3)))
        accumulator.append("t", 0, timestamp, key, value, headers, None, 0, CLUSTER)
        sizes = f"keySize: {-1 if key is None else len(key)} valueSize: {-1 if value is None else len(value)}"
        keys = ",".join(name.decode() for name, _ in headers)
        key_text = "" if key is None else f" key: {key.decode()}"
        value_text = "" if value is None else f" payload: {value.decode()}"
        lines.append(
            f"| offset: {number} CreateTime: {timestamp} {sizes} sequence: {number} headerKeys: [{keys}]{key_text}{value_text}"
        )
    log, counts = b"", []
    while accumulator.has_undrained():
        (batch,) = accumulator.drain(CLUSTER, [1], 0)[1]
        data = batch.encoded()
        LOG_OVERHEAD.pack_into(data, 0, sum(counts), LOG_OVERHEAD.unpack_from(data)[1])
        log += data
        counts.append(batch.record_count)
    return log, lines, counts


def test_kafka_reads_what_the_accumulator_makes(kafka_peer: Peer, tmp_path: Path) -> None:
    """Of each codec: batches of many records, of one large record, and with timestamps before the first one."""
    rng = random.Random(7)
    logs = {codec: log_of(codec, rng) for codec in sorted(CODECS)}
    paths = []
    for codec, (log, _, _) in logs.items():
        path = tmp_path / f"t-{codec}" / "00000000000000000000.log"
        path.parent.mkdir()
        path.write_bytes(log)
        paths.append(path)
    outcomes = kafka_peer.dump_many([["--files", str(path), "--print-data-log", "--deep-iteration"] for path in paths])
    for (codec, (_, lines, counts)), outcome in zip(logs.items(), outcomes, strict=True):
        printed = outcome.stdout.decode().split("\n")
        batches = [line for line in printed if line.startswith("baseOffset: ")]
        assert len(batches) == len(counts) > 3
        first = 0
        for line, count in zip(batches, counts, strict=True):
            assert f"baseOffset: {first} lastOffset: {first + count - 1} count: {count} baseSequence: {first}" in line
            assert "producerId: 9 producerEpoch: 0" in line and "isvalid: true" in line
            assert f"compresscodec: {CODECS[codec]}" in line
            first += count
        assert [line for line in printed if line.startswith("|")] == lines, outcome.stderr[-2000:]


class NumberOfBatch:
    """A producer whose sequence is the number of the batch, as BuildBatches.java has it."""

    is_completing = False

    def __init__(self) -> None:
        self.number = 0

    def must_wait(self, batch: Any) -> bool:
        return False

    def assign_sequence(self, batch: Any) -> None:
        batch.builder.set_producer_state(9, 0, self.number, False)
        self.number += 1

    def add_in_flight_batch(self, batch: Any) -> None:
        pass


def drawn_records(rng: random.Random) -> list[tuple[Any, ...]]:
    """Records of all sizes around the lengths of their varints and around batch.size."""

    def blob() -> bytes | None:
        return None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 1, 20, 62, 63, 64, 65, 400, 8190, 8193)))

    found = []
    for _ in range(rng.randrange(1, 80)):
        timestamp = rng.choice((0, 1, TIMESTAMP, TIMESTAMP + rng.randrange(-(10**6), 10**6), 2**62))
        headers = tuple((b"h" * rng.randrange(70), blob()) for _ in range(rng.choice((0, 0, 0, 1, 3))))
        found.append((timestamp, blob(), blob(), headers))
    return found


def question(batch_size: int, records: list[tuple[Any, ...]]) -> str:
    def digits(part: bytes | None) -> str | None:
        return None if part is None else part.hex()

    listed = [
        [timestamp, digits(key), digits(value), [[digits(name), digits(part)] for name, part in headers]]
        for timestamp, key, value, headers in records
    ]
    return json.dumps({"batch_size": batch_size, "records": listed})


def test_batches_are_those_of_java(kafka_peer: Peer) -> None:
    """The same records are in each batch, and all bytes are equal."""
    rng = random.Random(3)
    cases = [(rng.choice((1, 100, 1000, 16384)), drawn_records(rng)) for _ in range(100)]
    asked = "".join(question(*case) + "\n" for case in cases)
    ran = kafka_peer.run_java("BuildBatches", stdin=asked.encode())
    answers = ran.stdout.decode().splitlines()
    assert len(answers) == len(cases), ran.stderr[-2000:]
    for (batch_size, records), answer in zip(cases, answers, strict=True):
        config = AccumulatorConfig(batch_size=batch_size, max_request_size=2**24, buffer_memory=2**26)
        accumulator = RecordAccumulator(config, rng, NumberOfBatch())
        for record in records:
            assert accumulator.append("t", 0, *record, None, 0, CLUSTER) is not None
        own = []
        while accumulator.has_undrained():
            own += [batch.encoded().hex() for batch in accumulator.drain(CLUSTER, [1], 0)[1]]
        assert own == answer.split()

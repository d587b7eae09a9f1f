"""Protects the producer's batches against Kafka's dump tool: it finds every record, header key, sequence and producer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.client.cluster import Cluster, PartitionInfo
from kcli.client.producer.record_accumulator import AccumulatorConfig, RecordAccumulator
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

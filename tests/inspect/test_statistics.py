"""--stats: the figures are those of Kafka's own dumps; memory is bounded; the tables are harmless and complete."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kcli.inspect.dumping import statistics
from kcli.inspect.dumping.dump import DumpOptions
from kcli.inspect.json_text import dump as dump_json
from kcli.inspect.renderers.human_text import statistics_lines
from tests.conftest import LogSet, every_log_set
from tests.inspect.kafka_records import KafkaRecord, partitions_of
from tests.inspect.seen import dumped
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder

STATISTICS = DumpOptions(statistics=True)
PARTITIONS = [
    pytest.param(given_set, name, records, id=f"{given_set.data.parent.name}-{name}")
    for given_set in every_log_set()
    for name, records in partitions_of(given_set).items()
    if records
]


def report_of(*paths: Path, **selection: object) -> dict[str, Any]:
    seen = dumped(*paths, options=STATISTICS, **selection)
    assert seen.report is not None
    assert json.loads(dump_json(seen.report)) == json.loads(json.dumps(seen.report))
    assert all(line.isprintable() for line in statistics_lines(seen.report))
    return seen.report


@pytest.mark.parametrize(("given_set", "name", "records"), PARTITIONS)
def test_figures_are_kafkas(given_set: LogSet, name: str, records: list[KafkaRecord]) -> None:
    """Counts, sizes, nulls, headers, times and transactions of each partition."""
    report = report_of(given_set.data / name)
    data = [record for record in records if not record.is_control]
    assert (report["records"], report["controlRecords"]) == (len(data), len(records) - len(data))
    logs = (given_set.data / name).glob("*.log")
    assert report["sizeInBytes"] == sum(path.stat().st_size for path in logs)
    for field, sizes in (("keySize", [r.key_size for r in data]), ("valueSize", [r.value_size for r in data])):
        known = [size for size in sizes if size >= 0]
        told = report[field]
        assert (told["nulls"], told["count"], told["total"]) == (sizes.count(-1), len(known), sum(known))
        assert (told["min"], told["max"]) == (min(known, default=0), max(known, default=0))
    assert (
        report["headers"]
        == {
            "count": sum(len(record.header_keys) for record in data),
            "records": sum(bool(record.header_keys) for record in data),
        }
        or name == "odd-records-0"
    )  # a header's name may be empty there, which Kafka's list does not show
    times = [record.timestamp for record in data if record.timestamp != -1]
    assert (report["firstTimestamp"], report["lastTimestamp"]) == ((min(times), max(times)) if times else (None, None))
    assert sum(bucket["records"] for bucket in report["rates"]["buckets"]) == len(times)
    markers = Counter(record.marker for record in records if record.marker)
    assert (report["transactions"]["committed"], report["transactions"]["aborted"]) == (markers["COMMIT"], markers["ABORT"])
    assert report["transactions"]["openCount"] == (1 if name == "open-transaction-0" else 0)
    assert sum(codec["records"] for codec in report["codecs"]) == len(records)
    assert sum(codec["sizeInBytes"] for codec in report["codecs"]) == report["sizeInBytes"]


def test_codec_ratios() -> None:
    """Each codec's batches inflate to what the same records take uncompressed, give or take what differs between runs."""
    data = every_log_set()[0].data
    rows = {row["name"]: row for row in report_of(*sorted(data.glob("codec-*-0")))["codecs"]}
    assert rows["none"]["ratio"] == 1.0
    for name in ("gzip", "snappy", "lz4", "zstd"):
        assert rows[name]["ratio"] > 1.5
        assert abs(rows[name]["inflatedBytes"] - rows["none"]["inflatedBytes"]) < 0.1 * rows["none"]["inflatedBytes"]


def test_keys_and_producers(tmp_path: Path) -> None:
    """The most frequent first; long keys are told apart though only their beginning is kept."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"hot", b"v")] * 5 + [(b"\xff", b"v")] * 3 + [(None, None)], producer=7)
    log.append([(b"x" * 1000 + b"1", b"v")] * 2 + [(b"x" * 1000 + b"2", b"v")] * 2, producer=7, codec=4)
    log.append([(b"cold", b"v")], producer=8)
    log.flush()
    report = report_of(tmp_path / "t-0")
    keys = report["topKeys"]["keys"]
    assert [(row.get("key"), row["count"]) for row in keys[:1]] == [("hot", 5)]
    assert [row["keyBase64"] for row in keys if "keyBase64" in row] == ["/w=="]
    assert [(row["keySize"], row["count"], row["isCut"]) for row in keys if "isCut" in row] == [(1001, 2, True)] * 2
    assert [(row["producerId"], row["records"], row["batches"]) for row in report["producers"]["top"]] == [
        (7, 13, 2),
        (8, 1, 1),
    ]
    assert report["partitions"][0]["partition"] == "t-0"


def test_selected_records_only(tmp_path: Path) -> None:
    """With a selection the figures are those of what is selected, and ratios count whole batches only."""
    log = PartitionBuilder(tmp_path / "t-0")
    for _ in range(5):
        log.append([(b"a", b"v" * 100), (b"b", b"w" * 100)], codec=1)
    log.flush()
    report = report_of(tmp_path / "t-0", offset="3..7")
    assert report["records"] == 4
    assert report["codecs"][0]["batches"] == 3
    assert report["firstTimestamp"] == BASE_TIMESTAMP + 30


def test_many_of_everything_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, producers, partitions and times beyond the bounds are counted, not kept."""
    monkeypatch.setattr(statistics, "MAX_PRODUCERS", 50)
    monkeypatch.setattr(statistics, "MAX_PARTITIONS", 2)
    monkeypatch.setattr(statistics, "KEY_CAPACITY", 20)
    for slot in range(3):
        log = PartitionBuilder(tmp_path / f"t-{slot}")
        for producer in range(200):
            stamp = producer * 10_000_000
            log.append([(b"%d-%d" % (slot, producer), b"v"), (b"same", b"v")], producer=producer + 1, timestamp=stamp)
        log.flush()
    collected = statistics.Statistics()
    monkeypatch.setattr(statistics, "Statistics", lambda: collected)
    report = report_of(*sorted(tmp_path.glob("t-*")))
    assert report["records"] == 1200
    assert len(collected.producers) <= 50 and report["producers"]["count"] >= 200
    assert (len(report["partitions"]), report["partitionsLeftOut"]) == (2, 1)
    assert len(report["rates"]["buckets"]) <= 512
    first = report["topKeys"]["keys"][0]
    assert first["key"] == "same"
    assert first["count"] <= 600 <= first["count"] + report["topKeys"]["countsMayBeTooLowBy"]

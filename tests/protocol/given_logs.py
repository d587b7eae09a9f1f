"""The internal topics in the given log directories, and what Kafka's own tool printed of each of their records.

Reads batches and records by itself, one uncompressed v2 batch after the other, so that nothing but the format room's
declarations stands between the bytes and the tests.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kcli.format.record_batch import HEADER_BYTES, RecordBatch, read_header
from kcli.format.records import Record, read_records

ROOT = Path(__file__).resolve().parents[2]
# fixtures/ holds the internal topics whole, so the directories that it was made of are read only where it is not there.
PLACES = (ROOT / "fixtures", ROOT.parent / "shared")
GIVEN = [place / "kafka-logs" for place in PLACES if (place / "kafka-logs").is_dir()][:1]
INTERNAL = re.compile(r"(__consumer_offsets|__transaction_state|__share_group_state|__cluster_metadata)-\d+$")


class GivenRecord(NamedTuple):
    """A record, its batch, and the line that Kafka's tool printed of it."""

    batch: RecordBatch
    record: Record
    line: str

    @property
    def offset(self) -> int:
        return self.batch.base_offset + self.record.offset_delta


def internal_files() -> list[tuple[str, Path, Path]]:
    """(topic, file, dump) of every log and snapshot of an internal topic that is at hand."""
    found = []
    for given in GIVEN:
        for dump in sorted([*(given / "dumps").rglob("*.txt"), *(given / "dumps").rglob("*.txt.gz")]):
            name = str(dump.relative_to(given / "dumps")).removesuffix(".gz").removesuffix(".txt")
            file = given / "data" / name
            match = INTERNAL.match(file.parent.name)
            if file.suffix in (".log", ".checkpoint") and (match or file.name == "bootstrap.checkpoint"):
                found.append((match[1] if match else "__cluster_metadata", file, dump))
    return found


def dump_lines(dump: Path) -> list[str]:
    """The lines of a dump. Only a line feed ends one: payloads may hold any other separator."""
    data = gzip.decompress(dump.read_bytes()) if dump.suffix == ".gz" else dump.read_bytes()
    return data.decode().split("\n")


def batches(file: Path) -> Iterator[tuple[RecordBatch, list[Record]]]:
    data = file.read_bytes()
    position = 0
    while position + HEADER_BYTES <= len(data):
        batch = read_header(data, position, position)
        assert batch.magic == 2 and batch.codec == 0
        yield batch, list(read_records(data[position + HEADER_BYTES : batch.end_position], batch.record_count))
        position = batch.end_position


def given_records(file: Path, dump: Path) -> Iterator[GivenRecord]:
    """The records of a file, each beside its line of the dump."""
    lines = iter(line for line in dump_lines(dump) if line.startswith("| offset: "))
    for batch, records in batches(file):
        for record in records:
            yield GivenRecord(batch, record, next(lines))

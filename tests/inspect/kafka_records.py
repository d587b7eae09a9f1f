"""What Kafka's own dump tool says of the records of a log, parsed: the expectation that selections are held against."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.conftest import LogSet

_BATCH = re.compile(r"baseOffset: .* producerId: (-?\d+) .*isTransactional: (\w+) isControl: (\w+) ")
_RECORD = re.compile(
    r"\| offset: (\d+) (\w+): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r"(?: sequence: (-?\d+) headerKeys: \[(.*?)\])?(?: isValid: \w+ crc: \d+)?(?: endTxnMarker: (\w+))?"
)


class KafkaRecord(NamedTuple):
    """One record as Kafka's tool prints it; `key` only where it has no blanks and the tool prints text."""

    path: str
    offset: int
    timestamp: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: tuple[str, ...]
    marker: str | None
    key: str | None
    producer_id: int
    is_transactional: bool
    is_control: bool


def records_of(given: LogSet, path: str) -> list[KafkaRecord]:
    """The records in Kafka's dump of one `.log` file, in the file's order."""
    found: list[KafkaRecord] = []
    producer_id, transactional, control = -1, False, False
    for line in given.golden(path).decode("utf-8", "replace").split("\n"):
        if line.startswith("baseOffset: ") and (batch := _BATCH.match(line)):
            producer_id, transactional, control = int(batch[1]), batch[2] == "true", batch[3] == "true"
        elif line.startswith("offset: "):
            producer_id, transactional, control = -1, False, False
        elif line.startswith("| offset: ") and (record := _RECORD.match(line)):
            offset, _, timestamp, key_size, value_size, sequence, headers, marker = record.groups()
            key = re.search(r" key: (\S*)(?: payload: |$)", line)
            found.append(
                KafkaRecord(
                    path,
                    int(offset),
                    int(timestamp),
                    int(key_size),
                    int(value_size),
                    int(sequence or -1),
                    tuple(headers.split(",")) if headers else (),
                    marker,
                    key[1] if key else None,
                    producer_id,
                    transactional,
                    control,
                )
            )
    return found


def partitions_of(given: LogSet) -> dict[str, list[KafkaRecord]]:
    """The records of every partition of a log directory, by the directory's name."""
    found: dict[str, list[KafkaRecord]] = {}
    for path in given.dumped_paths():
        directory, _, name = path.rpartition("/")
        if name.endswith(".log"):
            found.setdefault(directory, []).extend(records_of(given, path))
    return found


def visible_to_consumers(records: list[KafkaRecord]) -> set[int]:
    """The offsets that a consumer with read_committed is given, by replaying the markers of a whole partition."""
    begun: dict[int, list[KafkaRecord]] = {}
    aborted: set[int] = set()
    for record in records:
        if not record.is_transactional:
            continue
        if not record.is_control:
            begun.setdefault(record.producer_id, []).append(record)
            continue
        ended = begun.pop(record.producer_id, [])
        if record.marker == "ABORT":
            aborted |= {old.offset for old in ended}
    stable = min((old.offset for still in begun.values() for old in still), default=None)
    return {
        record.offset
        for record in records
        if not record.is_control and record.offset not in aborted and (stable is None or record.offset < stable)
    }

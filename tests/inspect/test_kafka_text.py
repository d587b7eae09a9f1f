"""Protects: `--output kafka` prints, byte for byte, what kafka-dump-log 4.3.1 prints of every file that Kafka wrote."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from conftest import LogSet, every_log_set

from kcli.commands.dump_log import content_parser
from kcli.inspect.dumping.kafka_text import KafkaDumpOptions, dump_as_kafka
from kcli.log.disk.os_disk import OsDisk

DECODER_OF = {
    "__cluster_metadata-": "cluster_metadata_decoder",
    "__consumer_offsets-": "offsets_decoder",
    "__transaction_state-": "transaction_log_decoder",
    "__share_group_state-": "share_group_state_decoder",
}


def options_for(path: str) -> KafkaDumpOptions:
    """The options with which the golden of `path` was made (see the README of the given directories)."""
    if path.endswith(".checkpoint") or (path.endswith(".log") and path.startswith("__")):
        option = next((name for prefix, name in DECODER_OF.items() if path.startswith(prefix)), "cluster_metadata_decoder")
        return KafkaDumpOptions(print_data_log=True, parser=content_parser(_arguments(option)))
    if path.endswith(".log"):
        return KafkaDumpOptions(print_data_log=True, deep_iteration=True)
    return KafkaDumpOptions()


def _arguments(option: str):
    import argparse

    given = dict.fromkeys(DECODER_OF.values(), False) | {"remote_log_metadata_decoder": False}
    return argparse.Namespace(**(given | {option: True}), key_decoder_class=None, value_decoder_class=None)


def dumped(data: Path, path: str, options: KafkaDumpOptions) -> tuple[bytes, list[str], bool]:
    """Dump one file from within `data` -> (stdout, the lines for stderr, whether all is sound)."""
    out, told = bytearray(), []
    before = os.getcwd()
    os.chdir(data)
    try:
        sound = dump_as_kafka(OsDisk(), [path], options, out.extend, told.append, lambda path: path)
    finally:
        os.chdir(before)
    return bytes(out), told, sound


def goldens() -> list[tuple[LogSet, str]]:
    return [(given, path) for given in every_log_set() for path in given.dumped_paths()]


@pytest.mark.parametrize(
    ("given", "path"), goldens(), ids=lambda value: value if isinstance(value, str) else value.data.parent.name
)
def test_stdout_is_kafkas(given: LogSet, path: str) -> None:
    """Every golden there is: same bytes, nothing told but what Kafka's own summary says without its false alarms."""
    out, told, sound = dumped(given.data, path, options_for(path))
    assert out == given.golden(path)
    assert sound
    assert told == without_false_alarms(given.golden(path, "err").decode().splitlines(), given.data)


def without_false_alarms(lines: list[str], data: Path) -> list[str]:
    """Kafka's summary without the three kinds of alarm that are none (kafka_text's docstring names them)."""
    kept = [line for line in lines if not line.startswith("  -1 is followed by") and not line.endswith(", log timestamp: -1")]
    if "legacy" in str(data) and kept and kept[0].startswith("Mismatches in"):
        return []
    headings = ("Non-consecutive offsets", "Found timestamp mismatch", "Mismatches in")
    return [
        line
        for number, line in enumerate(kept)
        if not line.startswith(headings) or (number + 1 < len(kept) and kept[number + 1].startswith("  "))
    ]

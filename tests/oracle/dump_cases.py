"""Many small dumps held against Kafka's tool at once: files and options in, the cases that differ out.

Each case is a folder of its own below `root`, since Kafka's tool changes what it reads: it creates index files that are
missing and trims those that end inside an entry. kcli goes first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kcli.commands.app import build_parser
from kcli.commands.dump_log import kafka_options
from kcli.inspect.dumping.kafka_text import dump_as_kafka
from kcli.log.disk.os_disk import OsDisk
from tests.oracle.peer import Outcome, Peer

LOG_SUFFIXES = (".log", ".checkpoint")
GOES_ON, ZEROS = "continuing at byte", "bytes are zeros"
_SHOWN_BYTES = 120
TOPIC_DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
    "__share_group_state": "--share-group-state-decoder",
}


class Dumped(NamedTuple):
    """What kcli printed: stdout, the lines for stderr, and whether it called all sound."""

    stdout: bytes
    told: list[str]
    sound: bool


def dump_with_kcli(paths: Sequence[str], options: Sequence[str] = ()) -> Dumped:
    """`kcli dump-log --output kafka` of paths, relative to the working directory, in this process."""
    out, told = bytearray(), list[str]()
    parsed = build_parser("dump-log").parse_args([*options, "--", *paths])
    sound = dump_as_kafka(OsDisk(), paths, kafka_options(parsed), out.extend, told.append, os.path.abspath)
    return Dumped(bytes(out), told, sound)


class DumpCases:
    """Collects cases in folders below `root`, then lets both tools dump them all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.labels: list[str] = []
        self.cases: list[list[str]] = []

    def add(self, label: str, name: str, files: Mapping[str, bytes | Path], options: Sequence[str] = ()) -> None:
        """Add the dump of file `name`, with the files that lie beside it: bytes, or a path to link to."""
        folder = self.root / str(len(self.cases))
        folder.mkdir(parents=True)
        for file_name, content in files.items():
            if isinstance(content, Path):
                os.link(content, folder / file_name)
            else:
                (folder / file_name).write_bytes(content)
        self.labels.append(f"{label} {name} {' '.join(options)}")
        self.cases.append(["--files", f"{folder.name}/{name}", *options])

    def differences(self, peer: Peer) -> list[str]:
        """Run all cases -> a sentence for each whose stdout is not what Kafka's tool prints, up to where that one stops."""
        before = Path.cwd()
        os.chdir(self.root)
        try:
            ours = [dump_with_kcli([case[1]], case[2:]) for case in self.cases]
            theirs = peer.dump_many(self.cases, self.root)
        finally:
            os.chdir(before)
        return [
            _difference(label, mine, kafkas)
            for label, case, mine, kafkas in zip(self.labels, self.cases, ours, theirs, strict=True)
            if not agrees(case[1], mine, kafkas)
        ]


def agrees(path: str, ours: Dumped, theirs: Outcome) -> bool:
    """True where kcli printed Kafka's bytes; more of them only where Kafka died, or where kcli said that it goes on.

    A log of which Kafka dies must not pass as sound, but for zeros behind its end. (Of an index Kafka also dies where the
    log beside it is missing or damaged.)
    """
    if theirs.exit_code != 0:
        may_be_sound = not path.endswith(LOG_SUFFIXES) or any(ZEROS in line for line in ours.told)
        return ours.stdout.startswith(theirs.stdout) and (may_be_sound or not ours.sound)
    if any(GOES_ON in line for line in ours.told):
        return ours.stdout.startswith(theirs.stdout)
    return ours.stdout == theirs.stdout


def _difference(label: str, ours: Dumped, theirs: Outcome) -> str:
    pairs = zip(ours.stdout, theirs.stdout, strict=False)
    shared = next((at for at, (mine, kafkas) in enumerate(pairs) if mine != kafkas), min(len(ours.stdout), len(theirs.stdout)))
    start = max(0, shared - _SHOWN_BYTES // 2)
    found = re.search(r"\w+(Exception|Error)[^\n]*", theirs.stderr)
    return (
        f"{label}: from byte {shared} kcli {ours.stdout[start : start + _SHOWN_BYTES]!r} (told {ours.told[:3]}), "
        f"Kafka {theirs.stdout[start : start + _SHOWN_BYTES]!r} (exit {theirs.exit_code}, {found and found[0]})"
    )

"""Apache Kafka's StorageTool judges `kcli format`: the same options format, or are refused, and the files contain the same.

Sentences are not compared: kcli has its own.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcli.commands.app import main as kcli
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import decode_meta_properties
from kcli.log.disk.os_disk import OsDisk
from kcli.server.raft.metadata_log import read_snapshot_file
from tests.oracle.peer import Peer, ToolCase

pytestmark = pytest.mark.oracle

TOOL = "kafka.tools.StorageTool"
CLUSTER_ID = "kcliKcliKcliKcliKcliKg"
OWN_ID, OTHER_ID = "Djhb4RygR3W9Dx0t4rf4fg", "XuvDXKO_TFKM7FSjM7auKQ"
DYNAMIC = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
}
STATIC = {name: value for name, value in DYNAMIC.items() if "bootstrap" not in name} | {
    "controller.quorum.voters": "1@127.0.0.1:9093"
}
BROKER = DYNAMIC | {"process.roles": "broker", "node.id": "2", "listeners": "PLAINTEXT://127.0.0.1:9092"}


class Case(NamedTuple):
    """One configuration and the options; `again` formats it twice, the second time with these options."""

    settings: dict[str, str]
    options: tuple[str, ...]
    again: tuple[str, ...] | None = None


VOTERS = f"1@localhost:9093:{OWN_ID},2@localhost:9094:{OTHER_ID}"
CASES = [
    Case(DYNAMIC, ()),
    Case(DYNAMIC, ("--standalone",)),
    Case(DYNAMIC, ("--no-initial-controllers",)),
    Case(DYNAMIC, ("--initial-controllers", VOTERS)),
    Case(DYNAMIC, ("-I", f"2@localhost:9094:{OTHER_ID}")),
    Case(DYNAMIC, ("-I", "1@localhost:9093")),
    Case(DYNAMIC, ("-I", f"1@localhost:9093:{OWN_ID},1@localhost:9094:{OTHER_ID}")),
    Case(DYNAMIC, ("-I", f"1@localhost:port:{OWN_ID}")),
    Case(DYNAMIC, ("--standalone", "--no-initial-controllers")),
    Case(DYNAMIC, ("--standalone", "--release-version", "3.8")),
    Case(DYNAMIC, ("--standalone", "--release-version", "4.0")),
    Case(DYNAMIC, ("--standalone", "--release-version", "3.4")),
    Case(DYNAMIC, ("--standalone", "--release-version", "3.8", "--feature", "kraft.version=1")),
    Case(DYNAMIC, ("--standalone", "--release-version", "1.0")),
    Case(DYNAMIC, ("--standalone", "--feature", "kraft.version=0")),
    Case(DYNAMIC, ("--standalone", "--feature", "group.version=0")),
    Case(DYNAMIC, ("--standalone", "--feature", "group.version=9")),
    Case(DYNAMIC, ("--standalone", "--feature", "odd.version=1")),
    Case(DYNAMIC, ("--standalone",), again=("--standalone",)),
    Case(DYNAMIC, ("--standalone",), again=("--standalone", "--ignore-formatted")),
    Case(STATIC, ()),
    Case(STATIC, ("--standalone",)),
    Case(STATIC, ("--no-initial-controllers",)),
    Case(STATIC, ("-I", VOTERS)),
    Case(STATIC, ("--feature", "kraft.version=1")),
    Case(STATIC, ("-S", "SCRAM-SHA-256=[name=a,salt=MWFu,saltedpassword=MWFu]")),
    Case(BROKER, ()),
    Case(BROKER, ("--standalone",)),
    Case(BROKER, ("--no-initial-controllers",)),
    Case(BROKER, ("-I", VOTERS)),
]


def runs(case: Case, home: Path) -> list[tuple[str, ...]]:
    """The command lines behind `format`, and the last one behind `info`."""
    home.mkdir(parents=True)
    config = home / "server.properties"
    settings = case.settings | {"log.dirs": f"{home}/a,{home}/b"}
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    where = ("-c", str(config))
    again = [] if case.again is None else [(*where, "-t", CLUSTER_ID, *case.again)]
    return [(*where, "-t", CLUSTER_ID, *case.options), *again, where]


def contents(home: Path) -> dict[str, Any]:
    """The files of the directories: names, what the snapshots contain, and meta.properties without random ids."""
    found: dict[str, Any] = {}
    for path in sorted(home.glob("[ab]/**/*")):
        name = str(path.relative_to(home))
        if path.name == "meta.properties":
            meta = decode_meta_properties(path.read_bytes())
            own = meta.directory_id == Uuid.parse(OWN_ID)
            found[name] = (meta.version, meta.cluster_id, meta.node_id, own)
        elif path.name.endswith(".checkpoint"):
            found[name] = list(snapshot(path))
        else:
            found[name] = None
    return found


def snapshot(path: Path) -> list[str]:
    """The records of a snapshot as text; times and the ids of directories that are made at random are left out."""
    directory = path.parent if path.parent.name != "__cluster_metadata-0" else path.parent.parent
    made = str(decode_meta_properties((directory / "meta.properties").read_bytes()).directory_id)
    lines = []
    for batch in read_snapshot_file(OsDisk(), str(path)):
        for control in batch.control_records:
            message = control.message
            if hasattr(message, "last_contained_log_timestamp"):
                message.last_contained_log_timestamp = 0
            lines.append(f"{control.type_id} {message}")
        lines += (str(record) for record in batch.records)
    return [line if made == OWN_ID else line.replace(made, "ID") for line in lines]


def test_what_is_formatted_and_what_is_refused(kafka_peer: Peer, tmp_path: Path) -> None:
    """All cases in one JVM: exit codes of format and info, and the files."""
    theirs = [runs(case, tmp_path / "kafka" / str(number)) for number, case in enumerate(CASES)]
    ours = [runs(case, tmp_path / "kcli" / str(number)) for number, case in enumerate(CASES)]
    tool_cases = [ToolCase(TOOL, ("info" if words is lines[-1] else "format", *words)) for lines in theirs for words in lines]
    codes = iter([outcome.exit_code for outcome in kafka_peer.run_tools(tool_cases)])
    differing = {}
    for number, case in enumerate(CASES):
        expected = [next(codes) == 0 for _ in theirs[number]]
        found = []
        for words in ours[number]:
            code: object = 2
            with contextlib.suppress(SystemExit):
                code = kcli(["format", *words, *(["--info"] if words is ours[number][-1] else [])])
            found.append(code == 0)
        own, kafkas = (contents(tmp_path / who / str(number)) for who in ("kcli", "kafka"))
        if (found, own) != (expected, kafkas):
            differing[case.options, case.settings["process.roles"]] = (found, own), (expected, kafkas)
    assert differing == {}

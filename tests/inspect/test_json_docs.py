"""docs/json-output.md lists every field of every type that is written, and none that is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.inspect.renderers.json_lines import SCHEMA_VERSION, JsonLines
from kcli.log.disk.os_disk import OsDisk
from kcli.selecting.selection import Selection
from tests.conftest import ROOT, every_log_set
from tests.log_builder import PartitionBuilder

PAGE = (ROOT / "docs" / "json-output.md").read_text()


def documented() -> dict[str, set[str]]:
    """Type -> the fields that the page has for it."""
    found: dict[str, set[str]] = {}
    for section in PAGE.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        for row in re.findall(r"^\| (.*?) \|(.*)\|$", body, re.MULTILINE):
            if row[0] in ("field", "type"):
                continue
            if title == "Entries of other files":
                found[row[0].strip("`")] = set(re.findall(r"`(\w+)`", row[1].split("|", 1)[1])) - {"null"}
            else:
                found.setdefault(title, set()).update(re.findall(r"`(\w+)`", row[0]))
    return found


def seen_in(paths: list[str], options: DumpOptions | None = None) -> dict[str, set[str]]:
    """Type -> the fields that a dump of the paths writes."""
    out = bytearray()
    dump(paths, Selection(), JsonLines(out.extend), options or DumpOptions(), OsDisk(), report=lambda line: None)
    found: dict[str, set[str]] = {}
    for line in out.decode().split("\n")[:-1]:
        row = json.loads(line)
        found.setdefault(row.pop("type"), set()).update(row)
    return found


def test_all_fields_are_documented(tmp_path: Path) -> None:
    """Every given file, and what sound files do not show: damage, notes, problems, odd paths, statistics, version 1."""
    log = PartitionBuilder(tmp_path / "odd-0")
    log.append([(b"\xff", b"\xff")])
    log.append([(b"k", bytes(9_000_000))], codec=4)
    log.log += b"garbage, but more of it than a header takes, so that it is seen"
    log.flush()
    internal = PartitionBuilder(tmp_path / "__consumer_offsets-0")
    internal.append([(b"\xff", b"\xff")])
    internal.flush()
    (tmp_path / "odd-0" / "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    (tmp_path / "odd-0" / "leader-epoch-checkpoint.tmp").write_text("0\n9\n")
    (tmp_path / "odd-0" / "00000000000000000009.index").write_bytes(bytes((0, 0, 0, 1, 0, 0, 0, 61)) + bytes(80))
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":3}')
    odd = b"odd\xff-0".decode("utf-8", "surrogateescape")
    (tmp_path / odd).mkdir()
    for name in ("00000000000000000000.index", "00000000000000000001.index"):
        (tmp_path / odd / name).write_bytes(bytes(12) + bytes([len(name)] * 3))
    (tmp_path / odd / "leader-epoch-checkpoint.tmp").write_text("0\n9\n")
    paths = [str(given_set.data) for given_set in every_log_set()] + [str(tmp_path)]
    paths += [str(tmp_path / "missing"), str(tmp_path / odd / "missing")]
    found = seen_in(paths)
    for kind, fields in seen_in(paths, DumpOptions(statistics=True)).items():
        found.setdefault(kind, set()).update(fields)
    expected = documented()
    assert found.keys() == expected.keys()
    for kind, fields in expected.items():
        assert found[kind] == fields, kind


def test_the_version_is_documented() -> None:
    """The page is about the version that is written."""
    assert f"version {SCHEMA_VERSION} of the schema" in PAGE

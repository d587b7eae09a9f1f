"""docs/describe.md lists every section, every type and every field that describe writes, and none that it does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kcli.inspect.description.cluster_sections import token_rows
from kcli.inspect.description.describe_options import SECTIONS, DescribeOptions
from kcli.inspect.description.group_sections import GroupSections
from kcli.inspect.description.partition_log import Logs
from kcli.inspect.description.remarks import Remarks
from kcli.inspect.description.sources import Sources
from kcli.inspect.renderers.description_report import ROW_TYPES, json_lines
from kcli.log.disk.os_disk import OsDisk
from kcli.state.group_state import GroupState
from kcli.state.groups import ConsumerGroup, ConsumerGroupMember
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import DelegationToken
from kcli.state.share_group_state import ShareGroupState
from tests.conftest import FIXTURES, ROOT, log_sets
from tests.inspect.described import described
from tests.log_builder import PartitionBuilder

PAGE = (ROOT / "docs" / "describe.md").read_text()


def documented() -> dict[str, set[str]]:
    """Type -> the fields that the page has for it: those of its rows, in the first column of their table."""
    found: dict[str, set[str]] = {}
    for part in PAGE.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        rows = re.findall(r"^\| (`.*?) \|", body, re.MULTILINE)
        found[title] = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    return found


def members() -> list[dict[str, Any]]:
    """The row of a member, which the given directory has none of."""
    state = GroupState()
    state.groups["g"] = ConsumerGroup("g", members={"m": ConsumerGroupMember("m")})
    disk, remarks = OsDisk(), Remarks()
    logs = Logs(disk, Sources([]), remarks, deep=False)
    return GroupSections([state], ShareGroupState(), None, logs, DescribeOptions()).member_rows()


def test_every_type_and_field_is_documented(tmp_path: Path) -> None:
    report: dict[str, Any] = described(log_sets(FIXTURES)[0].data).report
    image = MetadataImage()
    image.delegation_tokens["t"] = DelegationToken("t", "User:a", "User:b", [], 1, 3, 2)
    odd = PartitionBuilder(tmp_path / "x\udcff" / "orders-0")
    odd.log += b"no batch, but long enough that it is seen as damage and not as a tail of too few bytes to be anything"
    odd.flush()
    (tmp_path / "x\udcff" / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 0\n")
    others = described(tmp_path / "x\udcff", tmp_path / "missing").report
    report["tokens"] = token_rows(image)
    report["members"] = members()
    seen: dict[str, set[str]] = {}
    for line in [*json_lines(report), *json_lines(others)]:
        row = json.loads(line)
        seen.setdefault(row.pop("type"), set()).update(row)
    del seen["schema"]
    expected = documented()
    assert set(expected) == set(seen) == {*ROW_TYPES.values(), "unknown", "problem", "summary"}
    for name, fields in seen.items():
        assert fields == expected[name], name


def test_inner_fields_are_named_on_the_page() -> None:
    named = set(re.findall(r"`([\w-]+)`", PAGE))
    report = described(log_sets(FIXTURES)[0].data).report

    def check(value: Any) -> None:
        if isinstance(value, list):
            for inner in value:
                check(inner)
        elif isinstance(value, dict):
            assert value.keys() <= named, value.keys() - named
            for inner in value.values():
                check(inner)

    for section in ROW_TYPES:
        check(report[section])


def test_every_section_is_on_the_page() -> None:
    table = PAGE.split("\n## Sections")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE)))) == set(SECTIONS)

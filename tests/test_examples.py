"""Protects docs/examples/: each program runs against a broker, in an empty directory, and prints what its page shows.

KCLI_WRITE_DOCS=1 writes the output into the pages.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.doc_examples import PROGRAM, check, runner
from tests.server.live import LiveServer

FOLDER = ROOT / "docs" / "examples"
INDEX = FOLDER / "README.md"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page != INDEX)
MOST_LINES = 180
# What a page needs that is not a dependency of kcli.
NEEDS = {"celery-worker": ("celery",), "fastapi-producer": ("fastapi", "httpx2"), "parquet-pipeline": ("pyarrow",)}


def name_of(page: Path) -> str:
    return page.stem


@pytest.mark.ci
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_program_prints_what_its_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for package in NEEDS.get(page.stem, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    with LiveServer(tmp_path / "broker") as server:
        check(page, runner(page, capfd, f"127.0.0.1:{server.port}"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short_and_has_a_drawing_and_programs(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n") <= MOST_LINES
    assert re.search(r"^```\n", text, re.MULTILINE), "no drawing"
    assert PROGRAM.search(text), "no program"
    assert text.count("```python\n") == len(PROGRAM.findall(text)), "each program is followed by what it prints"


def test_the_index_names_each_page_once() -> None:
    """And the README of the repository leads to the index."""
    linked = re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text())
    assert sorted(linked) == [page.name for page in PAGES]
    assert "(docs/examples/README.md)" in (ROOT / "README.md").read_text()

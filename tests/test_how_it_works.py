"""Protects docs/how-it-works/: its examples are run and print what the pages show, and the modules that it names exist.

The commands and programs of a page run in an empty directory with the repository's fixtures/ and the scripts of a quorum, as a
reader runs them in the repository. A page that names the address BROKER gets a `kcli serve` on a copy of the sample log
directory.
KCLI_WRITE_DOCS=1 writes the output into the pages.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.doc_examples import BROKER, CONSOLE, PROGRAM, check, runner
from tests.server.live import LiveServer

FOLDER = ROOT / "docs" / "how-it-works"
INDEX = FOLDER / "README.md"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page != INDEX)
WITH_BROKER = [page for page in PAGES if BROKER in page.read_text()]
LEAST_LINES, MOST_LINES, MOST_COLUMNS = 60, 120, 132
MODULE_ROW = re.compile(r"^\| \[([\w.]+)\]\(\.\./\.\./([\w/]+\.py)\) \|(.*)\|$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.stem


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the examples run."""
    for folder in ("fixtures", "tests/simulator/quorum_scripts"):
        (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITH_BROKER], ids=name_of)
def test_the_examples_print_what_the_page_shows(page: Path, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands and programs, in their order."""
    check(page, runner(page, capfd, BROKER))


@pytest.mark.ci
@pytest.mark.parametrize("page", WITH_BROKER, ids=name_of)
def test_the_examples_with_a_broker_print_what_the_page_shows(
    page: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The page says how to start the broker; here it is started with the same settings, on a free port."""
    shutil.copytree(ROOT / "fixtures/kafka-logs/data", place / "logs")
    with LiveServer(place / "broker", data=place / "logs") as server:
        check(page, runner(page, capfd, f"127.0.0.1:{server.port}"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short_and_has_a_drawing_an_example_and_the_modules(page: Path) -> None:
    """Readers read a page at once; each code fence is a drawing, an example or its output."""
    text = page.read_text()
    lines = text.splitlines()
    assert LEAST_LINES <= len(lines) <= MOST_LINES, f"{len(lines)} lines"
    written = [line for line in CONSOLE.sub("", text).splitlines() if not line.startswith("|")]
    assert max(map(len, written)) <= MOST_COLUMNS, max(written, key=len)
    assert re.search(r"^```\n(?!\$)", text, re.MULTILINE), "no drawing"
    assert CONSOLE.search(text) or PROGRAM.search(text), "no example"
    assert text.count("```python\n") == len(PROGRAM.findall(text)), "each program is followed by what it prints"
    assert MODULE_ROW.search(text), "no module is named"


@pytest.mark.parametrize("page", [*PAGES, INDEX], ids=name_of)
def test_the_modules_have_what_the_page_says(page: Path) -> None:
    """Each name in backticks in a row of the table of modules is in the module's text."""
    text = page.read_text()
    assert text.count(".py) |") == len(MODULE_ROW.findall(text)), "a row of the table is written differently"
    for label, path, says in MODULE_ROW.findall(text):
        assert path.removesuffix(".py").endswith(f"/{label.replace('.', '/')}"), f"the link of {label} leads to {path}"
        module = (ROOT / path).read_text()
        for name in re.findall(r"`(\w+)", says):
            assert re.search(rf"\b{name}\b", module), f"{page.name}: {path} has no {name}"


def test_the_index_names_each_page_once() -> None:
    """And the README of the repository and the first page lead to the index."""
    linked = re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text())
    assert sorted(linked) == [page.name for page in PAGES]
    assert "(docs/how-it-works/README.md)" in (ROOT / "README.md").read_text()

"""Protects docs/configuration.md and docs/metrics.md: they list what the program serves, as it is.

KCLI_WRITE_DOCS=1 writes the tables anew instead of comparing them.
"""

from __future__ import annotations

import os

import pytest

from kcli.server.config.reference import configuration_page
from kcli.server.metrics.catalog import metrics_page
from tests.conftest import ROOT

PAGES = {"configuration.md": configuration_page, "metrics.md": metrics_page}
MARK = "<!-- The rest is taken from the program; a test keeps it in step. -->\n"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_program_says(name: str) -> None:
    page = ROOT / "docs" / name
    head, mark, body = page.read_text().partition(MARK)
    assert mark
    if os.environ.get("KCLI_WRITE_DOCS"):
        page.write_text(head + MARK + PAGES[name]())
        return
    assert body == PAGES[name](), "run: KCLI_WRITE_DOCS=1 pytest tests/server/config/test_docs.py"

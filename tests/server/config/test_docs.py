"""Protects docs/configuration.md and docs/metrics.md: they list what the program serves, as it is.

KCLI_WRITE_DOCS=1 writes the tables anew instead of comparing them.
"""

from __future__ import annotations

import os

import pytest

from tests.conftest import ROOT
from tests.server.config.configuration_page import configuration_page
from tests.server.metrics.metrics_page import metrics_page

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

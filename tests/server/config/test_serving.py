"""Protects the word "served": a key that docs/configuration.md calls so is read by some part of the program."""

from __future__ import annotations

import pytest

from kcli.server.config.definitions import BROKER_KEYS, TOPIC_KEYS, Serving
from kcli.server.config.group_config import _BOUNDS
from tests.conftest import ROOT

SERVED = [key.name for key in BROKER_KEYS.definitions() if key.serving == Serving.SERVED]
# Modules that know every key or check keys, and do not act on them.
NOT_READERS = ("checks", "definitions", "serving", "loading", "reference", "broker_changes", "describe_configs", "key_names")


@pytest.fixture(scope="module")
def sources() -> str:
    paths = [path for path in (ROOT / "kcli").rglob("*.py") if "inspect" not in path.parts]
    return "\n".join(path.read_text() for path in paths if path.parent.name != "config" or path.stem not in NOT_READERS)


@pytest.mark.parametrize("name", SERVED)
def test_a_served_key_is_read(name: str, sources: str) -> None:
    behind = {one for key in TOPIC_KEYS.definitions() if key.serving == Serving.SERVED for one in key.broker_keys}
    limits = {key for keys in _BOUNDS.values() for key in keys}
    assert name in behind | limits or f'"{name}"' in sources

"""Protects what DescribeConfigs says of keys: one sentence for each that has an effect here, none for a name that is no key."""

from __future__ import annotations

import subprocess
import sys

from kcli.server.config.definitions import BROKER_KEYS, CLIENT_METRICS_KEYS, TOPIC_KEYS, Serving
from kcli.server.config.key_documentation import documentation_of

TABLES = {"BROKER": BROKER_KEYS, "TOPIC": TOPIC_KEYS, "CLIENT_METRICS": CLIENT_METRICS_KEYS}


def test_every_key_with_an_effect_has_its_sentence() -> None:
    for kind, table in TABLES.items():
        documented = {name for name in table if documentation_of(kind, name) is not None}
        has_effect = {key.name for key in table.definitions() if kind != "BROKER" or key.serving == Serving.SERVED}
        assert documented == has_effect


def test_each_is_one_sentence_of_its_own() -> None:
    for kind, table in TABLES.items():
        sentences = [text for name in table if (text := documentation_of(kind, name)) is not None]
        assert len(set(sentences)) == len(sentences)
        assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in sentences)


def test_nothing_is_told_of_what_is_no_key_here() -> None:
    for kind, name in (("BROKER", "listener.name.plaintext.max.connections"), ("TOPIC", "x"), ("GROUP", "segment.bytes")):
        assert documentation_of(kind, name) is None


def test_a_start_does_not_load_the_texts() -> None:
    source = "import sys, kcli.server.apis.configs; print('kcli.server.config.key_documentation' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout == b"False\n"

"""Protects what DescribeConfigs says of keys: one sentence for each that has an effect here, none for a name that is no key."""

from __future__ import annotations

import subprocess
import sys

from kcli.server.config.definitions import BROKER_KEYS, CLIENT_METRICS_KEYS, TOPIC_KEYS, Serving
from kcli.server.config.key_documentation import documentation_of, documented_keys


def test_every_key_with_an_effect_has_its_sentence() -> None:
    served = {key.name for key in BROKER_KEYS.definitions() if key.serving == Serving.SERVED}
    assert documented_keys("BROKER") == served
    assert documented_keys("TOPIC") == set(TOPIC_KEYS)
    assert documented_keys("CLIENT_METRICS") == set(CLIENT_METRICS_KEYS)


def test_each_is_one_sentence_of_its_own() -> None:
    for kind in ("BROKER", "TOPIC", "CLIENT_METRICS"):
        sentences = [documentation_of(kind, name) for name in documented_keys(kind)]
        assert len(set(sentences)) == len(sentences)
        assert all(sentence and sentence.endswith(".") and sentence[0].isupper() for sentence in sentences)


def test_nothing_is_told_of_what_is_no_key_here() -> None:
    for kind, name in (("BROKER", "listener.name.plaintext.max.connections"), ("TOPIC", "x"), ("GROUP", "segment.bytes")):
        assert documentation_of(kind, name) is None


def test_a_start_does_not_load_the_texts() -> None:
    source = "import sys, kcli.server.apis.configs; print('kcli.server.config.key_documentation' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout == b"False\n"

"""Count words with Quix Streams, until a line comes on stdin. Arguments: BOOTSTRAP APPLICATION WORDS COUNTS STATE_DIR.

It has a repartition topic, a state store with a changelog, and transactions, and writes every count. It runs by a Python of its
own, as Quix Streams needs other versions of packages than kcli's tests.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from quixstreams import Application


def count(word: str, state: Any) -> int:
    found = int(state.get("count", 0)) + 1
    state.set("count", found)
    return found


def main() -> None:
    bootstrap, application, words, counts, state_dir = sys.argv[1:]
    app = Application(
        broker_address=bootstrap,
        consumer_group=application,
        auto_offset_reset="earliest",
        state_dir=state_dir,
        processing_guarantee="exactly-once",
        commit_interval=0.2,
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
        producer_extra_config={"transaction.timeout.ms": 5000, "linger.ms": 5},
        loglevel="WARNING",
    )
    text = {f"{part}_{way}": "str" for part in ("key", "value") for way in ("serializer", "deserializer")}
    lines = app.dataframe(app.topic(words, key_deserializer="str", value_deserializer="str"))
    by_word = lines.apply(str.split, expand=True).group_by(lambda word: word, name="by-word", **text)
    by_word.apply(count, stateful=True).to_topic(app.topic(counts, key_serializer="str", value_serializer="int"))

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    app.run()


if __name__ == "__main__":
    main()

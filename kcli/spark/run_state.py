"""The state of an output of incremental runs.

    field         content
    ------------  ---------------------------------------------------------------------------------------------------
    run           the number of the last run, from 1 on
    options       the options that determine which rows are written and how, by name (kcli.spark.incremental)
    schema        the columns of the files; None until a run has written a file
    value_schema  the schema of the values' JSON as DDL, for --decode-value json; None otherwise
    topics        for each topic its id, its cluster's id, and of each partition the next offset to be read
    files         the files of the last run: the staged path and the target path of each

The file is JSON with a CRC-32C over its fields, which detects a torn or edited file. The names of files are relative, without
`..`: other names are refused, since a run renames and replaces the files that the state names.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from kcli.format.primitives import TopicPartition, crc32c

FORMAT_VERSION = 1

# The suffix of OUT for the directory of the rows.
ROWS = ""


class RunStateError(ValueError):
    """The state of an output is invalid; the message is a clause with the reason."""


class TopicState(NamedTuple):
    """The ids of a topic, and in `offsets` the next offset to be read of each partition."""

    topic_id: str | None
    cluster_id: str | None
    offsets: dict[int, int]


class RunFile(NamedTuple):
    """A file of a run; `staged` and `file`, its target, are relative to the table's directory OUT + `suffix`."""

    suffix: str
    staged: str
    file: str


class RunState(NamedTuple):
    """The state after a run; see the module."""

    run: int
    options: dict[str, str]
    schema: str | None
    value_schema: str | None
    topics: dict[str, TopicState]
    files: tuple[RunFile, ...] = ()

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset to be read of each partition."""
        return {(topic, partition): at for topic, found in self.topics.items() for partition, at in found.offsets.items()}


def encode_state(state: RunState) -> bytes:
    """Encode the state as the bytes of a file."""
    topics = {
        name: {"topicId": topic.topic_id, "clusterId": topic.cluster_id, "offsets": dict(sorted(topic.offsets.items()))}
        for name, topic in sorted(state.topics.items())
    }
    fields = {
        "run": state.run,
        "options": state.options,
        "schema": state.schema,
        "valueSchema": state.value_schema,
        "topics": topics,
        "files": [list(file) for file in state.files],
    }
    text = {"version": FORMAT_VERSION, "checksum": _checksum(fields), **fields}
    return (json.dumps(text, indent=1, ensure_ascii=True) + "\n").encode()


def decode_state(data: bytes, suffixes: tuple[str, ...]) -> RunState:
    """Decode the bytes of a file; each of the state's files must have one of `suffixes`. Raises RunStateError."""
    try:
        found = json.loads(data)
    except ValueError:
        raise RunStateError("it is not JSON") from None
    if not isinstance(found, dict) or "version" not in found:
        raise RunStateError("it has no version")
    if found.pop("version") != FORMAT_VERSION:
        raise RunStateError("it was written by another version of kcli")
    if found.pop("checksum", None) != _checksum(found):
        raise RunStateError("its checksum is wrong")
    try:
        return RunState(
            int(found["run"]),
            dict(found["options"]),
            found["schema"],
            found["valueSchema"],
            {name: _topic(topic) for name, topic in found["topics"].items()},
            tuple(_file(file, suffixes) for file in found["files"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunStateError(
            str(error) if isinstance(error, RunStateError) else "a field is missing or has a wrong type"
        ) from None


def _topic(found: Any) -> TopicState:
    offsets = {int(partition): int(offset) for partition, offset in found["offsets"].items()}
    return TopicState(found["topicId"], found["clusterId"], offsets)


def _file(found: Any, suffixes: tuple[str, ...]) -> RunFile:
    suffix, staged, file = map(str, found)
    if suffix not in suffixes or not all(_stays_below(path) for path in (staged, file)):
        raise RunStateError(f"it names the file {suffix} {file}, which is not a file of a run")
    return RunFile(suffix, staged, file)


def _stays_below(path: str) -> bool:
    return bool(path) and not path.startswith("/") and all(part not in ("", ".", "..") for part in path.split("/"))


def _checksum(fields: dict[str, Any]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())

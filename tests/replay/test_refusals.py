"""Protects a replay from targets that answer with errors without end, and from progress that no replay has written: it ends,
says why, and leaves no group at a wrong offset.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcli.client.errors import ClientError
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from kcli.replay.progress import decode_metadata
from kcli.replay.scheduling import AtRate
from kcli.replay.source import CommittedOffset
from kcli.selecting.selection import parse_selection
from tests.replay.test_replayer import Scene, of_values


@pytest.mark.parametrize(
    ("api_key", "code", "sentence"),
    [
        (
            apis.METADATA,
            error_codes.NONE,
            r"the target fake:1 cannot be reached: the answers to Metadata had no brokers for 10000 ms$",
        ),
        (apis.METADATA, error_codes.REBOOTSTRAP_REQUIRED, r"cannot be reached: .* had no brokers .* but REBOOTSTRAP_REQUIRED"),
        (
            apis.INIT_PRODUCER_ID,
            error_codes.COORDINATOR_LOAD_IN_PROGRESS,
            r"no producer id in time: InitProducerId was answered with COORDINATOR_LOAD_IN_PROGRESS",
        ),
    ],
)
def test_an_error_that_never_passes_ends_the_run(tmp_path: Path, api_key: int, code: int, sentence: str) -> None:
    """It was asked for again and again, and the command waited without a word."""
    of_values(tmp_path, [b"a"])
    scene = Scene(tmp_path, 1, 0.0)
    scene.cluster.refused = {api_key: code}
    with pytest.raises(ClientError, match=sentence):
        scene.run(2000)
        pytest.fail("the run has not ended")
    assert scene.network.now_ms <= 100_000


def test_a_check_waits_for_a_leader_that_does_not_know_the_end_yet(tmp_path: Path) -> None:
    """Its answers had no records, and the records were reported as missing in the target."""
    of_values(tmp_path, [b"%d" % at for at in range(10)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.is_checked = True
    scene.cluster.empty_fetches = 3
    scene.run()
    assert scene.cluster.empty_fetches == 0
    assert scene.checker.differences == 0 and scene.checker.records == 10


@pytest.mark.parametrize("empty", [3, 10_000])
def test_groups_keep_their_place_while_a_leader_does_not_know_the_end_yet(tmp_path: Path, empty: int) -> None:
    """Its answers had no records, and the group was put at the end of the replay, behind records that it had not read."""
    of_values(tmp_path, [b"%d" % at for at in range(10)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.run()
    scene.committed = {("t", 0): [CommittedOffset("g", "t", 0, 4, "m")]}
    scene.cluster.empty_fetches = empty
    if empty == 3:
        scene.run()
        assert scene.cluster.offsets["g", "copy-t", 0] == (4, "m")
    else:
        with pytest.raises(ClientError, match=r"copy-t-0: the target's log ends at 0, but the records up to 10 were"):
            scene.run()
        assert ("g", "copy-t", 0) not in scene.cluster.offsets


def test_a_group_that_is_refused_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """The run ended with its error, before the progress was saved and the offsets of the other groups were committed."""
    of_values(tmp_path, [b"%d" % at for at in range(10)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.run()
    scene.committed = {("t", 0): [CommittedOffset(group, "t", 0, 4, "m") for group in ("closed", "open")]}
    scene.cluster.group_errors = {"closed": error_codes.GROUP_AUTHORIZATION_FAILED}
    replayer = scene.run()
    assert replayer is not None and list(replayer.group_problems) == ["closed"]
    assert "GROUP_AUTHORIZATION_FAILED" in replayer.group_problems["closed"]
    assert scene.cluster.offsets["open", "copy-t", 0] == (4, "m") and ("closed", "copy-t", 0) not in scene.cluster.offsets


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producerId", -1),
        ("producerEpoch", 40_000),
        ("producerEpoch", -1),
        ("sourceOffset", -3),
        ("sourceOffset", 2**63),
        ("records", float("inf")),
        ("records", -1),
        ("targetOffset", -1),
        ("startOffset", 11),
        ("lastBatch", [10, 1, 0]),
        ("lastBatch", [9, 11, 0]),
        ("topicId", "?"),
        ("topicId", None),
    ],
)
def test_progress_that_no_replay_has_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    """Its numbers go into the headers of batches, and into requests; nothing is sent."""
    of_values(tmp_path / "data", [b"%d" % at for at in range(10)])
    path = tmp_path / "progress"
    scene = Scene(tmp_path / "data", 1, 0.0, path)
    scene.run()
    saved = json.loads(path.read_bytes())
    saved["partitions"][0][key] = value
    path.write_text(json.dumps(saved))
    with pytest.raises(ClientError, match="does not have the progress of a replay, or it is damaged; name another file, or"):
        scene.run()
    assert scene.cluster.logs["copy-t"][0].end == 10


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[]", "{}", "null", "\ud800", ""],
    ids=["nested", "list", "object", "null", "surrogate", "empty"],
)
def test_a_file_that_is_no_progress_is_refused(tmp_path: Path, text: str) -> None:
    of_values(tmp_path / "data", [b"a"])
    path = tmp_path / "progress"
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(ClientError, match="does not have the progress of a replay"):
        Scene(tmp_path / "data", 1, 0.0, path).run()
    assert path.read_text(errors="surrogatepass") == text


@pytest.mark.parametrize(
    "words",
    [
        "7 0 3 3 0",
        "-7 0 3 3 0",
        "7 40000 3 3 0",
        "7 0 -3 3 0",
        "7 0 3 2 3",
        f"7 0 3 {2**63} 0",
    ],
)
def test_committed_offsets_that_no_replay_has_made_are_not_progress(words: str) -> None:
    is_sound = words == "7 0 3 3 0"
    assert (decode_metadata(3, f"kcli-replay 1 {words} AAAAAAAAAAAAAAAAAAAAAA") is not None) == is_sound
    assert decode_metadata(-3, f"kcli-replay 1 {words} AAAAAAAAAAAAAAAAAAAAAA") is None


def with_a_flipped_offset(root: Path, at: int, offset: int) -> list[bytes]:
    """A partition of 40 batches of one record, the one at `at` with another base offset, which its CRC does not cover."""
    values = [b"%d" % number for number in range(40)]
    of_values(root, values)
    path = root / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    position = 0
    for _ in range(at):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    data[position : position + 8] = offset.to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    return values


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("at", "offset"), [(10, 20), (10, 1 << 40), (10, 10 + (1 << 20)), (20, 4), (20, 0), (20, -1), (38, 1 << 40)]
)
def test_a_batch_with_a_wrong_offset_is_sent_once(tmp_path: Path, seed: int, at: int, offset: int) -> None:
    """A run that continued took the batch for one that was sent, since its offset is below the progress, and left it out; or
    the progress went back to it, and all records after it were sent again. A run may be refused, but not send wrong records."""
    values = with_a_flipped_offset(tmp_path, at, offset)
    scene = Scene(tmp_path, seed, 0.05)
    scene.selection = parse_selection()
    scene.join_bytes = 200 * (seed % 2)
    scene.schedule = AtRate(2, is_bytes=False)  # so that the progress is saved at each batch
    try:
        while scene.run(scene.rng.randint(20, 150)) is None:
            pass
    except ClientError as error:
        assert "--restart" in str(error)
        arrived = scene.arrived()["t", 0]
        assert arrived == values[: len(arrived)]
    else:
        assert scene.arrived()["t", 0] == values


def test_a_topic_that_is_not_known_for_a_moment_while_the_run_begins(tmp_path: Path) -> None:
    """Its id was missing in all requests to Produce after that."""
    of_values(tmp_path, [b"a", b"b"])
    scene = Scene(tmp_path, 1, 0.0)
    handlers = scene.cluster._handlers
    commit, metadata = handlers[apis.OFFSET_COMMIT], handlers[apis.METADATA]
    commits = hidden = 0

    def refused_once(node: int, request: Message) -> Message:
        nonlocal commits
        commits += 1
        answer = commit(node, request)
        if commits == 1:  # after which the metadata are asked for
            answer.topics[0].partitions[0].error_code = error_codes.COORDINATOR_LOAD_IN_PROGRESS
        return answer

    def hidden_once(node: int, request: Message) -> Message:
        nonlocal hidden
        answer = metadata(node, request)
        if commits == 1 and not hidden:
            hidden += 1
            for topic in answer.topics:
                topic.error_code, topic.partitions, topic.topic_id = error_codes.LEADER_NOT_AVAILABLE, [], bytes(16)
        return answer

    handlers[apis.OFFSET_COMMIT], handlers[apis.METADATA] = refused_once, hidden_once
    scene.run()
    assert hidden == 1 and scene.arrived()["t", 0] == [b"a", b"b"]

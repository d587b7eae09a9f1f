"""Protects what --map, --speed and --rate mean."""

from __future__ import annotations

import argparse
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from kcli.commands.output import CannotRun
from kcli.commands.replay import add_arguments
from kcli.commands.replay_run import ReplayRun, identity_of, timeout_of
from kcli.replay.cluster_source import ClusterSource
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.replay.scheduling import AtOnce, AtRate, AtSpeed, Schedule, ScheduleError, Sent, parse_schedule
from kcli.replay.topic_mapping import MappingError, parse_mapping
from kcli.selecting.selection import Selection, parse_selection
from tests.log_builder import PartitionBuilder


@pytest.mark.parametrize(
    ("options", "topic", "target"),
    [
        ((), "orders", "orders"),
        (("orders=copy",), "orders", "copy"),
        (("orders=copy",), "orders2", "orders2"),
        (("a.b=c",), "axb", "axb"),  # a name, not a regular expression
        ((r"(.*)=backup.\1",), "orders", "backup.orders"),
        ((r"(?P<all>.+)=\g<all>-2",), "orders", "orders-2"),
        ((r"(.*)=x.\1", "orders=copy"), "orders", "copy"),  # a name is preferred
        ((r"o(.*)=1.\1", r"(.*)=2.\1"), "orders", "1.rders"),
        ((r"(.*)=x.\1",), "__consumer_offsets", None),
        (("__consumer_offsets=old-offsets",), "__consumer_offsets", "old-offsets"),
        ((), "__cluster_metadata", None),
    ],
)
def test_names_in_the_target(options: tuple[str, ...], topic: str, target: str | None) -> None:
    assert parse_mapping(options).target_of(topic) == target


@pytest.mark.parametrize("target", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
@pytest.mark.parametrize("old", ["orders", "(.*)"])
def test_no_topic_gets_the_name_of_an_internal_topic(old: str, target: str) -> None:
    """The topic was left out without a message, and the exit code was 0."""
    with pytest.raises(MappingError, match=f"--map gives the topic 'orders' the name {target}, an internal topic"):
        parse_mapping((f"{old}={target}",)).targets(["orders"])


def test_topics_by_pattern() -> None:
    mapping = parse_mapping((), ("ord*", "x"))
    assert mapping.targets(["orders", "x", "y"]) == {"orders": "orders", "x": "x"}


@pytest.mark.parametrize(
    ("maps", "globs", "sentence"),
    [
        ((), ("orders", "user"), "--topic user: no topic here is called 'user'; did you mean 'users'?"),
        ((), ("x*",), "--topic x*: no topic here matches 'x*'; there are orders, users"),
        (("user=users-2",), (), "--map user: no topic here is called 'user'; did you mean 'users'?"),
        (("orders=a", "(x.*)=b"), ("u*", "orders"), None),
        (("orders=a",), ("users",), "--map orders=a: --topic leaves the topic out; leave one of them out"),
    ],
)
def test_names_that_no_topic_has(tmp_path: Path, maps: tuple[str, ...], globs: tuple[str, ...], sentence: str | None) -> None:
    """The topic that was meant would be left out without a message, or be sent under its own name."""
    for topic in ("orders", "users"):
        builder = PartitionBuilder(tmp_path / f"{topic}-0")
        builder.append([(b"k", b"v")])
        builder.flush()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([str(tmp_path), "--dry-run"])
    run = ReplayRun(args, Selection(), parse_mapping(maps, globs), AtOnce(), Problems(print))
    with nullcontext() if sentence is None else pytest.raises(MappingError, match=f"^{re.escape(sentence)}$"), run:
        assert run.dry_run() == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("orders",), "write OLD=NEW"),
        (("=x",), "write OLD=NEW"),
        (("a(=x",), "is not a regular expression"),
        (("a=b", "a=c"), "two names"),
        ((r"(a)=\2",), "the new name cannot be made"),
        (("a=b/c",), "a name that no topic can have"),
        ((r"(a|b)=c",), "would both become 'c'"),
    ],
)
def test_mappings_that_cannot_be(options: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(MappingError, match=sentence):
        parse_mapping(options).targets(["a", "b"])


def test_a_directory_whose_name_is_that_of_no_topic_is_named() -> None:
    """The message was about --map, which was not given."""
    sentence = "the source has the topic 'a b', which the target cannot have: .*; give it another name with --map, or name"
    with pytest.raises(MappingError, match=sentence):
        parse_mapping(()).target_of("a b")
    assert parse_mapping(("a b=a-b",)).target_of("a b") == "a-b"
    assert parse_mapping((), ("good",)).target_of("a b") is None


def test_pace_is_a_function_of_timestamps_and_of_what_was_sent() -> None:
    assert parse_schedule(None, None).due_ms(5000, 0, Sent(9, 9)) == 0
    assert isinstance(parse_schedule(None, None), AtOnce)
    assert parse_schedule("1x", None).due_ms(5000, 2000, Sent()) == 3000
    assert parse_schedule("10x", None).due_ms(5000, 2000, Sent()) == 300
    assert parse_schedule("0.5", None).due_ms(5000, 2000, Sent()) == 6000
    assert parse_schedule("2x", None).due_ms(1000, 2000, Sent()) == 0  # older than the first
    assert parse_schedule("2x", None).due_ms(-1, 2000, Sent()) == 0  # without a timestamp
    assert parse_schedule(None, "100").due_ms(0, 0, Sent(50, 7)) == 500


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5000", AtRate(5000, is_bytes=False)),
        ("20K", AtRate(20_000, is_bytes=False)),
        ("500KB", AtRate(500_000, is_bytes=True)),
        ("1.5MB/s", AtRate(1_500_000, is_bytes=True)),
        ("1GiB", AtRate(1024**3, is_bytes=True)),
        ("100B", AtRate(100, is_bytes=True)),
    ],
)
def test_rates(text: str, rate: AtRate) -> None:
    assert parse_schedule(None, text) == rate


@pytest.mark.parametrize(
    ("speed", "rate"), [("0x", None), ("fast", None), ("1x", "5"), (None, "0"), (None, "x"), (None, "5iB"), ("-1", None)]
)
def test_paces_that_cannot_be(speed: str | None, rate: str | None) -> None:
    with pytest.raises(ScheduleError):
        parse_schedule(speed, rate)


def test_speeds() -> None:
    assert parse_schedule("1X", None) == AtSpeed(1)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 1e9])
def test_timeouts_that_cannot_be(seconds: float) -> None:
    with pytest.raises(CannotRun, match=r"--timeout .*: write a number of seconds from 0\.001 to 86,400"):
        timeout_of(seconds)


def test_timeouts() -> None:
    assert timeout_of(0.5) == 500 and timeout_of(30.0) == 30_000


@pytest.mark.parametrize(
    ("options", "schedule", "join_bytes"),
    [
        ([], AtOnce(), 524288),
        ([], AtSpeed(1), 0),
        (["--join", "64KiB"], AtOnce(), 65536),
        (["--join"], AtSpeed(1), 524288),
        (["--join", "0"], AtOnce(), 0),
    ],
)
def test_which_batches_are_joined(
    monkeypatch: pytest.MonkeyPatch, options: list[str], schedule: Schedule, join_bytes: int
) -> None:
    """Small ones, of directories and of clusters, unless a schedule needs to see each of them."""
    made: list[int] = []

    class Stopped(Exception):
        pass

    def init(*args: object) -> None:
        made.append(int(str(args[-1])))
        raise Stopped

    monkeypatch.setattr(ClusterSource, "__init__", init)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    monkeypatch.setattr(DirectorySource, "__init__", init)
    for source in ("kafka://127.0.0.1:1", "logs"):
        args = parser.parse_args([source, "--to", "127.0.0.1:1", *options])
        with pytest.raises(Stopped), ReplayRun(args, Selection(), parse_mapping((), ()), schedule, Problems(print)):
            pass
    assert made == [join_bytes, join_bytes]


def test_the_name_of_the_progress_stays_what_it_is() -> None:
    """The progress of an older version is found by this hash: with another one all records would be sent again."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["kafka://old:9092", "--to", "new:9092", "--map", "a=b", "--topic", "a*"])
    assert identity_of(args.paths, parse_selection(offset="3..", isolation="read_committed"), args) == "1895aeaae0be2df5"


def test_batches_of_a_gigabyte_are_refused() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["logs", "--to", "127.0.0.1:1", "--join", "1GiB"])
    with (
        pytest.raises(CannotRun, match=r"--join 1GiB: at most 64\.0 MiB"),
        ReplayRun(args, Selection(), parse_mapping((), ()), AtOnce(), Problems(print)),
    ):
        pass

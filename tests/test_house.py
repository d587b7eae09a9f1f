"""Checks of the structure: layers, sizes, docstrings, determinism, and docs that agree with the code.

import-linter checks the imports between packages (pyproject.toml); here is what it cannot check. `KCLI_WRITE_DOCS=1` rewrites
the parts of docs/ that are generated from the program instead of comparing them.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kcli.commands.app import COMMANDS, build_parser, overview

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kcli", "pyspark_kcli", "pyspark_kafkalog")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAX_MODULE_LINES = 900
MAX_FUNCTION_LINES = 60
# Loops of compiled modules that are longer, since a call for each record would cost too much. They may get shorter, not longer.
LONG_LOOPS = {
    "kcli/format/batch_scan.py scan_batches": 69,
    "kcli/format/batch_scan.py next_notable": 76,
    # The only parser of records: 12 ns for each. With the five varints in functions of their own, each would be a call.
    "kcli/format/record_scan.py scan": 203,
    # A compiled inner function made it 20 % slower.
    "kcli/log/cleaner/offset_map.py hash_keys": 80,
    "kcli/format/arrow_columns.py put_headers": 69,
}
# Packages that do input and output for the cores below them.
SHELLS = ("kcli/server/shell/", "kcli/server/supervisor/", "kcli/network/shell/", "kcli/client/shell/")
# Modules for the outside world, and the only packages that may import them. spark/session.py is a shell, since it starts Spark,
# and so is inspect/process_pool.py, which starts processes.
WORLD = {
    "os": ("kcli/commands/", "kcli/log/disk/os_disk.py", *SHELLS, "kcli/spark/session.py", "kcli/testing.py"),
    "time": ("kcli/commands/", *SHELLS, "kcli/spark/session.py"),
    "random": (*SHELLS, "kcli/simulator/", "kcli/commands/"),
    "secrets": (*SHELLS, "kcli/commands/"),
    "socket": (*SHELLS, "kcli/spark/session.py"),
    "asyncio": (*SHELLS,),
    "threading": ("kcli/commands/", "kcli/spark/", "kcli/server/shell/serving_disk.py", "kcli/client/shell/"),
    "subprocess": ("kcli/spark/session.py", "kcli/testing.py"),
    "multiprocessing": ("kcli/commands/", "kcli/inspect/process_pool.py"),
    "signal": ("kcli/commands/", *SHELLS, "kcli/inspect/process_pool.py", "kcli/testing.py"),
    "shutil": ("kcli/commands/", "kcli/spark/session.py", "kcli/testing.py"),
    "tempfile": ("kcli/commands/", "kcli/spark/session.py", "kcli/spark/parquet_export.py", "kcli/testing.py"),
    "pyspark": ("kcli/spark/", "pyspark_kcli/", "pyspark_kafkalog/", "kcli/commands/to_parquet.py"),
    "pyarrow": ("kcli/spark/", "pyspark_kcli/", "pyspark_kafkalog/", "kcli/commands/to_parquet.py"),
}
# Words that begin a noun phrase or a clause.
NO_VERB = re.compile(
    r"(?:A|After|All|An|Any|Each|Every|Everything|How|If|Its|Nothing|One|Raises|Returns|Some|That|The|These|This|Those|What|When"
    r"|Where|Whether|Which|While|Who|Whose|Why)\b|\w+'s\b|[^A-Z]"
)
CLOCK_CALLS = re.compile(r"\b(datetime\.now|datetime\.utcnow|date\.today|time\.time|monotonic|perf_counter)\(")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def refuse(faults: Iterable[str]) -> None:
    """Fail with all faults in one message, so that one run shows each module that breaks a rule."""
    found = list(faults)
    assert not found, "\n".join(["", *found])


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def faults_of_size(path: Path) -> Iterator[str]:
    text, tree = path.read_text(), tree_of(path)
    if text.strip() and not ast.get_docstring(tree):
        yield f"{name_of(path)}: a module opens with its specification"
    if (lines := text.count("\n")) > MAX_MODULE_LINES:
        yield f"{name_of(path)} has {lines} lines"
    for function in functions(tree):
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > LONG_LOOPS.get(f"{name_of(path)} {function.name}", MAX_FUNCTION_LINES):
            yield f"{name_of(path)}: {function.name} has {lines} lines"


def test_a_module_is_one_room() -> None:
    """It opens with its specification, is short enough to be read whole, and its functions fit a screen.

    LONG_LOOPS are compiled (a .pxd is next to the module).
    """
    refuse(fault for path in MODULES for fault in faults_of_size(path))


def test_long_loops_are_compiled_and_as_long_as_noted() -> None:
    """The list names no function that is gone, that got shorter or that is not compiled."""
    for name, noted in LONG_LOOPS.items():
        path = ROOT / name.split()[0]
        assert path.with_suffix(".pxd").exists(), name
        found = [one for one in functions(tree_of(path)) if one.name == name.split()[1]]
        assert [(one.end_lineno or 0) - one.lineno + 1 for one in found] == [noted], name


def imported_packages(tree: ast.Module) -> set[str]:
    """The top packages that a module imports by their absolute names."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add((node.module or "").split(".")[0])
    return imported


def faults_of_the_world(path: Path) -> Iterator[str]:
    name = name_of(path)
    for module in sorted(imported_packages(tree_of(path)) & WORLD.keys()):
        if not name.startswith(WORLD[module]):
            yield f"{name} imports {module}"
    if not name.startswith(("kcli/commands/", *SHELLS, "kcli/spark/session")):
        yield from (f"{name} calls {found[0]}): the time is handed in" for found in CLOCK_CALLS.finditer(path.read_text()))


def test_the_world_stays_outside() -> None:
    """No clock, random numbers, sockets or os below the ports and shells."""
    refuse(fault for path in MODULES for fault in faults_of_the_world(path))


def public_definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (
                    item
                    for item in node.body
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_")
                )


def raised_names(function: ast.AST) -> set[str]:
    """The exceptions that a function raises itself, by the names of their classes."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            names.add(node.exc.func.id)
    return {name for name in names if name[0].isupper()} - {"NotImplementedError", "AssertionError", "StopIteration"}


def caught_names(function: ast.AST) -> set[str]:
    """The exceptions that a function catches."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            names |= {item.id for item in ast.walk(node.type) if isinstance(item, ast.Name)}
    return names


def described_functions(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of functions and methods, but not of properties, dunder methods and nested functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from described_functions(child)
        elif not child.name.startswith("__") and not any("property" in ast.unparse(one) for one in child.decorator_list):
            yield child.name, ast.get_docstring(child) or ""


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """Their first lines are in the imperative; the result is described in words, not behind an arrow."""
    first_lines = (
        (f"{name_of(path)}: {name}", text.partition("\n")[0])
        for path in MODULES
        for name, text in described_functions(tree_of(path))
    )
    refuse(f"{name}: {line}" for name, line in first_lines if " -> " in line or NO_VERB.match(line))


def faults_of_docstrings(path: Path) -> Iterator[str]:
    for node in public_definitions(tree_of(path)):
        name, text = f"{name_of(path)}: {node.name}", ast.get_docstring(node)
        if not text:
            yield f"{name} has no docstring"
            continue
        if text.rstrip()[-1] not in ".:)`|-_=]":
            yield f"{name}: a docstring is made of sentences"
        if isinstance(node, ast.ClassDef) or "Raise" in text or "raise" in text:
            continue
        unnamed = sorted(error for error in raised_names(node) - caught_names(node) if error not in text)
        yield from (f"{name} does not say that it raises {error}" for error in unnamed)


def test_what_is_public_is_explained() -> None:
    """Every public class and function has a docstring that ends as a sentence and names the errors that it raises."""
    refuse(fault for path in MODULES for fault in faults_of_docstrings(path))


def commands_page() -> str:
    """docs/commands.md as it should be: --help of every command."""
    parts = [
        "# Commands\n\nWhat `kcli COMMAND --help` prints. This page is kept in step by tests/test_house.py.\n",
        f"## kcli\n\n```\n{overview()}```\n",
    ]
    for command in COMMANDS:
        parser = build_parser(command)
        parts.append(f"## kcli {command}\n\n```\n{parser.format_help()}```\n")
        parts += (f"### {one.prog}\n\n```\n{one.format_help()}```\n" for one in actions_of(parser))
    return "\n".join(parts)


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of the actions that a command has, such as those of `kcli topics list`."""
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return [inner for one in found for inner in one.choices.values()]


def test_help_is_in_the_docs() -> None:
    """docs/commands.md shows --help of each command as it is."""
    page = ROOT / "docs" / "commands.md"
    if os.environ.get("KCLI_WRITE_DOCS"):
        page.write_text(commands_page())
    assert page.read_text() == commands_page(), "run: KCLI_WRITE_DOCS=1 pytest tests/test_house.py"


def test_every_command_is_in_the_readme_and_the_reverse() -> None:
    """README names all commands and no other one."""
    named = set(re.findall(r"`kcli ([a-z][a-z-]*)", (ROOT / "README.md").read_text()))
    assert named == set(COMMANDS)


def test_docs_that_are_linked_are_there() -> None:
    """The targets of the links between the documents exist."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_java_program_is_in_the_table_of_the_peer() -> None:
    """tests/oracle/peer.py says of each program what it asks Kafka."""
    text = (ROOT / "tests" / "oracle" / "peer.py").read_text().partition("The script that stands")[0]
    named = re.findall(r"^    ([A-Z]\w+)(?:\.java)?  ", text, re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "tests" / "oracle").glob("*.java"))


def test_modules_named_in_prose_exist() -> None:
    """`kcli.package.module` in a module's text and paths such as `log/reading` in ARCHITECTURE.md name what exists."""
    found = [path for top in ("kcli", "tests") for path in (ROOT / top).rglob("*") if path.is_dir() or path.suffix == ".py"]
    paths = {name_of(path.with_suffix("")): path for path in found}
    packages = "|".join(path.name for path in (ROOT / "kcli").iterdir() if path.is_dir())
    for path in MODULES:
        for name in re.findall(rf"\bkcli\.(?:{packages})(?:\.[a-z]\w*)+", path.read_text()):
            module, _, value = name.replace(".", "/").rpartition("/")
            home = paths.get(module)
            is_value = home is not None and home.is_file() and re.search(rf"\b{value}\b", home.read_text())
            assert name.replace(".", "/") in paths or is_value, f"{name_of(path)} names {name}, which does not exist"
    for name in re.findall(r"(?<![\w./-])[a-z_]+(?:/[a-z_]+)+(?![\w/.-])", (ROOT / "ARCHITECTURE.md").read_text()):
        assert any(f"/{path}".endswith(f"/{name}") for path in paths), f"ARCHITECTURE.md names {name}, which does not exist"


def test_nothing_of_one_machine_is_in_the_tree() -> None:
    """No committed text contains a path of one machine or the host of a registry."""
    if shutil.which("git") is None:
        pytest.skip("git is not on this machine")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    # In /tmp, only Kafka's default log.dirs is allowed.
    machine = r"(?<![\w.])/(?:(?:work|root|home/\w+|Users/\w+)/[\w.]+|tmp/(?!kafka(?:-logs)?\b)\w+)"
    pattern = re.compile((machine + r"|pypi\.org|repo\.maven|registry\.npmjs").encode())
    for name in listed.stdout.splitlines():
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content:
            found = pattern.search(content)
            assert found is None, f"{name} contains {found[0].decode()}"


@pytest.mark.xdist_group("house")
def test_the_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """xdist finds the groups by the ids of tests; without them, each process starts its own Spark and its own Kafka."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("there are no groups without --dist loadgroup")
    assert request.node.nodeid.endswith("@house")

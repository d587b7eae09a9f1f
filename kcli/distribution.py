"""The distribution of this program, the names that pip needs for its extras, and whether another kcli is installed.

    this program               distribution kafka-kcli, import package and command kcli
    the name `kcli` on PyPI    another program, which manages virtual machines; its command is kcli, too

kafka-kcli is not on PyPI yet. So no message names it, or kcli, to pip: what always works is a list of the packages that an
extra has, with the ranges of the installed metadata, or the source directory where nothing is installed. importlib.metadata
takes 50 ms to import, so it is loaded when asked for.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

DISTRIBUTION = "kafka-kcli"
# The distribution of that name on PyPI is not this program.
TAKEN_NAME = "kcli"
OWN_PACKAGE = "kcli."
_SOURCE = Path(__file__).resolve().parents[1]


def pip_command(extra: str, *names: str) -> str:
    """Return the pip command that installs the packages `names` of an extra, or all of them where none is named."""
    packages = [text for text in extra_packages(extra) if not names or _name_of(text) in names]
    if packages:
        return "pip install " + " ".join(shlex.quote(text) for text in packages)
    if (_SOURCE / "pyproject.toml").exists():
        return "pip install " + shlex.quote(f"{_SOURCE}[{extra}]")
    return f"pip install '.[{extra}]', in the directory of kcli's source,"


def extra_packages(extra: str) -> list[str]:
    """Return an extra's requirements, such as 'pyarrow>=18', by the installed metadata; none where nothing is installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        wanted = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    parts = (text.partition(";") for text in wanted)
    marker = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    return [requirement.strip() for requirement, _, condition in parts if marker.search(condition)]


def other_kcli() -> str | None:
    """Return a sentence where another program named kcli is installed in this environment, else None."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(TAKEN_NAME)
    except PackageNotFoundError:
        return None
    commands = [entry.value for entry in found.entry_points if entry.group == "console_scripts" and entry.name == "kcli"]
    if not commands or commands[0].startswith(OWN_PACKAGE):
        return None
    what = f"{TAKEN_NAME} {found.version}"
    if "Summary" in found.metadata:
        what += f" ({found.metadata['Summary']})"
    return (
        f"another program of this name is installed in this environment: {what}; the command kcli starts the one that was "
        "installed last, python -m kcli always starts this one; to keep this one alone, run pip uninstall kcli, then install "
        "it again from its source directory"
    )


def _name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0].lower() if found else requirement

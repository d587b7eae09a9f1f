"""Log directories of several nodes and clusters, each with a topic `users`: the ids alone tell the topics apart."""

from __future__ import annotations

from pathlib import Path

from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import MetaProperties, encode_meta_properties
from tests.commands.test_compact import make
from tests.commands.test_compact_config import TOPIC, USERS_ID, metadata_log
from tests.inspect.verified import root_files

OTHER_ID = Uuid(b"\2" * 16)
A, B = "clusterAclusterAcluste", "clusterBclusterBcluste"
PATH = "users-0"
END = 180


def log_dir(
    root: Path,
    cluster_id: str | None = A,
    node_id: int | None = 1,
    *,
    topic_id: Uuid | None = USERS_ID,
    policy: str | None = None,
    metadata_id: Uuid = USERS_ID,
    version: int = 1,
) -> Path:
    """Make a log directory with `users-0`: `policy` for one with a metadata log, whose id of the topic is `metadata_id`.

    Without a cluster and a node it has no meta.properties, as a place to which partitions were copied.
    """
    make(root, PATH)
    if topic_id is None:
        (root / PATH / "partition.metadata").unlink()
    else:
        (root / PATH / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    root_files(root, replication={PATH: END})
    if cluster_id is None and node_id is None:
        (root / "meta.properties").unlink()
    else:
        meta = MetaProperties(version, cluster_id, node_id)
        (root / "meta.properties").write_bytes(encode_meta_properties(meta, date="Sat Nov 21 03:50:00 UTC 2026"))
    if policy is not None:
        metadata_log(root, (TOPIC, "users", "cleanup.policy", policy), topic_id=metadata_id)
    return root

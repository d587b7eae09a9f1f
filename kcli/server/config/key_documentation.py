"""What a configuration key is for, one sentence each, as DescribeConfigs tells where documentation is asked for.

    documentation_of(type, name)    is
    ------------------------------  ----------------------------------------------------------------------------------------
    TOPIC, CLIENT_METRICS           the key's sentence
    BROKER                          the key's own sentence, or that of the topic key that it stands in for first
    anything else                   None, as for a key that has no effect here, a listener's and a plugin's

Of the broker's keys those have a sentence that kcli serves, of a topic's all. Nothing imports this module before somebody asks:
a start has no use for the texts.
"""

from __future__ import annotations

from kcli.server.config.definitions import TOPIC_KEYS, Serving

_TOPIC = """
cleanup.policy: What becomes of old records: delete drops whole segments by age and size; compact keeps the last \
record of each key.
compression.gzip.level: How hard gzip works where the broker compresses anew; -1 is zlib's own choice.
compression.lz4.level: How hard lz4 works where the broker compresses anew.
compression.type: The codec that batches are kept in; producer keeps them in the one they came in.
compression.zstd.level: How hard zstd works where the broker compresses anew.
delete.retention.ms: How long a compacted topic keeps a tombstone, in ms.
file.delete.delay.ms: How long the files of a dropped segment stay under another name before they are removed, in ms.
flush.messages: After how many records a log is forced to its device, beside what recovery and replication care for.
flush.ms: How long a record may stay in the page cache only, in ms.
follower.replication.throttled.replicas: The replicas whose fetching is throttled, as partition:broker or *; not served yet.
index.interval.bytes: How many bytes of records there are between two entries of a segment's offset index.
internal.segment.bytes: The size of a segment in bytes without the lower bound of segment.bytes, for tests.
leader.replication.throttled.replicas: The replicas whose leaders are throttled in serving them, as partition:broker or *; \
not served yet.
local.retention.bytes: How many bytes of a tiered partition stay on the broker's disk; tiered storage is not served yet.
local.retention.ms: How long records of a tiered partition stay on the broker's disk, in ms; tiered storage is not served yet.
max.compaction.lag.ms: After how many ms a record's log is compacted, however little of it is new.
max.message.bytes: The largest batch of records that is taken, in bytes, as it is after compression.
message.timestamp.after.max.ms: How far a record's CreateTime may lie after the broker's clock, in ms.
message.timestamp.before.max.ms: How far a record's CreateTime may lie before the broker's clock, in ms.
message.timestamp.type: Whose time a record has: CreateTime the producer's, LogAppendTime the broker's at the append.
min.cleanable.dirty.ratio: What share of a compacted log must be new before it is compacted.
min.compaction.lag.ms: How long a record is safe from compaction at least, in ms.
min.insync.replicas: How many replicas have to be in sync for a produce of acks=all to be taken.
preallocate: Whether a new segment's file gets its full size on the disk at once.
remote.log.copy.disable: Whether a tiered topic stops copying segments to the tier; tiered storage is not served yet.
remote.log.delete.on.disable: Whether what lies in the tier goes when it is switched off; tiered storage is not served yet.
remote.storage.enable: Whether the topic is tiered; only false is taken, since tiered storage is not served yet.
retention.bytes: How many bytes a partition may have before its oldest segments are dropped; -1 is no bound.
retention.ms: How old a segment's newest record may be before the segment is dropped, in ms; -1 is no bound.
segment.bytes: How many bytes a segment takes before the next one begins.
segment.index.bytes: How many bytes a segment's index may have; a full index begins the next segment.
segment.jitter.ms: Up to how many ms earlier, by chance, a segment is ended by age, so that not all end at once.
segment.ms: How long a segment takes records before the next one begins, in ms, even where it is not full.
unclean.leader.election.enable: Whether a replica that is not in sync may lead where no other is left, at the price of records.
"""
_CLIENT_METRICS = """
interval.ms: How often the matching clients push their metrics, in ms.
match: Which clients the subscription is for, as name=regular expression; all must match.
metrics: The prefixes of the names of the metrics that are pushed.
"""
_BROKER = """
advertised.listeners: The addresses that clients and other brokers are told; without it those of listeners.
auto.create.topics.enable: Whether a client that asks for the metadata of a topic may bring it into being.
broker.heartbeat.interval.ms: How often a broker tells the controller that it is alive, in ms.
broker.id: The older name of node.id.
broker.rack: The rack that a broker stands in; the replicas of a partition are spread over racks.
broker.session.timeout.ms: After how long without a heartbeat a broker is fenced, in ms.
connections.max.idle.ms: After how long without traffic a connection is closed, in ms.
controlled.shutdown.enable: Whether a broker that leaves hands its partitions' leadership over first.
controller.listener.names: The names of the listeners that controllers talk on.
controller.quorum.bootstrap.servers: The addresses at which the controllers are looked for.
controller.quorum.voters: The controllers of a fixed quorum, each as id@host:port.
default.replication.factor: How many replicas a partition gets where neither the client nor an assignment says it.
delete.topic.enable: Whether topics can be deleted.
fetch.max.bytes: The most bytes of records in the answer to one fetch, whatever the client asks for.
inter.broker.listener.name: The listener that brokers reach each other by.
kcli.recovery.quarantine.dir: The directory, outside of the log directories, where the recovery after a crash keeps what it \
removes; empty: nothing is kept, as in Kafka.
listener.security.protocol.map: Which security protocol each listener speaks, as name:protocol.
listeners: The addresses that are bound, each as name://host:port.
log.cleaner.backoff.ms: After how many ms the compacted logs are looked at again where none needed it, 10 at least.
log.cleaner.dedupe.buffer.size: How many bytes of memory the keys of a log may take while it is compacted, 24 a key.
log.cleaner.enable: Whether logs are compacted.
log.cleaner.io.buffer.load.factor: How full that memory may get, from 0 to 1, before a log is compacted in several rounds.
log.cleaner.io.max.bytes.per.second: How many bytes a second compacting may read and write together.
log.dir: The directory of the logs, where log.dirs has none.
log.dirs: The directories of the logs.
log.flush.offset.checkpoint.interval.ms: How often the recovery points, up to which all is on the device, are noted, in ms.
log.flush.scheduler.interval.ms: How often it is looked for logs whose flush is due by time, in ms.
log.flush.start.offset.checkpoint.interval.ms: How often the logs' start offsets are written down, in ms.
log.initial.task.delay.ms: How long after the start the care of the logs begins, in ms.
log.retention.check.interval.ms: How often it is looked for segments that are due to be dropped, in ms.
log.retention.hours: The same as log.retention.ms in hours; the finer unit counts.
log.retention.minutes: The same as log.retention.ms in minutes; the finer unit counts.
log.roll.hours: The same as log.roll.ms in hours; the finer unit counts.
log.roll.jitter.hours: The same as log.roll.jitter.ms in hours; the finer unit counts.
max.connection.creation.rate: How many connections may be made in a second.
max.connections: How many connections there may be at once; more of them wait.
max.connections.per.ip: How many connections one address may have at once.
max.connections.per.ip.overrides: Other bounds than max.connections.per.ip for single addresses or host names, as host:number.
max.incremental.fetch.session.cache.slots: How many clients may fetch by sessions, which name only the partitions that changed.
max.request.partition.size.limit: The most partitions in the answer to one DescribeTopicPartitions.
metadata.log.dir: The directory of the metadata log; without it the first of the log directories.
metadata.log.max.record.bytes.between.snapshots: After how many bytes of records a snapshot of the metadata is written.
metadata.log.max.snapshot.interval.ms: After how long a snapshot is written if there are new records, in ms; 0 is never.
metadata.log.segment.bytes: How many bytes a segment of the metadata log takes before the next one begins.
metadata.log.segment.ms: How long a segment of the metadata log takes records before the next one begins, in ms.
metadata.max.idle.interval.ms: After how long without records the controller writes one that says nothing, in ms; 0 is never.
metadata.max.retention.bytes: How many bytes of metadata log and snapshots are kept before the oldest are dropped.
metadata.max.retention.ms: How long segments and snapshots of the metadata log are kept, in ms.
node.id: The number of this node, of which the cluster has no second one.
num.partitions: How many partitions a topic gets where the client does not say it.
process.roles: What this process is: broker, controller or both.
producer.id.expiration.check.interval.ms: How often it is looked for producers that have to be forgotten, in ms.
producer.id.expiration.ms: After how long without a batch a producer's sequence numbers are forgotten, in ms.
queued.max.request.bytes: How many bytes of requests may be in memory at once; -1 leaves it to kcli.
replica.high.watermark.checkpoint.interval.ms: How often the high watermarks are written down, in ms.
socket.listen.backlog.size: How many connections may wait to be accepted.
socket.request.max.bytes: The largest request that is read, in bytes; a longer one ends its connection.
telemetry.max.bytes: The most bytes of metrics in one push of a client.
unstable.api.versions.enable: Whether versions of requests are offered that Kafka has not settled yet.
"""


def _read(block: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in block.strip().splitlines())


def _broker_sentences() -> dict[str, str]:
    """Those of the broker's keys, with what the broker says for topics that do not say it themselves."""
    sentences = {
        key.broker_keys[0]: f"Of topics without {key.name}: {_SENTENCES['TOPIC'][key.name]}"
        for key in TOPIC_KEYS.definitions()
        if key.broker_keys and key.serving == Serving.SERVED
    }
    return {**sentences, **_read(_BROKER)}


_SENTENCES = {"TOPIC": _read(_TOPIC), "CLIENT_METRICS": _read(_CLIENT_METRICS)}
_SENTENCES["BROKER"] = _broker_sentences()


def documented_keys(resource_type: str) -> set[str]:
    """The names of the keys of which something is told."""
    return set(_SENTENCES.get(resource_type, {}))


def documentation_of(resource_type: str, name: str) -> str | None:
    """What the key of that name is for; None where nothing is told of it."""
    return _SENTENCES.get(resource_type, {}).get(name)

"""What a configuration key is for, in one sentence: the documentation in DescribeConfigs.

    documentation_of(type, name)    returns
    ------------------------------  ----------------------------------------------------------------------------------------
    TOPIC, CLIENT_METRICS           the key's sentence
    BROKER                          the key's own sentence, or that of the first topic key whose default it is
    anything else                   None, as for keys without effect here, and those of listeners and plugins

There is a sentence for each broker key that kcli serves, and for every topic key. This module is imported at the first request
for documentation, so that a start does not load the texts.
"""

from __future__ import annotations

from kcli.server.config.definitions import TOPIC_KEYS, Serving

_TOPIC = """
cleanup.policy: How old records are removed: delete removes whole segments by age and size; compact keeps the last \
record of each key.
compression.gzip.level: The level of gzip where the broker compresses records; -1 is the default of zlib.
compression.lz4.level: The level of lz4 where the broker compresses records.
compression.type: The codec of stored batches; producer keeps the codec of the producer.
compression.zstd.level: The level of zstd where the broker compresses records.
delete.retention.ms: How long a compacted topic keeps a tombstone, in ms.
errors.deadletterqueue.group.enable: Whether share groups may write their dead letters to this topic.
file.delete.delay.ms: How long the files of a deleted segment are kept under another name before they are removed, in ms.
flush.messages: The number of records after which a log is flushed to the disk; recovery and replication do not need it.
flush.ms: The longest time that a record is only in the page cache, in ms.
follower.replication.throttled.replicas: The replicas whose fetching is throttled, as partition:broker or *.
index.interval.bytes: The bytes of records between two entries of a segment's offset index.
internal.segment.bytes: The size of a segment in bytes without the lower limit of segment.bytes, for tests.
leader.replication.throttled.replicas: The replicas whose leaders are throttled, as partition:broker or *; not served yet.
local.retention.bytes: The bytes of a tiered partition on the broker's disk; tiered storage is not served yet.
local.retention.ms: How long records of a tiered partition stay on the broker's disk, in ms; tiered storage is not served yet.
max.compaction.lag.ms: The time in ms after which a record's log is compacted even if little of it is new.
max.decompressed.message.bytes: The largest record in bytes when it is decompressed; not served yet.
max.message.bytes: The largest batch of records in bytes, after compression.
message.timestamp.after.max.ms: How far the CreateTime of a record may be after the broker's clock, in ms.
message.timestamp.before.max.ms: How far the CreateTime of a record may be before the broker's clock, in ms.
message.timestamp.type: The timestamp of records: CreateTime is the producer's, LogAppendTime the broker's time of the append.
min.cleanable.dirty.ratio: The share of a compacted log that must be new before it is compacted.
min.compaction.lag.ms: The time in ms for which a record is not compacted.
min.insync.replicas: The number of in-sync replicas that a produce request with acks=all needs.
preallocate: Whether the file of a new segment is allocated at its full size.
remote.copy.lag.bytes: The bytes of newer records after which a segment is tiered; tiered storage is not served yet.
remote.copy.lag.ms: The age of a segment in ms after which it is tiered; tiered storage is not served yet.
remote.log.copy.disable: Whether a tiered topic stops copying segments to remote storage; tiered storage is not served yet.
remote.log.delete.on.disable: Whether remote data is deleted when tiering is disabled; tiered storage is not served yet.
remote.storage.enable: Whether the topic is tiered; only false is accepted, since tiered storage is not served yet.
retention.bytes: The size in bytes above which the oldest segments of a partition are deleted; -1 means no limit.
retention.ms: The age of a segment's newest record in ms after which the segment is deleted; -1 means no limit.
segment.bytes: The size of a segment in bytes at which the next one begins.
segment.index.bytes: The size of a segment's index in bytes; a full index begins the next segment.
segment.jitter.ms: The largest random time in ms by which a segment is rolled earlier, so that not all roll at once.
segment.ms: The time in ms after which the next segment begins even if the segment is not full.
unclean.leader.election.enable: Whether a replica that is not in sync may become leader if no other is left, which \
loses records.
"""
_CLIENT_METRICS = """
interval.ms: How often the matching clients push their metrics, in ms.
match: The clients of the subscription, as name=regular expression; all expressions must match.
metrics: The prefixes of the names of the metrics that are pushed.
"""
_BROKER = """
add.partitions.to.txn.retry.backoff.max.ms: How long a produce waits for the end of the last transaction, in ms.
add.partitions.to.txn.retry.backoff.ms: The time between two attempts to add a partition to a transaction, in ms.
advertised.listeners: The addresses for clients and other brokers; by default those of listeners.
auto.create.topics.enable: Whether a topic is created when a client requests its metadata.
auto.leader.rebalance.enable: Whether the controller returns leaderships to the preferred leaders by itself.
broker.heartbeat.interval.ms: The interval of a broker's heartbeats to the controller, in ms.
broker.id: The older name of node.id.
broker.rack: The rack of the broker; the replicas of a partition are spread over racks.
broker.session.timeout.ms: The time without a heartbeat after which a broker is fenced, in ms.
connections.max.idle.ms: The time without traffic after which a connection is closed, in ms.
controller.socket.timeout.ms: The time in ms that the broker waits for the controller's answer.
controlled.shutdown.enable: Whether a broker that stops transfers its leaderships first.
controller.listener.names: The names of the controllers' listeners.
controller.quorum.auto.join.enable: Whether a controller makes itself a voter of a dynamic quorum.
controller.quorum.bootstrap.servers: The addresses by which the controllers are found.
controller.quorum.election.backoff.max.ms: How long, in ms, a voter lets better successors of a resigned leader go first.
controller.quorum.election.timeout.ms: How long, in ms, and up to twice of it, a voter waits for a leader.
controller.quorum.fetch.max.bytes: The size in bytes of a fetch of the metadata log.
controller.quorum.fetch.snapshot.max.bytes: The size in bytes of a fetch of a snapshot of the metadata log.
controller.quorum.fetch.timeout.ms: The time in ms after which a voter that cannot fetch begins an election.
controller.quorum.request.timeout.ms: The time in ms for which a controller waits for the answer of another one.
controller.quorum.retry.backoff.ms: The time in ms for which a controller waits after a failed request to another one.
controller.quorum.voters: The controllers of a static quorum, each as id@host:port.
cordoned.log.dirs: The log directories that get no new replicas; * is all of them.
default.replication.factor: The number of replicas of a partition if neither the client nor an assignment sets it.
delete.topic.enable: Whether topics can be deleted.
errors.deadletterqueue.auto.create.topics.enable: Whether the topic of a share group's dead letter queue is created if it does \
not exist.
errors.deadletterqueue.topic.name.prefix: The prefix that the names of topics for dead letter queues must have.
fetch.max.bytes: The largest number of bytes of records in a fetch response, whatever the client requests.
group.consumer.assignment.interval.ms: The shortest time between two assignments of a consumer group, in ms.
group.consumer.assignors: The assignors of consumer groups, uniform and range; the first is the default.
group.consumer.heartbeat.interval.ms: How often the members of consumer groups send heartbeats, in ms.
group.consumer.max.assignment.interval.ms: The highest assignment interval that a group may set, in ms.
group.consumer.max.heartbeat.interval.ms: The highest heartbeat interval that a group may set, in ms.
group.consumer.max.session.timeout.ms: The highest session timeout that a group may set, in ms.
group.consumer.max.size: The number of members of a consumer group.
group.consumer.migration.policy: Whether groups with members move between the classic and the consumer protocol: disabled, \
downgrade, upgrade or bidirectional.
group.consumer.min.assignment.interval.ms: The lowest assignment interval that a group may set, in ms.
group.consumer.min.heartbeat.interval.ms: The lowest heartbeat interval that a group may set, in ms.
group.consumer.min.session.timeout.ms: The lowest session timeout that a group may set, in ms.
group.consumer.regex.refresh.interval.ms: How often subscriptions by pattern are resolved again if no topic changes, in ms.
group.consumer.session.timeout.ms: The time without a heartbeat after which a member of a consumer group is removed, in ms.
group.coordinator.append.linger.ms: How long the group coordinator waits for more records of a batch, in ms; -1 waits for the \
requests at hand only.
group.coordinator.rebalance.protocols: The protocols of groups that are served; share groups are served by share.version.
group.initial.rebalance.delay.ms: How long the first rebalance of an empty classic group waits for more members, in ms.
group.max.session.timeout.ms: The longest session timeout of a member of a classic group, in ms.
group.max.size: The number of members of a classic group.
group.share.assignment.interval.ms: The shortest time between two assignments of a share group, in ms.
group.share.delivery.count.limit: How often a record is delivered to the members of a share group at most.
group.share.heartbeat.interval.ms: How often the members of share groups send heartbeats, in ms.
group.share.initialize.retry.interval.ms: The time after which the state of a share partition is initialized again, in ms.
group.share.max.assignment.interval.ms: The highest assignment interval that a share group may set, in ms.
group.share.max.delivery.count.limit: The highest delivery count limit that a share group may set.
group.share.max.heartbeat.interval.ms: The highest heartbeat interval that a share group may set, in ms.
group.share.max.partition.max.record.locks: The highest number of records in flight in a partition that a share group may set.
group.share.max.record.lock.duration.ms: The longest lock duration that a share group may set, in ms.
group.share.max.session.timeout.ms: The highest session timeout that a share group may set, in ms.
group.share.max.share.sessions: The number of share sessions of a broker.
group.share.max.size: The number of members of a share group.
group.share.min.assignment.interval.ms: The lowest assignment interval that a share group may set, in ms.
group.share.min.delivery.count.limit: The lowest delivery count limit that a share group may set.
group.share.min.heartbeat.interval.ms: The lowest heartbeat interval that a share group may set, in ms.
group.share.min.partition.max.record.locks: The lowest number of records in flight in a partition that a share group may set.
group.share.min.record.lock.duration.ms: The shortest lock duration that a share group may set, in ms.
group.share.min.session.timeout.ms: The lowest session timeout that a share group may set, in ms.
group.share.partition.max.record.locks: The number of records of a partition that may be in flight in a share group.
group.share.record.lock.duration.ms: How long a member of a share group holds records that it has acquired, in ms.
group.share.session.timeout.ms: The time without a heartbeat after which a member of a share group is removed, in ms.
group.min.session.timeout.ms: The shortest session timeout of a member of a classic group, in ms.
group.streams.acceptable.recovery.lag: How many records of a task's changelogs a member of a streams group may lack when it \
takes over the task; for its information.
group.streams.assignment.interval.ms: The shortest time between two assignments of a streams group, in ms.
group.streams.assignors: The assignors of streams groups; sticky is the only one.
group.streams.heartbeat.interval.ms: How often the members of streams groups send heartbeats, in ms.
group.streams.initial.rebalance.delay.ms: How long the first assignment of an empty streams group waits for more members, in ms.
group.streams.max.assignment.interval.ms: The highest assignment interval that a streams group may set, in ms.
group.streams.max.heartbeat.interval.ms: The highest heartbeat interval that a streams group may set, in ms.
group.streams.max.session.timeout.ms: The highest session timeout that a streams group may set, in ms.
group.streams.max.size: The number of members of a streams group.
group.streams.max.standby.replicas: The highest number of standby tasks that a streams group may set.
group.streams.min.assignment.interval.ms: The lowest assignment interval that a streams group may set, in ms.
group.streams.min.heartbeat.interval.ms: The lowest heartbeat interval that a streams group may set, in ms.
group.streams.min.session.timeout.ms: The lowest session timeout that a streams group may set, in ms.
group.streams.min.task.offset.interval.ms: The lowest task offset interval that a streams group may set, in ms.
group.streams.num.standby.replicas: The number of standby tasks for each task with a state.
group.streams.rack.aware.assignment.tags: The client tags that members of streams groups must have; a member without one gets \
the status MISSING_CLIENT_TAGS.
group.streams.session.timeout.ms: The time without a heartbeat after which a member of a streams group is removed, in ms.
group.streams.task.offset.interval.ms: How often the members of streams groups report the offsets of their tasks, in ms.
group.streams.topology.description.plugin.class: Any class name, also of a class that is not there: the descriptions of \
topologies that clients send are kept in memory.
initial.broker.registration.timeout.ms: The time in ms after which a broker ends that could not register with the controllers.
inter.broker.listener.name: The listener that brokers use for each other.
kcli.max.groups: The number of groups of all kinds that a broker coordinates at most, 2147483647 for no limit, as in Kafka; \
one more is refused with POLICY_VIOLATION.
kcli.max.open.transactions: The number of open transactions that a broker coordinates at most, 2147483647 for no limit, as in \
Kafka; producers get CONCURRENT_TRANSACTIONS and try again to begin one more.
kcli.quorum.elect.at.once: If true, the controller with the lowest node.id does not wait for the election timeout at its start \
once all other voters have answered that they know no leader.
kcli.recovery.quarantine.dir: The directory, outside of the log directories, for a copy of what recovery removes \
after a crash; empty: no copy, as in Kafka.
leader.imbalance.check.interval.seconds: How often the controller elects preferred leaders, in seconds.
listener.security.protocol.map: The security protocol of each listener, as name:protocol.
listeners: The addresses that are bound, each as name://host:port.
log.cleaner.backoff.ms: The time until the compacted logs are checked again if none was dirty, in ms, at least 10.
log.cleaner.dedupe.buffer.size: The memory in bytes for the keys of a log while it is compacted, 24 for each key.
log.cleaner.enable: Whether logs are compacted.
log.cleaner.io.buffer.load.factor: How full that memory may get, from 0 to 1, before a log is compacted in several rounds.
log.cleaner.io.max.bytes.per.second: The number of bytes per second that compaction reads and writes at most.
log.dir: The directory of the logs if log.dirs is not set.
log.dirs: The directories of the logs.
log.flush.offset.checkpoint.interval.ms: How often the recovery points, up to which logs are durable, are written, in ms.
log.flush.scheduler.interval.ms: How often logs are checked for flushes by time, in ms.
log.flush.start.offset.checkpoint.interval.ms: How often the start offsets of logs are written, in ms.
log.initial.task.delay.ms: The time between the start and the first periodic tasks on logs, in ms.
log.retention.check.interval.ms: How often segments are checked for deletion, in ms.
log.retention.hours: The value of log.retention.ms in hours; the finer unit takes precedence.
log.retention.minutes: The value of log.retention.ms in minutes; the finer unit takes precedence.
log.roll.hours: The value of log.roll.ms in hours; the finer unit takes precedence.
log.roll.jitter.hours: The value of log.roll.jitter.ms in hours; the finer unit takes precedence.
max.connection.creation.rate: The number of new connections per second.
max.connections: The number of connections; more of them wait.
max.connections.per.ip: The number of connections of one address.
max.connections.per.ip.overrides: Other limits than max.connections.per.ip for single addresses or host names, as host:number.
max.incremental.fetch.session.cache.slots: The number of fetch sessions, with which clients name only the partitions \
that changed.
max.request.partition.size.limit: The largest number of partitions in a DescribeTopicPartitions response.
metadata.log.dir: The directory of the metadata log; by default the first log directory.
metadata.log.max.record.bytes.between.snapshots: The number of bytes of records after which a metadata snapshot is written.
metadata.log.max.snapshot.interval.ms: The time after which a snapshot is written if there are new records, in ms; 0 is never.
metadata.log.segment.bytes: The size of a segment of the metadata log in bytes at which the next one begins.
metadata.log.segment.ms: The time in ms after which the next segment of the metadata log begins.
metadata.max.idle.interval.ms: The time without records after which the controller writes a no-op record, in ms; 0 is never.
metadata.max.retention.bytes: The size of metadata log and snapshots in bytes above which the oldest are deleted.
metadata.max.retention.ms: How long segments and snapshots of the metadata log are kept, in ms.
node.id: The number of this node, unique in the cluster.
num.partitions: The number of partitions of a topic if the client does not set it.
num.replica.fetchers: The number of fetchers that copy records from each other broker, each with a connection.
offset.metadata.max.bytes: The number of characters of the metadata that is committed with an offset.
offsets.commit.timeout.ms: How long a change of a group waits until it is committed, in ms.
offsets.retention.check.interval.ms: How often offsets and groups that have expired are deleted, in ms.
offsets.retention.minutes: How long offsets are kept after their commit, or after their group became empty, in minutes.
offsets.topic.compression.codec: The compression of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
offsets.topic.num.partitions: The number of partitions of __consumer_offsets when it is created.
offsets.topic.replication.factor: The number of replicas of __consumer_offsets when it is created.
offsets.topic.segment.bytes: The size of the segments of __consumer_offsets, in bytes.
process.roles: The roles of this process: broker, controller or both.
producer.id.expiration.check.interval.ms: How often producers are checked for expiration, in ms.
producer.id.expiration.ms: The time without a batch after which a producer's sequence numbers are forgotten, in ms.
queued.max.request.bytes: The memory for requests in bytes; -1 uses kcli's default.
request.timeout.ms: The time in ms that this broker waits for an answer of another node or of a coordinator.
replica.fetch.backoff.ms: The longest time in ms after which a follower asks again when its leader failed or refused.
replica.fetch.max.bytes: The bytes of one partition that a follower fetches at most; a first batch may be larger.
replica.fetch.min.bytes: The bytes for which a leader waits before it answers a follower.
replica.fetch.response.max.bytes: The bytes that a follower fetches at most with a request.
replica.fetch.wait.max.ms: How long a leader waits for records before it answers a follower, in ms.
replica.lag.time.max.ms: How long a follower may not have reached the leader's log end before it leaves the ISR, in ms.
replica.high.watermark.checkpoint.interval.ms: How often the high watermarks are written, in ms.
replica.selector.class: The class that chooses which replica serves a consumer; RackAwareReplicaSelector takes one in its rack.
replication.quota.window.num: How many windows the rate of throttled replication is measured over.
replication.quota.window.size.seconds: The length in seconds of a window of throttled replication.
replica.socket.timeout.ms: The time in ms after which a follower's request without an answer has failed.
share.coordinator.append.linger.ms: How long the share coordinator waits for more records of a batch, in ms; -1 waits for the \
requests at hand only.
share.coordinator.cold.partition.snapshot.interval.ms: How often share partitions without changes get a snapshot, in ms.
share.coordinator.snapshot.update.records.per.snapshot: The updates of a share partition after which a snapshot follows.
share.coordinator.state.topic.compression.codec: The codec of __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
share.coordinator.state.topic.min.isr: The min.insync.replicas of __share_group_state, when it is created.
share.coordinator.state.topic.num.partitions: The number of partitions of __share_group_state, which must not change later.
share.coordinator.state.topic.prune.interval.ms: How often records that no share partition needs are deleted, in ms.
share.coordinator.state.topic.replication.factor: The number of replicas of __share_group_state, when it is created.
share.coordinator.state.topic.segment.bytes: The segment.bytes of __share_group_state, when it is created.
share.coordinator.write.timeout.ms: The longest time until a record of __share_group_state is committed, in ms.
socket.connection.setup.timeout.ms: The time in ms that a connection to another node may take.
socket.listen.backlog.size: The number of connections that may wait to be accepted.
socket.request.max.bytes: The largest request in bytes; a larger one closes its connection.
telemetry.max.bytes: The largest push of a client's metrics in bytes.
transaction.abort.timed.out.transaction.cleanup.interval.ms: How often transactions are checked for their timeout, in ms.
transaction.max.timeout.ms: The largest transaction timeout in ms that a producer may ask for.
transaction.partition.verification.enable: Whether transactions are verified before their first batch in a partition.
transaction.remove.expired.transaction.cleanup.interval.ms: How often expired transactional ids are found and removed, in ms.
transaction.state.log.min.isr: The min.insync.replicas of __transaction_state, when it is created.
transaction.state.log.num.partitions: The number of partitions of __transaction_state, which must not change later.
transaction.state.log.replication.factor: The number of replicas of __transaction_state, when it is created.
transaction.state.log.segment.bytes: The segment.bytes of __transaction_state, when it is created.
transaction.two.phase.commit.enable: Whether producers may open transactions without a timeout, for an outer two-phase commit.
transactional.id.expiration.ms: How long a transactional id without a transaction is kept after its last change, in ms.
unclean.leader.election.interval.ms: How often the controller elects unclean leaders where that is allowed, in ms.
unstable.api.versions.enable: Whether API versions are offered that Kafka has not released yet.
"""


def _read(block: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in block.strip().splitlines())


def _broker_sentences() -> dict[str, str]:
    """Return the sentences of the broker's keys, those of the defaults for topics included."""
    sentences = {
        key.broker_keys[0]: f"The default of topics without {key.name}. {_SENTENCES['TOPIC'][key.name]}"
        for key in TOPIC_KEYS.definitions()
        if key.broker_keys and key.serving == Serving.SERVED
    }
    return {**sentences, **_read(_BROKER)}


_SENTENCES = {"TOPIC": _read(_TOPIC), "CLIENT_METRICS": _read(_CLIENT_METRICS)}
_SENTENCES["BROKER"] = _broker_sentences()


def documentation_of(resource_type: str, name: str) -> str | None:
    """Return the sentence of a key, None for a key without one."""
    return _SENTENCES.get(resource_type, {}).get(name)

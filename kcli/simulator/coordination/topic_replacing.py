"""An administrator that deletes a topic and creates it again under the same name, while groups read it.

A consumer group and a share group read it. The partitions of the new topic begin at offset 0, and no group has offsets there.
The clients name the topic by its id: with its name a late request could reach a later topic. Only the administrator reads
offsets by the name, to see whether the coordinator has deleted them.

    step          what is certain then
    ------------  ------------------------------------------------------------------------------------------------------
    look          the coordinator of the group is loaded
    delete        DeleteTopics by id, until it is answered
    look again    the group has no offset of the topic, if the broker has not been started again since the first look
    create        CreateTopics, until the new id is known; members may see it first
"""

from __future__ import annotations

from random import Random

from kcli.protocol import error_codes
from kcli.protocol.apis import CREATE_TOPICS, DELETE_TOPICS, METADATA, OFFSET_FETCH
from kcli.simulator.client import Task
from kcli.simulator.coordination.history import NO_OFFSET
from kcli.simulator.coordination.stage import AGAIN_PARTITIONS, GROUP_KEY, RETRIABLE, Caller, Stage, StageTopic
from kcli.simulator.world import PAUSE_MS

MAX_LIFE_MS = 4000  # of a topic
LOOK_AFTER_MS = 700
_DELETE_IDS_VERSION = 6
_FETCH_GROUPS_VERSION, _LAST_NAMES_VERSION = 8, 9
_GONE = frozenset((error_codes.UNKNOWN_TOPIC_ID, error_codes.UNKNOWN_TOPIC_OR_PARTITION))


class TopicReplacer:
    """See the head of this module; `group` reads the topic `name`."""

    def __init__(self, stage: Stage, name: str, rng: Random, group: str) -> None:
        self.is_idle = False
        self._stage = stage
        self._name = name
        self._rng = rng
        self._group = group
        self._caller = Caller(stage, f"{name} administrator", rng)

    def run(self) -> Task[None]:
        """Replace the topic until the workload drains; it exists then. Raises SimulationFailure."""
        stage, rng = self._stage, self._rng
        yield from self._caller.find_coordinator(GROUP_KEY, self._group)
        stage.creating = self._name
        yield from self._create()
        while True:
            wake_ms = stage.now_ms + rng.randrange(MAX_LIFE_MS)
            while stage.now_ms < wake_ms and not stage.is_draining:
                yield PAUSE_MS
            topic = stage.topic(self._name)
            if stage.is_draining or topic is None:
                break
            yield from self._replace(topic)
        self.is_idle = True

    def _replace(self, topic: StageTopic) -> Task[None]:
        life = self._life
        is_loaded = (yield from self._offsets()) is not None
        yield from self._delete(topic)
        if self._rng.random() < 0.7:
            yield LOOK_AFTER_MS
            left = yield from self._offsets()
            # A late request may have created the topic again, so that the offsets are those of the new one.
            if is_loaded and left and life == self._life and self._stage.creating is not None:
                self._stage.history.leftovers.append(f"{self._group} has offsets {left} of {topic.name} after its deletion")
        yield from self._create()

    @property
    def _life(self) -> int:
        return self._stage.world.machine.start_count

    def _offsets(self) -> Task[dict[int, int] | None]:
        """Return the offsets of the group in the topic by its name, None if the coordinator cannot say it."""
        world, caller = self._stage.world, self._caller
        group = world.struct(OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=self._group, topics=None)
        request = world.request(OFFSET_FETCH, groups=[group])
        version = caller.version(OFFSET_FETCH, _FETCH_GROUPS_VERSION, _LAST_NAMES_VERSION)
        response = yield from caller.call(OFFSET_FETCH, min(version, _LAST_NAMES_VERSION), request, may_repeat=False)
        if response is None:
            return None
        answer = response.groups[0]
        caller.check(answer.error_code, "OffsetFetch of all offsets")
        if answer.error_code:
            return None
        return {
            part.partition_index: part.committed_offset
            for topic in answer.topics
            for part in topic.partitions
            if topic.name == self._name and part.committed_offset != NO_OFFSET
        }

    def _delete(self, topic: StageTopic) -> Task[None]:
        stage, caller = self._stage, self._caller
        stage.history.deleted_ms[topic.name] = stage.now_ms
        stage.creating = self._name
        state = stage.world.struct(DELETE_TOPICS, "DeleteTopicState", name=None, topic_id=topic.topic_id)
        request = stage.world.request(DELETE_TOPICS, topics=[state], timeout_ms=1000)
        while not stage.is_over:
            version = caller.version(DELETE_TOPICS, _DELETE_IDS_VERSION)
            response = yield from caller.call(DELETE_TOPICS, version, request, may_repeat=self._rng.random() < 0.2)
            if response is not None:
                code = response.responses[0].error_code
                if not code or code in _GONE:
                    break
                caller.check(code, "DeleteTopics")
            yield PAUSE_MS
        stage.world.trace.add(self._name, f"{topic.name} is deleted")

    def _create(self) -> Task[None]:
        """Create the topic until a client has seen its id."""
        stage, world, caller = self._stage, self._stage.world, self._caller
        wanted = world.struct(
            CREATE_TOPICS, "CreatableTopic", name=self._name, num_partitions=AGAIN_PARTITIONS, replication_factor=1
        )
        request = world.request(CREATE_TOPICS, topics=[wanted], timeout_ms=1000)
        # A broker that has just been started is fenced for a time: there is none for the replicas.
        allowed = RETRIABLE | {error_codes.TOPIC_ALREADY_EXISTS, error_codes.INVALID_REPLICATION_FACTOR}
        while stage.creating is not None and not stage.is_over:
            response = yield from caller.call(CREATE_TOPICS, caller.version(CREATE_TOPICS), request, may_repeat=False)
            if response is not None:
                caller.check(response.topics[0].error_code, "CreateTopics", allowed)
                yield from self._look_up()
            yield self._rng.randrange(1, PAUSE_MS)

    def _look_up(self) -> Task[None]:
        """Take the topic's id from the metadata, if it is there."""
        world, caller = self._stage.world, self._caller
        request = world.request(METADATA, topics=None, allow_auto_topic_creation=False)
        response = yield from caller.call(METADATA, world.versions[METADATA][1], request, may_repeat=False)
        known = {topic.topic_id for topic in self._stage.topics.values()}
        for topic in () if response is None else response.topics:
            is_new = topic.name == self._name and bytes(topic.topic_id) not in known
            if is_new and len(topic.partitions) == AGAIN_PARTITIONS and self._stage.creating is not None:
                self._stage.created(bytes(topic.topic_id))

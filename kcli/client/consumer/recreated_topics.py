"""Topics that are deleted and created again while a consumer reads them: its positions are offsets of the old topic.

    the metadata have, of an assigned partition      then
    -----------------------------------------------  -----------------------------------------------------------------------
    the first id of its topic since its assignment   the position is one of this topic
    another id                                       the position is looked up as after an assignment: the committed offset,
                                                     else auto.offset.reset. With none poll raises TopicRecreatedError
    an id that another one has replaced              nothing: a broker is behind
    no id: the topic is deleted, or the broker old   nothing

Kafka's own consumer has no such rule. If the log of the new topic is longer than the old position, it reads on in the middle.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.client.cluster import TopicPartition
from kcli.client.consumer.position_errors import PositionErrors
from kcli.client.consumer.subscription_state import NONE, FetchState, SubscriptionState
from kcli.client.errors import TopicRecreatedError
from kcli.client.metadata import Metadata


class RecreatedTopics:
    """Forgets the positions of one consumer in topics that were created again.

    `forget(partition)` is called for each of them, `log(line)` with a sentence.
    """

    def __init__(
        self,
        metadata: Metadata,
        subscriptions: SubscriptionState,
        errors: PositionErrors,
        forget: Callable[[TopicPartition], None],
        log: Callable[[str], None],
    ) -> None:
        self._metadata = metadata
        self._subscriptions = subscriptions
        self._errors = errors
        self._forget = forget
        self._log = log
        self._ids: dict[TopicPartition, bytes] = {}
        self._replaced: set[bytes] = set()

    def check(self) -> None:
        """Compare the ids of the assigned partitions' topics with those in the metadata, after either has changed."""
        ids = self._metadata.topic_ids
        before, self._ids = self._ids, {}
        for partition in self._subscriptions.assigned_partitions:
            topic_id, known = ids.get(partition[0]), before.get(partition)
            if topic_id is None or topic_id in self._replaced:
                topic_id = known
            if topic_id is not None:
                self._ids[partition] = topic_id
        changed = [one for one, topic_id in self._ids.items() if before.get(one, topic_id) != topic_id]
        self._replaced.update(before[one] for one in changed)
        for partition in sorted(changed):
            self._recreated(partition)

    def _recreated(self, partition: TopicPartition) -> None:
        state = self._subscriptions.state_of(partition)
        if state.position is None:
            return
        topic, number = partition
        offset = self._subscriptions.consumed_offset(partition)
        self._log(
            f"the topic {topic} was deleted and created again: offset {offset} of {topic}-{number} is not a position any more"
        )
        self._forget(partition)
        state.put(FetchState.INITIALIZING, None)
        if self._subscriptions.default_strategy == NONE and offset is not None:
            self._errors.put(TopicRecreatedError({partition: offset}), partition)

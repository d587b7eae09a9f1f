"""Adds to the history what a core of kcli's own consumer sends and gets: offsets that it commits, and offsets that it reads.

The application does not see all of them: an automatic commit, an attempt that was lost and may be executed later, the committed
offset at which a partition begins. So they come from the frames; what the client returns is recorded in addition.
"""

from __future__ import annotations

from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.apis import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH
from kcli.protocol.message import Message
from kcli.simulator.coordination.group_member import STALE
from kcli.simulator.coordination.history import OffsetCommit, OffsetRead
from kcli.simulator.coordination.stage import RETRIABLE, Stage
from kcli.simulator.core_client import CoreClient, WireRequest
from kcli.simulator.partition_ledger import SimulationFailure

_GROUPS_VERSION = 8  # of OffsetFetch
_REPEATED = frozenset((OFFSET_COMMIT, HEARTBEAT))


def may_repeat(request: WireRequest) -> bool:
    """Return whether a request may come a second time without giving partitions away for the member."""
    return request.api_key in _REPEATED


class WireHistory:
    """The requests of one process; `asked_ms` is the time of the last request that brought a generation or member epoch."""

    def __init__(self, stage: Stage, client: CoreClient, group: str) -> None:
        self.asked_ms = stage.now_ms
        self._stage = stage
        self._name = client.name
        self._group = group
        client.observers[OFFSET_COMMIT] = self._commit
        client.observers[OFFSET_FETCH] = self._fetch
        client.observers[JOIN_GROUP] = client.observers[CONSUMER_GROUP_HEARTBEAT] = self._join

    def _check(self, code: int, what: str, allowed: frozenset[int]) -> None:
        if code and code not in allowed:
            raise SimulationFailure(f"{self._name}: {what} returned error {error_codes.NAMES.get(code, code)}")

    def _topic(self, topic: Message) -> str:
        return topic.name or self._stage.topic_name(topic.topic_id)

    # ---------------------------------------------------------------------------------------------------------- commits

    def _commit(self, request: WireRequest) -> None:
        message, stage = request.decode(), self._stage
        commits = {
            (self._topic(topic), part.partition_index): OffsetCommit(
                self._group,
                (self._topic(topic), part.partition_index),
                part.committed_offset,
                stage.now_ms,
                message.member_id,
                message.generation_id_or_member_epoch,
            )
            for topic in message.topics
            for part in topic.partitions
        }
        for commit in commits.values():
            commit.is_stray = True  # until it is answered
        stage.history.commits += commits.values()
        request.on_end = partial(self._committed, commits, request.is_repeated)

    def _committed(self, commits: dict[tuple[str, int], OffsetCommit], is_repeated: bool, answer: Message | None) -> None:
        if answer is None:
            return
        for topic in answer.topics:
            for part in topic.partitions:
                code, commit = part.error_code, commits[self._topic(topic), part.partition_index]
                self._check(code, "OffsetCommit", RETRIABLE | STALE)
                if not code:
                    commit.answered_ms = self._stage.now_ms
                    commit.is_stray = is_repeated
                elif code in STALE:
                    commit.is_refused, commit.is_stray = not is_repeated, is_repeated

    # ------------------------------------------------------------------------------------------------------------ reads

    def _fetch(self, request: WireRequest) -> None:
        def answered(answer: Message | None) -> None:
            if answer is None:
                return
            group = answer.groups[0] if request.version >= _GROUPS_VERSION else answer
            self._check(group.error_code, "OffsetFetch", RETRIABLE | STALE)
            reads = []
            for topic in () if group.error_code else group.topics:
                for part in topic.partitions:
                    self._check(part.error_code, "OffsetFetch", RETRIABLE | {error_codes.UNSTABLE_OFFSET_COMMIT})
                    if part.error_code:
                        return  # the client uses none of the offsets
                    where, now_ms = (self._topic(topic), part.partition_index), self._stage.now_ms
                    reads.append(OffsetRead(self._group, where, part.committed_offset, request.sent_ms, now_ms))
            self._stage.history.offset_reads += reads

        request.on_end = answered

    # ------------------------------------------------------------------------------------------------------- generations

    def _join(self, request: WireRequest) -> None:
        def answered(answer: Message | None) -> None:
            if answer is not None and not answer.error_code:
                self.asked_ms = request.sent_ms

        request.on_end = answered

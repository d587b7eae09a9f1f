"""The calls of an application that a producer has not ended yet, but for those of transactions."""

from __future__ import annotations

from collections.abc import Callable

from kcli.client.errors import ClientError
from kcli.client.producer.producer_batch import ProducerBatch
from kcli.client.producer.transaction_requests import CallDone
from kcli.network.timing_wheel import TimerTask


class Waiting:
    """A record, or a question for partitions, that waits for metadata or memory."""

    def __init__(
        self,
        topic: str,
        partition: int,
        try_again: Callable[[int], bool],
        done: Callable[[ClientError], None],
        owner: object,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.try_again = try_again
        self.done = done
        self.owner = owner
        self.deadline: TimerTask | None = None


class Flush:
    """A call of flush, and the batches that have not ended."""

    def __init__(self, batches: list[ProducerBatch], done: CallDone) -> None:
        self.batches = batches
        self.done = done

    def is_over(self) -> bool:
        """Return whether all batches have ended; each is checked until it has."""
        while self.batches and self.batches[-1].is_done:
            self.batches.pop()
        return not self.batches

"""How well the records of a topic compress (Kafka: CompressionRatioEstimator).

With a codec, batches get as many records as are expected to have batch.size bytes when compressed.

    a batch compresses    the estimate for later batches
    --------------------  --------------------------------------------------------------------
    better                falls to the observed ratio, at most 0.005 for each batch
    worse                 rises by 0.05, or to the observed ratio if that is more
    too large to send     rises to 1 or the observed ratio, when the batch is split

An estimate that is too low makes batches that the broker rejects, so it rises faster than it falls. It begins with 1.
"""

from __future__ import annotations

IMPROVING_STEP = 0.005
DETERIORATING_STEP = 0.05


class CompressionRatioEstimator:
    """Estimates for the topics of one producer, which has one codec."""

    def __init__(self) -> None:
        self._estimates: dict[str, float] = {}

    def estimation(self, topic: str) -> float:
        """Return the expected size of a compressed batch by its size without compression."""
        return self._estimates.get(topic, 1.0)

    def update(self, topic: str, observed: float) -> None:
        """Take the ratio of a compressed batch into account."""
        current = self.estimation(topic)
        if observed > current:
            self._estimates[topic] = max(current + DETERIORATING_STEP, observed)
        elif observed < current:
            self._estimates[topic] = max(current - IMPROVING_STEP, observed)

    def reset(self, topic: str, observed: float) -> None:
        """Begin anew after a batch was too large."""
        self._estimates[topic] = max(1.0, observed)

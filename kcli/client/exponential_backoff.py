"""The delay before a retry: exponential with jitter (KIP-580; Kafka: ExponentialBackoff).

    delay = min(initial * multiplier ** min(failures, most), maximum), times a random factor of 1 - jitter to 1 + jitter

The result never exceeds the maximum. If the maximum is not above the initial delay, all delays equal the maximum, without
jitter, as in Kafka. Clients use a multiplier of 2 and a jitter of 0.2 (CommonClientConfigs).
"""

from __future__ import annotations

import math

from kcli.log.rng import Random

RETRY_MULTIPLIER = 2
RETRY_JITTER = 0.2


class ExponentialBackoff:
    """Delays in ms of one setting."""

    def __init__(
        self, initial_ms: int, max_ms: int, rng: Random, multiplier: int = RETRY_MULTIPLIER, jitter: float = RETRY_JITTER
    ) -> None:
        self._initial_ms = min(initial_ms, max_ms)
        self._max_ms = max_ms
        self._rng = rng
        self._multiplier = multiplier
        self._jitter = jitter
        self._most_exponent = math.log(max_ms / max(initial_ms, 1), multiplier) if max_ms > initial_ms else 0.0

    def delay_ms(self, failures: int) -> int:
        """Return the delay after `failures` earlier failures: 0 for the first retry."""
        if self._most_exponent == 0.0:
            return self._initial_ms
        term = self._initial_ms * self._multiplier ** min(float(failures), self._most_exponent)
        factor = 1.0 - self._jitter + 2.0 * self._jitter * self._rng.random()
        return min(int(factor * term), self._max_ms)

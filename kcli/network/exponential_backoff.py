"""The delay before a retry: exponential with jitter (KIP-580; Kafka: ExponentialBackoff).

    delay = min(initial * multiplier ** min(failures, most), maximum), times a random factor of 1 - jitter to 1 + jitter

The result never exceeds the maximum. If the maximum is not above the initial delay, all delays equal the maximum, without
jitter, as in Kafka. Clients use a multiplier of 2 and a jitter of 0.2 (CommonClientConfigs).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kcli.log.rng import Random

RETRY_MULTIPLIER = 2
RETRY_JITTER = 0.2


class ExponentialBackoff(NamedTuple):
    """Delays in ms from `initial_ms` to `max_ms`; `jitter` is the share by which each may differ."""

    initial_ms: int
    max_ms: int
    jitter: float = RETRY_JITTER
    multiplier: int = RETRY_MULTIPLIER

    def delay_ms(self, failures: int, rng: Random) -> int:
        """Return the delay after `failures` earlier failures in a row: 0 for the first retry."""
        if self.max_ms <= self.initial_ms:
            return self.max_ms
        most = math.log(self.max_ms / max(self.initial_ms, 1), self.multiplier)
        delay_ms = self.initial_ms * self.multiplier ** min(float(failures), most)
        if self.jitter:
            delay_ms *= 1.0 - self.jitter + 2.0 * self.jitter * rng.random()
        # The sum of floats may miss a whole number by a little: 99.99999999999999 is 100.
        return min(int(delay_ms + 1e-9), self.max_ms)

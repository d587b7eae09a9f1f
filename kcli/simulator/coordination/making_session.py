"""Chooses what a producer of a coordination workload runs on, by its seed: the core of kcli's own producer, or raw requests.

producer                                                  its session
--------------------------------------------------------  ----------------------------------------------------------
idempotent; transactional with transaction.version 2      mostly a CoreProducerSession; else a ProducerSession, which
                                                          sends requests of all versions
transactional with transaction.version 1; of a topic      a ProducerSession: the core uses the version of the
that is created again and again                           cluster, and names topics
"""

from __future__ import annotations

from random import Random

from kcli.simulator.coordination.core_producer import CoreProducerSession
from kcli.simulator.coordination.history import AGAIN
from kcli.simulator.coordination.producer_session import ProducerSession, Session
from kcli.simulator.coordination.stage import Stage

CORE_SHARE = 0.75


def make_session(stage: Stage, name: str, rng: Random, transactional_id: str | None, topic: str = "") -> Session:
    """Make the session of a producer."""
    # With Kafka's rules, EndTxn of a fenced client of version 2 may look like a retry of an end by a client of version 1.
    # So all producers of a transactional id have one version.
    is_new_style = stage.styles.setdefault(transactional_id, rng.random() < 0.6) or transactional_id is None
    if is_new_style and topic != AGAIN and rng.random() < CORE_SHARE:
        return CoreProducerSession(stage, name, rng, transactional_id)
    return ProducerSession(stage, name, rng, transactional_id)

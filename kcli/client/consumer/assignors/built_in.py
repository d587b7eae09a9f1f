"""The assignors by the names that JoinGroup has for them (`assignor` describes each)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.client.consumer.assignors.assignor import Assignor
from kcli.client.consumer.assignors.range_assignor import RangeAssignor
from kcli.client.consumer.assignors.round_robin_assignor import RoundRobinAssignor
from kcli.client.consumer.assignors.sticky_assignor import CooperativeStickyAssignor, StickyAssignor

ASSIGNORS: Mapping[str, Callable[[], Assignor]] = {
    one.name: one for one in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}

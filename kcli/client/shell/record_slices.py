"""Records are deserialized in slices, so that slow deserializers do not keep a client from its heartbeats.

    client    deserializes                                                  after a slow slice
    --------  ------------------------------------------------------------  -----------------------------------
    blocking  in the caller of poll, under the lock of the client's thread  the thread has the lock, if it waits
    asyncio   on the event loop                                             the event loop does what is due

The first slice has FIRST_SLICE records, each next one twice as many; the one after a slow slice has one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from kcli.client.errors import FetchedRecordError
from kcli.network.shell.clock import Clock

_Record = TypeVar("_Record")
FIRST_SLICE = 8
SLOW_SLICE_MS = 5


def collect_in_slices(
    call: Callable[[Callable[[int], list[_Record]]], list[_Record]],
    clock: Clock,
    collect: Callable[[int, int], list[_Record]],
    found: list[_Record],
    most: int,
    keep: Callable[[FetchedRecordError], object],
) -> Iterator[None]:
    """Append up to `most` records to `found`, by calls of `collect(count, now_ms)`, until one returns fewer than `count`.

    `call` calls a function of the core with the time. Yields after a slow slice, when others should have time. Raises
    FetchedRecordError if the first record cannot be read; for a later one, `keep(error)` is called.
    """
    count = FIRST_SLICE
    while len(found) < most:
        count = min(count, most - len(found))
        begin_ms = clock.now_ms()
        try:
            new = call(partial(collect, count))
        except FetchedRecordError as error:
            if not found:
                raise
            keep(error)
            return
        found += new
        if len(new) < count:
            return
        count *= 2
        if clock.now_ms() - begin_ms > SLOW_SLICE_MS:
            count = 1
            yield
